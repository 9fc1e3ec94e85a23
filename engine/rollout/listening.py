"""Whoever follows a rollout while it goes on: a stream to a person, mostly. Training listens to nobody.

Leaves out what a listener does with what it hears: ``engine.serve``.
"""

from collections.abc import Sequence
from typing import Protocol

from engine.contract.trajectory import ToolCallRecord
from engine.rollout.toolcalls import CallError, ToolCall


class Listener(Protocol):
    """Told from the event loop, in order; must not block."""

    def sampled(self, ids: Sequence[int]) -> None:
        """A piece of a turn, as sampled: it may end within a character, the last one may have the end mark."""

    def called(self, calls: Sequence[ToolCall | CallError]) -> None:
        """A turn's calls are about to run."""

    def answered(self, records: Sequence[ToolCallRecord]) -> None:
        """What came of them, in the order of the calls."""


class Unheard:
    """The listener of a rollout that nobody follows."""

    def sampled(self, ids: Sequence[int]) -> None:
        """See ``Listener``."""

    def called(self, calls: Sequence[ToolCall | CallError]) -> None:
        """See ``Listener``."""

    def answered(self, records: Sequence[ToolCallRecord]) -> None:
        """See ``Listener``."""
