"""The event log: dense, durable, and readable after a crash."""

import errno
import os
import threading
from typing import Any

import pytest

from engine.contract.events import Event, LogLine, RunHeartbeat, RunStopped, StepFinished
from engine.sink import event_log
from engine.sink.disk import SinkFull
from engine.sink.event_log import EventLog, EventLogCorrupt, TornLine, read_events
from engine.sink.run_folder import RunFolder


@pytest.fixture
def log(folder: RunFolder) -> EventLog:
    return EventLog(folder, folder.next_attempt())


def read(folder: RunFolder) -> list[Event]:
    def refuse(torn: TornLine) -> None:
        raise AssertionError(torn)

    return list(read_events(folder, refuse))


def test_what_is_written_is_read(folder: RunFolder, log: EventLog) -> None:
    step = StepFinished(stage="rl-1", step=1, metrics={"reward": 0.1 + 0.2, "loss": float("nan")})
    written = [log.append(body) for body in (RunHeartbeat(), step, LogLine(message="a\x00\ud800"))]
    assert read(folder) == written
    assert [event.seq for event in written] == [1, 2, 3]


def test_attempts_are_read_one_after_the_other(folder: RunFolder) -> None:
    for _ in range(3):
        with EventLog(folder, folder.next_attempt()) as log:
            log.append(RunHeartbeat())
            log.append(RunStopped(reason="asked"))
    assert [(event.attempt, event.seq) for event in read(folder)] == [(a, s) for a in (1, 2, 3) for s in (1, 2)]


def test_an_attempt_has_one_writer(folder: RunFolder, log: EventLog) -> None:
    with pytest.raises(FileExistsError):
        EventLog(folder, log.attempt)


def test_numbers_stay_dense_when_threads_write(folder: RunFolder, log: EventLog) -> None:
    seen: list[int] = []
    log.subscribe(lambda event: seen.append(event.seq))
    threads = [threading.Thread(target=lambda: [log.append(RunHeartbeat()) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [event.seq for event in read(folder)] == list(range(1, 201))


def test_a_subscriber_sees_only_what_is_on_disk(folder: RunFolder, log: EventLog) -> None:
    sizes: list[int] = []
    log.subscribe(lambda event: sizes.append(len(read(folder)) - event.seq))
    log.append(RunHeartbeat())
    log.append(RunHeartbeat())
    assert sizes == [0, 0]


def test_a_broken_subscriber_is_dropped_and_said(folder: RunFolder, log: EventLog) -> None:
    def broken(event: Event) -> None:
        raise BrokenPipeError("the terminal went away")

    others: list[Event] = []
    log.subscribe(broken)
    log.subscribe(others.append)
    log.append(RunHeartbeat())
    log.append(RunHeartbeat())
    kinds = [event.body.type for event in read(folder)]
    assert kinds == [event.body.type for event in others] == ["run.heartbeat", "log.line", "run.heartbeat"]
    warning = others[1].body
    assert isinstance(warning, LogLine)
    assert "gets no more events: BrokenPipeError" in warning.message


def test_steps_and_last_words_are_synced_others_are_not(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(event_log.os, "fsync", synced.append)
    log.append(RunHeartbeat())
    assert not synced
    log.append(StepFinished(stage="rl-1", step=1))
    log.append(RunStopped(reason="asked"))
    assert len(synced) == 2


def test_a_full_disk_leaves_no_torn_line(folder: RunFolder, log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append(RunHeartbeat())
    real, calls = os.write, 0

    def fills_up_within_a_line(descriptor: int, data: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            return real(descriptor, bytes(data)[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(event_log.os, "write", fills_up_within_a_line)
        with pytest.raises(SinkFull, match=r"the disk is full, [\d,]+ bytes free") as full:
            log.append(LogLine(message="lost"))
    assert full.value.errno == errno.ENOSPC
    assert str(folder.path) in str(full.value)
    assert len(read(folder)) == 1
    assert log.append(RunHeartbeat()).seq == 2  # there is room again: the log goes on
    assert len(read(folder)) == 2


def test_an_interrupt_within_a_write_leaves_no_torn_line(
    folder: RunFolder, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write

    def interrupted(descriptor: int, data: Any) -> int:
        real(descriptor, data)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(event_log.os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            log.append(RunHeartbeat())
    assert log.append(RunHeartbeat()).seq == 1
    assert len(read(folder)) == 1


@pytest.mark.parametrize("tail", [b'{"attempt":1,"se', b"\x00" * 300, b'{"attempt":1,"seq":2,"at":1.0,"body":{}}'])
def test_a_torn_last_line_is_reported_and_left_out(folder: RunFolder, log: EventLog, tail: bytes) -> None:
    log.append(RunHeartbeat())
    with folder.events(1).open("ab") as file:
        file.write(tail)
    with EventLog(folder, folder.next_attempt()) as second:
        second.append(RunHeartbeat())
    torn: list[TornLine] = []
    assert [event.attempt for event in read_events(folder, torn.append)] == [1, 2]
    assert [(line.line, line.bytes) for line in torn] == [(2, len(tail))]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda lines: [lines[0], b"nonsense\n", lines[2]], r"events\.jsonl, line 2: not an event"),
        (lambda lines: [lines[0], lines[2]], "line 2: expected attempt 1 seq 2, got 1 3"),
        (lambda lines: [lines[0], lines[0]], "line 2: expected attempt 1 seq 2, got 1 1"),
        (lambda lines: [b'{"attempt":7' + lines[0][12:]], "line 1: expected attempt 1 seq 1, got 7 1"),
        (lambda lines: [lines[0], b"\n"], "line 2: not an event"),
    ],
)
def test_anything_else_is_corrupt(folder: RunFolder, log: EventLog, damage: Any, message: str) -> None:
    for _ in range(3):
        log.append(RunHeartbeat())
    path = folder.events(1)
    path.write_bytes(b"".join(damage(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(EventLogCorrupt, match=message):
        read(folder)


def test_an_attempt_that_died_before_its_first_event_is_no_trouble(folder: RunFolder) -> None:
    folder.next_attempt()
    assert read(folder) == []


def test_closing_twice_is_fine(log: EventLog) -> None:
    log.close()
    log.close()
