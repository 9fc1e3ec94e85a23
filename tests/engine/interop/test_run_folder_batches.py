"""A run folder as batches: complete, in order, resumable at any cursor, honest about what cannot be read."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.contract.delivery import Batch, ShippedTrajectory
from engine.contract.events import EvalFinished, LogLine, RunHeartbeat, StepFinished
from engine.contract.job import JobSpec, Recipe
from engine.contract.trajectory import StopReason, ToolCallRecord, Trajectory, Turn
from engine.interop import run_folder as module
from engine.interop.run_folder import Limits, RunFolderReader, RunFolderUnreadable, batches, read_job
from engine.sink.event_log import EventLog, read_events
from engine.sink.run_folder import RunFolder
from engine.sink.trajectories import read_trajectories, write_trajectories


def recipe(**model: Any) -> Recipe:
    stages = [{"kind": "rl", "name": "rl-1", "steps": 3, "max_response_tokens": 160}]
    return Recipe.model_validate({"name": "laptop", "model": model or {"kind": "tiny-qwen3"}, "stages": stages})


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    found = recipe()
    job = JobSpec(run_id="run-1", created_at=1.5, digest=found.digest, recipe=found)
    return RunFolder.create(tmp_path / "run", job)


def trajectory(**changes: Any) -> Trajectory:
    call = ToolCallRecord(name="python", arguments={"code": "1/0"}, status="error", response="ZeroDivisionError")
    fields: dict[str, Any] = {
        "stage": "rl-1",
        "step": 1,
        "group": "g1",
        "replica": 3,
        "problem_id": "p1",
        "problem": "1 + 1?",
        "gold": "2",
        "prompt_ids": (5, 6),
        "ids": (7, 8, 9),
        "sampled": (True, True, False),
        "logprobs": (-0.5, -1.25, 0.0),
        "turns": (Turn(role="assistant", start=0, end=2, text="<tool_call>", calls=(call,)),),
        "stop_reason": StopReason.answered,
    }
    return Trajectory(**{**fields, **changes})


def step(folder: RunFolder, log: EventLog, number: int, rows: list[Trajectory]) -> str:
    path = folder.trajectories(log.attempt, "rl-1", number)
    write_trajectories(path, rows)
    log.append(StepFinished(stage="rl-1", step=number, trajectories=folder.relative(path)))
    return folder.relative(path)


@pytest.fixture
def log(folder: RunFolder) -> Iterator[EventLog]:
    with EventLog(folder, folder.next_attempt()) as opened:
        yield opened


def taken_in(found: list[Batch], cursor: Mapping[int, int] | None = None) -> list[tuple[int, int]]:
    """What a platform has after these batches; it accepts nothing out of order."""
    has = dict(cursor or {})
    order = []
    for batch in found:
        for event in batch.events:
            assert event.seq == has.get(event.attempt, 0) + 1
            has[event.attempt] = event.seq
            order.append((event.attempt, event.seq))
    return order


def test_a_trajectory_travels_whole_but_for_its_tokens(folder: RunFolder, log: EventLog) -> None:
    rows = [
        trajectory(replica=0, reward=1.0, penalty=1 / 3, advantage=-0.1, kept=True, kept_reason="drawn", answer="2"),
        trajectory(replica=1, problem="<script>\\x00", verdict="wrong", stop_reason=StopReason.length, u=5e-324),
    ]
    name = step(folder, log, 1, rows)
    (batch,) = batches(folder.path, {})
    assert batch.trajectories == tuple(ShippedTrajectory.of(t, name, row) for row, t in enumerate(rows))
    assert Batch.model_validate_json(batch.model_dump_json()) == batch


def test_attempts_come_in_order_and_dead_ones_are_no_trouble(folder: RunFolder, log: EventLog) -> None:
    log.append(RunHeartbeat())
    log.append(RunHeartbeat())
    folder.next_attempt()  # died before its first event
    with EventLog(folder, folder.next_attempt()) as third:
        third.append(RunHeartbeat())
    found = list(batches(folder.path, {}))
    assert [(batch.attempt, len(batch.events)) for batch in found] == [(1, 2), (3, 1)]


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(st.integers(0, 9), max_size=12),
    st.integers(1, 6),
    st.integers(1, 6),
    st.integers(600, 4000),
    st.integers(0, 14),
)
def test_every_limit_and_every_cursor_gives_the_same(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], events: int, rows: int, size: int, known: int
) -> None:
    found = recipe()
    job = JobSpec(run_id="run-1", created_at=1.5, digest=found.digest, recipe=found)
    folder = RunFolder.create(tmp_path_factory.mktemp("any") / "run", job)
    with EventLog(folder, folder.next_attempt()) as log:
        for number, count in enumerate(steps, start=1):
            if count < 4:
                log.append(RunHeartbeat())
            else:
                step(folder, log, number, [trajectory(step=number, replica=n) for n in range(count)])
    reader = RunFolderReader(folder.path, {1: known}, limits=Limits(events, rows, size))
    made = list(reader.batches())
    assert taken_in(made, {1: known}) == [(1, seq) for seq in range(known + 1, len(steps) + 1)]
    there: set[tuple[str, int]] = set()
    for batch in made:
        assert len(batch.events) <= events
        assert len(batch.trajectories) <= rows
        there |= {(each.file, each.row) for each in batch.trajectories}
        for event in batch.events:
            if isinstance(event.body, StepFinished) and event.body.trajectories:
                file = event.body.trajectories
                assert sum(name == file for name, _ in there) == len(read_trajectories(folder.inside(file)))
    assert list(reader.batches()) == [], "nothing comes twice"
    shutil.rmtree(folder.path)


def test_one_large_trajectory_is_a_batch_of_its_own(folder: RunFolder, log: EventLog) -> None:
    text = (Turn(role="assistant", start=0, end=3, text="x" * 50_000),)
    step(folder, log, 1, [trajectory(replica=n, turns=text) for n in range(3)])
    found = list(RunFolderReader(folder.path, {}, limits=Limits(bytes=60_000)).batches())
    assert [len(batch.trajectories) for batch in found] == [1, 1, 1]
    assert [len(batch.events) for batch in found] == [0, 0, 1]


def test_a_reader_goes_on_where_it_was_and_reads_nothing_again(
    folder: RunFolder, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[int] = []
    real = module.parse_line
    monkeypatch.setattr(module, "parse_line", lambda p, n, line, a: (parsed.append(n), real(p, n, line, a))[1])
    reader = RunFolderReader(folder.path, {})
    for number in range(1, 6):
        log.append(RunHeartbeat())
        (batch,) = reader.batches()
        assert [event.seq for event in batch.events] == [number]
    assert parsed == [1, 2, 3, 4, 5]
    reader.rewind({1: 3})
    assert taken_in(list(reader.batches()), {1: 3}) == [(1, 4), (1, 5)]


def test_nothing_behind_the_last_event_that_may_be_read_is_read(folder: RunFolder, log: EventLog) -> None:
    for _ in range(5):
        log.append(RunHeartbeat())
    reader = RunFolderReader(folder.path, {})
    assert taken_in(list(reader.batches({1: 3}))) == [(1, 1), (1, 2), (1, 3)]
    assert taken_in(list(reader.batches()), {1: 3}) == [(1, 4), (1, 5)]


def test_half_a_line_is_left_for_later(folder: RunFolder, log: EventLog) -> None:
    log.append(RunHeartbeat())
    log.append(LogLine(message="whole"))
    path = folder.events(1)
    whole = path.read_bytes()
    reader = RunFolderReader(folder.path, {})
    path.write_bytes(whole[:-7])
    assert taken_in(list(reader.batches())) == [(1, 1)]
    path.write_bytes(whole)
    assert taken_in(list(reader.batches()), {1: 1}) == [(1, 2)]


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize("damage", [remove, cut])
def test_without_its_trajectory_file_an_event_comes_alone_and_it_is_said(
    folder: RunFolder, log: EventLog, damage: Callable[[Path], None]
) -> None:
    name = step(folder, log, 1, [trajectory()])
    log.append(RunHeartbeat())
    damage(folder.inside(name))
    problems: list[str] = []
    (batch,) = batches(folder.path, {}, on_problem=problems.append)
    assert [event.seq for event in batch.events] == [1, 2]
    assert batch.trajectories == ()
    assert len(problems) == 1
    assert "step-00001.parquet" in problems[0]


def test_a_file_name_that_leads_out_of_the_folder_is_not_read(folder: RunFolder, log: EventLog) -> None:
    log.append(EvalFinished(stage="eval", trajectories="../../etc/passwd"))
    problems: list[str] = []
    (batch,) = batches(folder.path, {}, on_problem=problems.append)
    assert len(batch.events) == 1
    assert "leads out of the run folder" in problems[0]


def test_behind_a_damaged_line_an_attempt_is_left_out_and_the_next_one_comes(folder: RunFolder, log: EventLog) -> None:
    for _ in range(4):
        log.append(RunHeartbeat())
    lines = folder.events(1).read_bytes().splitlines(keepends=True)
    folder.events(1).write_bytes(b"".join([lines[0], b"nonsense\n", *lines[2:]]))
    with EventLog(folder, folder.next_attempt()) as second:
        second.append(RunHeartbeat())
    problems: list[str] = []
    reader = RunFolderReader(folder.path, {}, on_problem=problems.append)
    assert taken_in(list(reader.batches())) == [(1, 1), (2, 1)]
    assert list(reader.batches()) == []
    assert len(problems) == 1
    assert "events.jsonl, line 2: not an event" in problems[0]


def test_a_platform_that_knows_more_than_the_folder_gets_nothing(folder: RunFolder, log: EventLog) -> None:
    """A power loss can take the last lines of a log after they were sent."""
    log.append(RunHeartbeat())
    assert list(batches(folder.path, {1: 7})) == []


def test_the_job_is_read_back(folder: RunFolder) -> None:
    assert read_job(folder.path) == folder.job


def test_the_job_of_a_folder_that_was_moved_here_needs_no_file_that_it_names(folder: RunFolder) -> None:
    raw = json.loads(folder.job_json.read_text())
    raw["recipe"]["model"] = {"kind": "folder", "path": "/models/of/another/machine"}
    folder.job_json.write_text(json.dumps(raw))
    assert read_job(folder.path).recipe.model.kind == "folder"


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no run folder: it has no job.json"), ("{", "is not JSON"), ('{"schema_version": 2}', "schema version 2")],
)
def test_other_folders_are_refused_with_the_reason(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "job.json").write_text(content)
    with pytest.raises(RunFolderUnreadable, match=message):
        next(batches(tmp_path, {}))
    with pytest.raises(RunFolderUnreadable, match=message):
        read_job(tmp_path)


def test_a_damaged_job_names_its_wrong_fields(folder: RunFolder) -> None:
    raw = json.loads(folder.job_json.read_text())
    raw["recipe"]["seed"] = -1
    folder.job_json.write_text(json.dumps(raw))
    with pytest.raises(RunFolderUnreadable, match=r"recipe\.seed"):
        read_job(folder.path)


def test_the_same_folder_gives_the_same_events_as_the_log(folder: RunFolder, log: EventLog) -> None:
    for number in range(1, 4):
        step(folder, log, number, [trajectory(step=number)])
    made = [event for batch in batches(folder.path, {}, max_events=2) for event in batch.events]
    assert made == list(read_events(folder))
