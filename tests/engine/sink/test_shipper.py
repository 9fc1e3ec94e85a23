"""Shipping against an honest platform that fails in every way: each event arrives once, in order, training unharmed."""

import random
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from engine.contract.commands import Command, CommandKind
from engine.contract.delivery import Batch, ShippedTrajectory
from engine.contract.events import CommandApplied, Event, LogLine, RunFinished, RunHeartbeat, StepFinished
from engine.contract.trajectory import Trajectory
from engine.interop.run_folder import Limits
from engine.sink.event_log import EventLog, read_events
from engine.sink.platform_client import Address, PlatformClient
from engine.sink.run_folder import RunFolder
from engine.sink.shipper import Pace, Shipper, split
from engine.sink.trajectories import read_trajectories, write_trajectories
from tests.engine.sink.platform_twin import TOKEN, PlatformTwin, serving

PACE = Pace(
    least_gap_s=0.001,
    heartbeat_s=0.02,
    first_pause_s=0.001,
    longest_pause_s=0.01,
    longest_asked_pause_s=0.01,
    flush_s=5,
)

Make = Callable[..., Trajectory]


@pytest.fixture
def twin() -> Iterator[PlatformTwin]:
    made = PlatformTwin()
    with serving(made):
        yield made


class Ship:
    """One attempt with its log and its shipper; what the shipper handed over."""

    def __init__(self, folder: RunFolder, url: str, pace: Pace, limits: Limits | None, timeout_s: float) -> None:
        self.commands: list[Command] = []
        self.dismissed: list[str] = []
        self.ended = threading.Event()
        self.folder = folder
        client = PlatformClient(Address(url, TOKEN), folder.job.run_id, timeout_s)
        self.shipper = Shipper(folder, client, pace=pace, limits=limits)
        self.log = EventLog(folder, folder.next_attempt())

    def start(self) -> None:
        self.shipper.start(
            self.log,
            on_command=self.commands.append,
            on_dismissed=self.dismissed.append,
            on_end=self.ended.set,
        )

    def finish(self) -> None:
        self.shipper.finish()
        assert self.ended.wait(10)

    def step(self, number: int, trajectories: list[Trajectory]) -> str:
        path = self.folder.trajectories(self.log.attempt, "rl-1", number)
        write_trajectories(path, trajectories)
        name = self.folder.relative(path)
        self.log.append(StepFinished(stage="rl-1", step=number, trajectories=name))
        return name


@contextmanager
def shipping(
    folder: RunFolder, twin: PlatformTwin, pace: Pace = PACE, limits: Limits | None = None, timeout_s: float = 5.0
) -> Iterator[Ship]:
    ship = Ship(folder, twin.url, pace, limits, timeout_s)
    ship.start()
    try:
        yield ship
    finally:
        ship.finish()
        ship.shipper.abandon()
        ship.log.close()


def assert_complete(folder: RunFolder, twin: PlatformTwin) -> None:
    """What the platform has is the folder, to the letter and in order."""
    assert twin.events == list(read_events(folder))
    told = [event.body.trajectories for event in twin.events if isinstance(event.body, StepFinished)]
    files = [file for file in told if file]
    expected = [
        ShippedTrajectory.of(trajectory, file, row)
        for file in files
        for row, trajectory in enumerate(read_trajectories(folder.inside(file)))
    ]
    assert [twin.trajectories[each.file, each.row] for each in expected] == expected
    assert len(twin.trajectories) == len(expected)
    assert twin.there_with == {file: sum(each.file == file for each in expected) for file in files}, (
        "a step that is told is there whole"
    )


def test_events_arrive_while_the_run_goes_on(folder: RunFolder, twin: PlatformTwin, make_trajectory: Make) -> None:
    with shipping(folder, twin) as ship:
        ship.log.append(RunHeartbeat())
        twin.until(lambda t: t.cursor == {1: 1})
        ship.step(1, [make_trajectory(replica=n) for n in range(3)])
        twin.until(lambda t: t.cursor == {1: 2})
        ship.log.append(RunFinished(seconds=1.0))
    assert ship.shipper.delivered
    assert_complete(folder, twin)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.e2e) for seed in range(1, 9))])
def test_under_random_failures_every_event_arrives_once_and_in_order(
    folder: RunFolder, twin: PlatformTwin, make_trajectory: Make, seed: int
) -> None:
    dice = random.Random(seed)
    kinds = [None, "drop", "lose", "late", (503, {}), (502, {}), (429, {"headers": {"Retry-After": "0"}}), (500, {})]
    weights = [16, 4, 6, 0.3, 3, 2, 3, 2]
    twin.fault = lambda number, batch: "late" if number == 5 else dice.choices(kinds, weights)[0]
    twin.lateness = 0.2
    limits = Limits(events=7, trajectories=5)
    with shipping(folder, twin, limits=limits, timeout_s=0.15) as ship:
        for number in range(1, 13):
            for _ in range(dice.randrange(12)):
                ship.log.append(RunHeartbeat())
            ship.step(number, [make_trajectory(step=number, replica=n) for n in range(dice.randrange(14))])
            if number % 4 == 0:
                twin.until(lambda t: t.cursor.get(1, 0) >= ship.log.last_seq - 4)
        twin.fault = lambda number, batch: "lose" if number % 2 else None
    assert ship.shipper.delivered
    assert twin.doubled_events, "answers were lost: some events came again, and were skipped"
    assert_complete(folder, twin)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def lines(log: EventLog, level: str) -> list[str]:
    return [
        event.body.message
        for event in read_events(log._folder)
        if isinstance(event.body, LogLine) and event.body.level == level
    ]


def eventually(true: Callable[[], object]) -> None:
    """Wait for what the shipper does by itself, seen in the log."""
    pause = threading.Event()
    for _ in range(1000):
        if true():
            return
        pause.wait(0.01)
    raise AssertionError("did not happen within 10 s")


def test_a_platform_that_is_down_at_the_start_is_told_once_and_gets_everything_later(folder: RunFolder) -> None:
    twin, port = PlatformTwin(), free_port()
    twin.url = f"http://127.0.0.1:{port}"
    with shipping(folder, twin) as ship:
        for _ in range(5):
            ship.log.append(RunHeartbeat())
        eventually(lambda: lines(ship.log, "warning"))
        failures = ship.shipper._failures
        eventually(lambda: ship.shipper._failures > failures + 5)
        with serving(twin, port):
            eventually(lambda: lines(ship.log, "info"))
            ship.finish()
    (warning,), (caught_up,) = lines(ship.log, "warning"), lines(ship.log, "info")
    assert "shipping fails, the run goes on" in warning
    assert f"127.0.0.1:{port}" in warning
    assert caught_up == "the platform has everything again"
    assert TOKEN not in (folder.events(1)).read_text()
    assert_complete(folder, twin)


def test_a_platform_that_never_comes_costs_a_run_the_flush_and_nothing_else(folder: RunFolder) -> None:
    twin = PlatformTwin()
    twin.url = f"http://127.0.0.1:{free_port()}"
    quick = Pace(first_pause_s=0.001, longest_pause_s=0.01, flush_s=0.05)
    with shipping(folder, twin, quick) as ship:
        ship.log.append(RunFinished(seconds=1.0))
    assert not ship.shipper.delivered
    assert isinstance(list(read_events(folder))[-1].body, RunFinished | LogLine)


def test_a_second_attempt_sends_what_the_first_one_left(
    folder: RunFolder, twin: PlatformTwin, make_trajectory: Make
) -> None:
    """As after kill -9: no last word, half a line, no shipper."""
    first = Ship(folder, twin.url, PACE, None, 5.0)
    for number in (1, 2):
        first.step(number, [make_trajectory(step=number)])
    with folder.events(1).open("ab") as file:
        file.write(b'{"attempt":1,"se')
    twin.cursor = {1: 1}
    twin.events = list(read_events(folder, lambda torn: None))[:1]
    twin.trajectories = {}
    with shipping(folder, twin) as second:
        second.log.append(RunHeartbeat())
    assert [(e.attempt, e.seq) for e in twin.events] == [(1, 1), (1, 2), (2, 1)]
    assert twin.there_with == {"attempts/0001/trajectories/rl-1/step-00002.parquet": 1}


def test_a_platform_restored_from_a_backup_gets_what_it_lacks(folder: RunFolder, twin: PlatformTwin) -> None:
    with shipping(folder, twin) as ship:
        for _ in range(9):
            ship.log.append(RunHeartbeat())
        twin.until(lambda t: t.cursor == {1: 9})
        twin.forget({1: 4})
        ship.log.append(RunHeartbeat())
    assert ship.shipper.delivered
    assert_complete(folder, twin)


def test_a_platform_that_asks_for_the_same_again_and_again_is_not_stormed(
    folder: RunFolder, twin: PlatformTwin
) -> None:
    twin.fault = lambda number, batch: (409, {"code": "gap", "cursor": {"1": 0}}) if batch and batch.events else None
    with shipping(folder, twin, Pace(first_pause_s=30, longest_pause_s=30, flush_s=0.05)) as ship:
        ship.log.append(RunHeartbeat())
        twin.until(lambda t: t.requests >= 4)
    assert twin.requests < 12
    assert not ship.shipper.delivered


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ((409, {"code": "superseded"}), "another launch of this run has taken over"),
        ((401, {"detail": "the token is no token"}), "does not accept the run's token.*401.*the token is no token"),
        ((403, {}), "does not accept the run's token.*403"),
    ],
)
def test_a_dismissed_engine_is_told_and_sends_nothing_more(
    folder: RunFolder, twin: PlatformTwin, fault: Any, expected: str
) -> None:
    with shipping(folder, twin) as ship:
        ship.log.append(RunHeartbeat())
        twin.until(lambda t: t.cursor == {1: 1})
        twin.fault = lambda number, batch: fault
        assert ship.ended.wait(5)
        asked = twin.requests
        ship.log.append(RunHeartbeat())
    (why,) = ship.dismissed
    assert re.search(expected, why)
    assert twin.requests == asked
    assert not ship.shipper.delivered
    assert not lines(ship.log, "error"), "nothing is written that another launch would send"


def test_a_folder_that_is_an_older_copy_is_not_mixed_with_what_the_platform_has(
    folder: RunFolder, twin: PlatformTwin
) -> None:
    twin.cursor = {1: 500, 2: 7}
    with shipping(folder, twin) as ship:
        ship.log.append(RunHeartbeat())
    assert "older copy" in ship.dismissed[0]
    assert "attempts/0002" in ship.dismissed[0]
    assert not twin.batches


def test_commands_come_with_answers_until_they_are_told(folder: RunFolder, twin: PlatformTwin) -> None:
    pause = Command(kind=CommandKind.pause, by="ada", id="cmd_1")
    with shipping(folder, twin) as ship:
        twin.command(pause)
        eventually(lambda: len(ship.commands) > 2)
        assert set(ship.commands) == {pause}, "sent again until it is told: the inbox takes it once"
        ship.log.append(CommandApplied(command=pause))
        twin.until(lambda t: not t.waiting)
        asked = twin.requests
        twin.until(lambda t: t.requests > asked + 1)
        count = len(ship.commands)
        twin.until(lambda t: t.requests > asked + 4)
        assert len(ship.commands) == count


def test_a_command_that_an_earlier_attempt_has_answered_is_not_handed_over(
    folder: RunFolder, twin: PlatformTwin
) -> None:
    """Its engine died before the answer was sent: the platform still asks when the next attempt begins."""
    stop = Command(kind=CommandKind.stop, by="ada", id="cmd_1")
    with EventLog(folder, folder.next_attempt()) as first:
        first.append(RunHeartbeat())
        first.append(CommandApplied(command=stop))
    twin.command(stop)
    with shipping(folder, twin, limits=Limits(events=1)) as second:
        second.log.append(RunHeartbeat())
        twin.until(lambda t: t.cursor == {1: 2, 2: 1})
    assert second.commands == []


def test_a_huge_step_comes_in_parts_and_its_event_with_the_last(
    folder: RunFolder, twin: PlatformTwin, make_trajectory: Make
) -> None:
    with shipping(folder, twin, limits=Limits(trajectories=100)) as ship:
        name = ship.step(1, [make_trajectory(step=1, replica=n) for n in range(730)])
    assert twin.there_with == {name: 730}
    parts = [batch for batch in twin.batches if batch.trajectories]
    assert [len(batch.trajectories) for batch in parts] == [100] * 7 + [30]
    assert [len(batch.events) for batch in parts] == [0] * 7 + [1]
    assert_complete(folder, twin)


def test_a_batch_that_is_too_large_is_halved(folder: RunFolder, twin: PlatformTwin, make_trajectory: Make) -> None:
    def too_large(number: int, batch: Batch | None) -> Any:
        return (413, {}) if batch and len(batch.events) + len(batch.trajectories) > 3 else None

    twin.fault = too_large
    with shipping(folder, twin) as ship:
        for _ in range(10):
            ship.log.append(RunHeartbeat())
        ship.step(1, [make_trajectory(step=1, replica=n) for n in range(11)])
        twin.until(lambda t: t.cursor == {1: 11})
    assert ship.shipper.delivered
    assert_complete(folder, twin)


def test_an_event_that_is_refused_for_good_is_said_loudly_and_commands_still_come(
    folder: RunFolder, twin: PlatformTwin
) -> None:
    def refuse(number: int, batch: Batch | None) -> Any:
        bad = batch and any(isinstance(event.body, RunFinished) for event in batch.events)
        return (400, {"code": "invalid", "detail": "seconds: too many"}) if bad else None

    twin.fault = refuse
    with shipping(folder, twin) as ship:
        for body in (RunHeartbeat(), RunHeartbeat(), RunFinished(seconds=1.0), RunHeartbeat()):
            ship.log.append(body)
        eventually(lambda: lines(ship.log, "error"))
        twin.command(Command(kind=CommandKind.stop, by="ada", id="cmd_1"))
        eventually(lambda: ship.commands)
    (message,) = lines(ship.log, "error")
    assert "refuses event 3 (run.finished) of attempt 1" in message
    assert "seconds: too many" in message
    assert twin.cursor == {1: 2}
    assert not ship.shipper.delivered


def test_what_the_last_batch_brings_up_is_sent_too(folder: RunFolder, twin: PlatformTwin) -> None:
    """A file that is missing is told in the log, also behind the last word."""
    ship = Ship(folder, twin.url, PACE, None, 5.0)
    ship.log.append(StepFinished(stage="rl-1", step=1, trajectories="attempts/0001/gone.parquet"))
    ship.start()
    ship.finish()
    assert ship.shipper.delivered
    assert "gone.parquet" in lines(ship.log, "warning")[0]
    assert twin.events == list(read_events(folder))


@pytest.mark.parametrize("asked", ["GET", "POST"])
def test_redirects_are_not_followed(folder: RunFolder, twin: PlatformTwin, asked: str) -> None:
    other = PlatformTwin()
    with serving(other):
        elsewhere = 307, {"headers": {"Location": other.url + other.path}}
        twin.fault = lambda number, batch: (
            (elsewhere[0], dict(elsewhere[1])) if (asked == "POST") == bool(batch) else None
        )
        with shipping(folder, twin, Pace(first_pause_s=0.001, longest_pause_s=0.01, flush_s=0.05)) as ship:
            eventually(lambda: lines(ship.log, "warning"))
    assert "redirects are not followed" in lines(ship.log, "warning")[0]
    assert other.requests == 0


def test_a_page_that_is_no_answer_is_no_success(folder: RunFolder, twin: PlatformTwin) -> None:
    twin.fault = lambda number, batch: (200, {"login": "please"})
    with shipping(folder, twin, Pace(first_pause_s=0.001, longest_pause_s=0.01, flush_s=0.05)) as ship:
        eventually(lambda: lines(ship.log, "warning"))
    assert "something else than a platform" in lines(ship.log, "warning")[0]
    assert not ship.shipper.delivered


def test_the_pause_grows_and_the_platforms_wish_counts() -> None:
    pace = Pace(first_pause_s=0.5, longest_pause_s=15, longest_asked_pause_s=60)
    pauses = [pace.pause(failures, None) for failures in range(1, 12)]
    assert all(0.25 * 2**n <= pause <= 0.5 * 2**n for n, pause in enumerate(pauses[:5]))
    assert all(7.5 <= pause <= 15 for pause in pauses[5:])
    assert pace.pause(1, 7.0) == 7.0
    assert pace.pause(1, 1e9) == 60


def test_parts_say_the_same_in_the_same_order(make_trajectory: Make) -> None:
    events = tuple(Event(attempt=1, seq=n, at=1.0, body=RunHeartbeat()) for n in range(1, 6))
    rows = tuple(ShippedTrajectory.of(make_trajectory(replica=n), "f", n) for n in range(5))

    def leaves(batch: Batch) -> list[Batch]:
        parts = split(batch)
        return [leaf for part in parts for leaf in leaves(part)] if parts else [batch]

    parted = leaves(Batch(attempt=1, events=events, trajectories=rows))
    assert [event for batch in parted for event in batch.events] == list(events)
    assert [row for batch in parted for row in batch.trajectories] == list(rows)
    assert all(len(batch.events) + len(batch.trajectories) == 1 for batch in parted)
    first_event = next(place for place, batch in enumerate(parted) if batch.events)
    assert all(not batch.trajectories for batch in parted[first_event:])
