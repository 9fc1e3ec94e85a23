"""The words of scheduling, and the seam between the scheduler and the rule that admits.

All lengths are tokens. ``context`` is what an engine holds of a rollout: prompt and response so far. Leaves out the
scheduler (``scheduler.py``) and the rules (one file each).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from engine.rollout.scheduling.forecast import Forecast
    from engine.rollout.scheduling.ledger import Ledger, Rollout
    from engine.rollout.scheduling.waiting import Waiting


class NeverFits(Exception):
    """A rollout longer than any open engine could ever hold: a setting is wrong, waiting would not help."""


@dataclass(frozen=True, slots=True)
class Size:
    """What is known of a rollout before it runs. Those of one ``problem`` are of similar length."""

    problem: str
    prompt_tokens: int
    max_tokens: int
    """Longest prompt and response together."""
    response_tokens: int = 0
    """Of a rollout that goes on: what it has already."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Rollout ``number`` may start, on ``engine``."""

    number: int
    engine: str


@dataclass(frozen=True, slots=True)
class Admitted:
    """What ``Scheduler.admit`` decided: who may start, and who can never."""

    placed: tuple[Placement, ...] = ()
    refused: tuple[tuple[int, NeverFits], ...] = ()


@dataclass(frozen=True, slots=True)
class EngineStats:
    """What an engine says of itself; always a little old. Counters are since its start."""

    running: int
    waiting: int
    kv_usage: float
    """Share of the KV cache that live requests hold, 0 to 1."""
    preemptions: int
    generated_tokens: int


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """What the scheduler knows of an engine at a moment."""

    in_flight: int
    """Rollouts that have a place: sampling or waiting for a tool."""
    in_tools: int
    """Of those, waiting for a tool: their KV cache may be evicted."""
    held_tokens: int
    """KV of those that sample, by the scheduler's own count."""
    expected_tokens: int
    """The most that those in flight are expected to hold at one time from now on."""
    capacity_tokens: int
    moved: int
    """Rollouts that came here from another engine between two turns, ever."""


class AdmissionPolicy(Protocol):
    """The rule: in which order rollouts wait, and which engine has room for the next one. One object a scheduler.

    ``engines`` are the open ones, at least one. The scheduler keeps the books; a rule only reads them.
    """

    waiting: "Waiting"

    def engines_changed(self, engines: "Sequence[Ledger]") -> None:
        """Other engines are open than before, or with other capacities; perhaps none."""

    def prepare(self, engines: "Sequence[Ledger]", forecast: "Forecast") -> None:
        """Something has changed, and decisions follow: put ``waiting`` in order."""

    def place(self, rollout: "Rollout", engines: "Sequence[Ledger]", forecast: "Forecast") -> "Ledger | None":
        """The engine for a rollout that is next; None: it waits on. What is returned is done."""
        ...

    def freed(self, ledger: "Ledger", rollout: "Rollout", *, finished: bool) -> None:
        """``rollout`` gave its place in ``ledger`` back."""

    def observe(self, ledger: "Ledger", stats: EngineStats) -> None:
        """An engine tells how it is."""

    def stay_or_move(self, rollout: "Rollout", engines: "Sequence[Ledger]") -> "Ledger":
        """Where a rollout's next turn goes: where its prefix is, or another engine if that is worth its re-prefill.

        ``rollout.ledger`` is where it is now.
        """
        ...
