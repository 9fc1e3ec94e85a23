"""A run folder read as batches, the form in which a platform takes it in: while it grows, or long afterwards.

Batches come in the order of the log, so each trajectory is there before, or with, the event that names its file. What
cannot be read is told to ``on_problem`` and left out, never made up: without a trajectory file its event comes alone,
and behind a damaged line of a log nothing more of that attempt can come, for its events are numbered densely. A last
line without its end is none yet. Leaves out sending batches (``engine.sink.shipper``) and what becomes of them.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from engine.contract.delivery import Batch, ShippedTrajectory
from engine.contract.events import EvalFinished, Event, StepFinished
from engine.contract.job import JobSpec, describe
from engine.sink.event_log import EventLogCorrupt, parse_line
from engine.sink.run_folder import RunFolder, RunFolderError
from engine.sink.trajectories import TrajectoriesUnreadable, read_shipped

MAX_BYTES = 4_000_000
"""Roughly the most that a batch holds, uncompressed; a single event or trajectory may be larger."""

_log = logging.getLogger(__name__)


class RunFolderUnreadable(Exception):
    """A folder that is no run folder, or whose job cannot be read; the message says what was expected."""


def read_job(folder: Path) -> JobSpec:
    """The job of a run folder, wherever it was made: files that its recipe names need not be there."""
    opened = _open(folder)
    try:
        return JobSpec.model_validate_json(opened.job_json.read_bytes(), context={"elsewhere": True})
    except ValidationError as error:
        wrong = "\n".join(f"  {line}" for line in describe(error))
        raise RunFolderUnreadable(f"{opened.job_json}:\n{wrong}") from error


def _open(folder: Path) -> RunFolder:
    try:
        return RunFolder.open(folder)
    except (RunFolderError, OSError) as error:
        raise RunFolderUnreadable(str(error)) from error


def _warn(problem: str) -> None:
    _log.warning("%s", problem)


def batches(
    folder: Path,
    cursor: Mapping[int, int],
    *,
    max_events: int = 500,
    max_trajectories: int = 250,
    on_problem: Callable[[str], None] = _warn,
) -> Iterator[Batch]:
    """What is in the folder now beyond ``cursor`` (attempt -> seq of the last event that is known), attempts in order.

    Raises ``RunFolderUnreadable``.
    """
    limits = Limits(max_events, max_trajectories)
    yield from RunFolderReader(folder, cursor, limits=limits, on_problem=on_problem).batches()


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a batch may be."""

    events: int = 500
    trajectories: int = 250
    bytes: int = MAX_BYTES


@dataclass(slots=True)
class _Place:
    """How far an attempt's log has been read; ``damaged``: nothing can follow."""

    offset: int = 0
    seq: int = 0
    damaged: bool = False


@dataclass(slots=True)
class _Pack:
    """A batch that is being filled."""

    limits: Limits
    events: list[Event] = field(default_factory=list)
    trajectories: list[ShippedTrajectory] = field(default_factory=list)
    bytes: int = 0
    end: int = 0

    def takes(self, size: int, *, event: bool) -> bool:
        """Whether one more still fits. An empty pack takes anything."""
        if not self.events and not self.trajectories:
            return True
        used, most = (
            (len(self.events), self.limits.events) if event else (len(self.trajectories), self.limits.trajectories)
        )
        return used < most and self.bytes + size <= self.limits.bytes

    def batch(self, attempt: int) -> Batch:
        return Batch(attempt=attempt, events=tuple(self.events), trajectories=tuple(self.trajectories))


class RunFolderReader:
    """Reads on where it left off: it keeps its place in every attempt's log, so a growing run costs what is new."""

    def __init__(
        self,
        folder: Path,
        cursor: Mapping[int, int],
        *,
        limits: Limits | None = None,
        on_problem: Callable[[str], None] = _warn,
    ) -> None:
        self._folder = _open(folder)
        self._limits = limits or Limits()
        self._on_problem = on_problem
        self.rewind(cursor)

    def rewind(self, cursor: Mapping[int, int]) -> None:
        """Go on behind ``cursor``. Iterators from before are of no use any more."""
        self._cursor = dict(cursor)
        self._places: dict[int, _Place] = {}

    def batches(self, last: Mapping[int, int] | None = None) -> Iterator[Batch]:
        """What is new now, attempts in order. ``last``: attempt -> the last event that may be read so far.

        A batch counts as read when it is given out.
        """
        for attempt in self._folder.attempts():
            place = self._places.setdefault(attempt, _Place())
            yield from self._packed(attempt, place, (last or {}).get(attempt))

    def _packed(self, attempt: int, place: _Place, last: int | None) -> Iterator[Batch]:
        pack = _Pack(self._limits)
        for item, size, end in self._items(attempt, place, last):
            if not pack.takes(size, event=isinstance(item, Event)):
                yield self._give_out(attempt, place, pack)
                pack = _Pack(self._limits)
            pack.bytes += size
            if isinstance(item, Event):
                pack.events.append(item)
                pack.end = end
            else:
                pack.trajectories.append(item)
        if pack.events or pack.trajectories:
            yield self._give_out(attempt, place, pack)

    def _give_out(self, attempt: int, place: _Place, pack: _Pack) -> Batch:
        if pack.events:
            place.offset, place.seq = pack.end, pack.events[-1].seq
        return pack.batch(attempt)

    def _items(
        self, attempt: int, place: _Place, last: int | None
    ) -> Iterator[tuple[Event | ShippedTrajectory, int, int]]:
        """Events and, before each, the trajectories that it names; with their sizes and where the event ends."""
        for event, size, end in self._events(attempt, place, last):
            body = event.body
            if isinstance(body, StepFinished | EvalFinished) and body.trajectories:
                for trajectory in self._trajectories(body.trajectories):
                    yield trajectory, _size(trajectory), end
            yield event, size, end

    def _events(self, attempt: int, place: _Place, last: int | None) -> Iterator[tuple[Event, int, int]]:
        path = self._folder.events(attempt)
        if place.damaged or not path.exists():  # an attempt that died before its first event has no log
            return
        try:
            for number, line, end in _lines(path, place):
                if last is not None and number > last:
                    return
                if number > self._cursor.get(attempt, 0):
                    yield parse_line(path, number, line, attempt), len(line), end
                else:
                    place.offset, place.seq = end, number
        except EventLogCorrupt as error:
            place.damaged = True
            self._on_problem(f"{error}; what follows in this attempt is left out")

    def _trajectories(self, name: str) -> Iterator[ShippedTrajectory]:
        try:
            yield from read_shipped(self._folder.inside(name), name, at_once=self._limits.trajectories)
        except (TrajectoriesUnreadable, RunFolderError) as error:
            self._on_problem(f"trajectories are left out: {error}")


def _lines(path: Path, place: _Place) -> Iterator[tuple[int, bytes, int]]:
    """The whole lines behind a place: number, text, and where each ends."""
    number, end = place.seq, place.offset
    with path.open("rb") as file:
        file.seek(end)
        for line in file:
            if not line.endswith(b"\n"):
                return
            number, end = number + 1, end + len(line)
            yield number, line, end


def _size(trajectory: ShippedTrajectory) -> int:
    texts = sum(len(turn.text) + sum(len(call.response) for call in turn.calls) for turn in trajectory.turns)
    arguments = sum(len(value) for turn in trajectory.turns for call in turn.calls for value in call.arguments.values())
    return 500 + len(trajectory.problem) + texts + arguments
