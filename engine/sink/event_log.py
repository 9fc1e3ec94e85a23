"""The event log of a run: the truth, append-only, one JSON line an event, numbered densely by (attempt, seq).

A line counts once its newline is on disk. Leaves out what events mean (``engine.contract.events``) and
following a log that grows: a program that wants events as they come subscribes, or reads on with
``engine.interop.run_folder``.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import ValidationError

from engine.contract.events import (
    Body,
    CheckpointSaved,
    EvalFinished,
    Event,
    LogLine,
    RunFailed,
    RunFinished,
    RunStopped,
    StepFinished,
)
from engine.sink.disk import fsync_folder, naming_full_disk
from engine.sink.run_folder import RunFolder

logger = logging.getLogger(__name__)

Subscriber = Callable[[Event], None]

# What must survive a power loss. Anything before it in the file survives with it; syncing every line would
# cost a disk round trip per group.
_DURABLE = (StepFinished, EvalFinished, CheckpointSaved, RunStopped, RunFinished, RunFailed)


class EventLogCorrupt(Exception):
    """A line of a log that nothing of ours can have written; names file, line and reason."""


class EventLog:
    """The writing end of one attempt. Threads may share it; one process only (``RunFolder.lock``)."""

    def __init__(self, folder: RunFolder, attempt: int) -> None:
        self.attempt = attempt
        self._folder = folder
        self._subscribers: list[Subscriber] = []
        self._seq = 0
        self._size = 0
        self._writing = threading.RLock()
        path = folder.events(attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        with naming_full_disk(folder.path):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
            fsync_folder(path.parent)

    @property
    def last_seq(self) -> int:
        """Number of the last event written, 0 before the first."""
        return self._seq

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call ``subscriber`` with every later event, after it is written, in order.

        It runs in the writer's thread: it must be quick. One that raises gets no more events, and the log
        says so: a broken terminal must not end a training run.
        """
        self._subscribers.append(subscriber)

    def append(self, body: Body) -> Event:
        """Write one event and hand it on. Raises ``SinkFull``; the log then ends after the event before."""
        with self._writing:
            event = Event(attempt=self.attempt, seq=self._seq + 1, at=time.time(), body=body)
            self._write(event)
            failed = [(subscriber, error) for subscriber in self._subscribers if (error := _hand_on(subscriber, event))]
            for subscriber, error in failed:
                self._subscribers.remove(subscriber)
                self.append(LogLine(level="warning", message=f"{_name(subscriber)} gets no more events: {error!r}"))
        return event

    def _write(self, event: Event) -> None:
        line = event.model_dump_json().encode("utf-8") + b"\n"
        with naming_full_disk(self._folder.path):
            try:
                rest = memoryview(line)
                while rest:  # once, but on a disk that fills up within the line: then the next write raises
                    rest = rest[os.write(self._descriptor, rest) :]
                if isinstance(event.body, _DURABLE):
                    os.fsync(self._descriptor)
                self._size += len(line)
                self._seq = event.seq
            except BaseException:  # an interrupt too: either the whole line is there and counted, or nothing of it
                os.ftruncate(self._descriptor, self._size)
                raise

    def close(self) -> None:
        """Make everything durable. May be called twice."""
        with self._writing:
            if self._descriptor >= 0:
                os.fsync(self._descriptor)
                os.close(self._descriptor)
                self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _hand_on(subscriber: Subscriber, event: Event) -> Exception | None:
    try:
        subscriber(event)
    except Exception as error:
        logger.exception("a subscriber of the event log failed")
        return error
    return None


def _name(subscriber: Subscriber) -> str:
    return getattr(subscriber, "__qualname__", type(subscriber).__qualname__)


@dataclass(frozen=True, slots=True)
class TornLine:
    """What a crash left after an attempt's last whole line; it was never an event."""

    path: Path
    line: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.path}: left out a torn last line ({self.bytes} bytes after line {self.line - 1})"


def _warn(torn: TornLine) -> None:
    logger.warning("%s", torn)


def read_events(folder: RunFolder, on_torn: Callable[[TornLine], None] = _warn) -> Iterator[Event]:
    """Every event of every attempt, in order.

    A torn last line is reported to ``on_torn`` and left out; anything else that is not the next event of its
    attempt raises ``EventLogCorrupt``.
    """
    for attempt in folder.attempts():
        path = folder.events(attempt)
        if path.exists():  # an attempt that died before its first event has none
            yield from _read_attempt(path, attempt, on_torn)


def _read_attempt(path: Path, attempt: int, on_torn: Callable[[TornLine], None]) -> Iterator[Event]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                on_torn(TornLine(path, number, len(line)))
                return
            yield parse_line(path, number, line, attempt)


def parse_line(path: Path, number: int, line: bytes, attempt: int) -> Event:
    """The event in line ``number`` of an attempt's log. Raises ``EventLogCorrupt`` unless it is the one due there."""
    try:
        event = Event.from_json(line)
    except ValidationError as error:
        raise EventLogCorrupt(f"{path}, line {number}: not an event: {error.errors()[0]['msg']}") from error
    if (event.attempt, event.seq) != (attempt, number):
        raise EventLogCorrupt(
            f"{path}, line {number}: expected attempt {attempt} seq {number}, got {event.attempt} {event.seq}"
        )
    return event
