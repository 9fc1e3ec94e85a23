"""What a controller and its learner ranks say to each other over their connection, and how an error crosses it.

Messages are pickles between our own processes, over a socket pair that nobody else can open. Leaves out the processes:
``rank_process.py`` is the controller's end, ``rank_worker.py`` the rank's.
"""

import io
import pickle
import struct
import traceback
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from engine.learner.base import CheckpointMismatch, Sample
from engine.sink.disk import SinkFull


class LearnerFailed(RuntimeError):
    """A rank died, fell out of step with the others, or raised what callers do not tell apart (its note says what)."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call for every rank. They get all of them in the order of their numbers."""

    number: int
    method: str
    arguments: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as plain values: which of the kept types it is, its arguments, where it was raised."""

    kind: str
    arguments: tuple[Any, ...]
    trace: str

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        kind, arguments = _plain(error)
        return cls(kind, arguments, "".join(traceback.format_exception(error)))

    def error(self, rank: int) -> Exception:
        """The exception again, for the controller to raise. Its note names the rank and holds the rank's trace."""
        error = _KINDS[self.kind](*self.arguments)
        error.add_note(f"raised by learner rank {rank}:\n{self.trace}")
        return error


_KINDS: dict[str, Callable[..., Exception]] = {
    kind.__name__: kind for kind in (SinkFull, CheckpointMismatch, OSError, ValueError, LearnerFailed)
}


def _plain(error: BaseException) -> tuple[str, tuple[Any, ...]]:
    """Kept are the types that callers tell apart; ``SinkFull`` builds its message from two values of its own."""
    if isinstance(error, SinkFull):
        return "SinkFull", (error.folder, error.errno)
    if isinstance(error, OSError) and error.errno is not None:
        return "OSError", (error.errno, error.strerror, error.filename)  # the number brings the subclass back
    for kept in (CheckpointMismatch, OSError, ValueError):
        if isinstance(error, kept):
            return kept.__name__, (str(error),)
    return LearnerFailed.__name__, (f"{type(error).__name__}: {error}",)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a rank made of a call. Only rank 0 sends the value; ``save`` is answered again once it is ``written``."""

    number: int
    value: Any = None
    failure: Failure | None = None
    written: bool = False


def encoded(message: Call | Answer) -> bytes:
    """A message as bytes, samples as arrays: lists of Python numbers take twice as long, most of it in every rank."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(message)
    return buffer.getvalue()


def decoded(data: bytes) -> Any:
    """The message of ``encoded``, whose columns of numbers are arrays now: sequences of the same values."""
    return pickle.loads(data)


class _Pickler(pickle.Pickler):
    def reducer_override(self, item: Any) -> Any:
        return (_sample, _columns(item)) if type(item) is Sample else NotImplemented


_NUMBERS = ("logprobs", "old_logprobs", "reference_logprobs")


def _columns(sample: Sample) -> tuple[Any, ...]:
    numbers = (_packed("d", getattr(sample, name)) for name in _NUMBERS)
    return _packed("q", sample.ids), bytes(sample.trained), sample.advantage, *numbers


def _packed(code: str, values: Sequence[float]) -> bytes:
    return struct.pack(f"{len(values)}{code}", *values)


def _sample(ids: bytes, trained: bytes, advantage: float, *numbers: bytes) -> Sample:
    flags = cast(list[bool], memoryview(trained).cast("?").tolist())
    columns = {name: array("d", column) for name, column in zip(_NUMBERS, numbers, strict=True)}
    return Sample(array("q", ids), flags, advantage=advantage, **columns)
