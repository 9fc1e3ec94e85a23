"""The words of scheduling: what goes into the scheduler and comes out of it.

All lengths are tokens. ``context`` is what an engine holds of a rollout: prompt and response so far. Leaves out the
scheduler (``scheduler.py``) and its rules (``policy.py``).
"""

from dataclasses import dataclass


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
