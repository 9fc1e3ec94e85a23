"""Who is on an engine, and how much of its KV cache that takes by our own count.

Nobody tells of single tokens. All requests that run on an engine decode in lock step, so an engine has a token
clock: a turn of n tokens that ends says that the clock has moved on by at least n since that turn began, for
everybody who samples there. Sums are kept as (context - clock), which does not change while one samples; what is
held now is then one multiplication. Rollouts that wait for a tool, or have a place but have not begun, are counted
too: at what they have. Leaves out what they will come to need (``forecast.py``).
"""

from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np

from engine.rollout.base import EngineCapacity
from engine.rollout.scheduling.base import EngineStats, Size

_FIRST_SLOTS: Final = 64


@dataclass(slots=True, eq=False)
class Rollout:
    """One rollout that the scheduler knows. ``ledger`` is None while it waits for a place."""

    number: int
    size: Size
    problem: int
    """The problem's index in the length model."""
    context: int
    """Prompt and response tokens at the last beginning or end of a turn."""
    ledger: "Ledger | None" = None
    slot: int = -1
    blocks: int = 0
    """KV blocks at its greatest length, on the engine where it has its place."""
    sampling: bool = False
    begun: bool = False
    since: int = 0
    """The engine's clock when the turn began."""

    @classmethod
    def of(cls, number: int, size: Size, problem: int) -> Self:
        return cls(number, size, problem, size.prompt_tokens + size.response_tokens)

    @property
    def response(self) -> int:
        return self.context - self.size.prompt_tokens


@dataclass(slots=True)
class Columns:
    """One entry for each rollout in flight, in no order: what a forecast reads of all of them at once."""

    response: "np.ndarray[tuple[int], np.dtype[np.float64]]" = field(default_factory=lambda: np.zeros(_FIRST_SLOTS))
    """Response tokens; of those that sample less the clock."""
    pace: "np.ndarray[tuple[int], np.dtype[np.float64]]" = field(default_factory=lambda: np.zeros(_FIRST_SLOTS))
    """1 while it samples, else 0."""
    prompt: "np.ndarray[tuple[int], np.dtype[np.float64]]" = field(default_factory=lambda: np.zeros(_FIRST_SLOTS))
    problem: "np.ndarray[tuple[int], np.dtype[np.int64]]" = field(
        default_factory=lambda: np.zeros(_FIRST_SLOTS, dtype=np.int64)
    )

    def grow(self) -> None:
        self.response = np.concatenate((self.response, np.zeros_like(self.response)))
        self.pace = np.concatenate((self.pace, np.zeros_like(self.pace)))
        self.prompt = np.concatenate((self.prompt, np.zeros_like(self.prompt)))
        self.problem = np.concatenate((self.problem, np.zeros_like(self.problem)))


class Ledger:
    """The book of one engine. Every place is given back once, whether the engine is open or not."""

    __slots__ = (
        "_columns", "_generated", "_marks", "_most_sampling", "_observed_clock", "block_tokens", "capacity_tokens",
        "clock", "idle_tokens", "in_flight", "is_open", "moved", "name", "reserved_blocks", "rollouts", "sampling",
        "unbegun", "usable_blocks",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_open = False
        self.usable_blocks = 0
        self.block_tokens = 1
        self.capacity_tokens = 0
        self.clock = 0
        self.in_flight = 0
        self.sampling = 0
        self.unbegun = 0
        self.idle_tokens = 0
        """Contexts of those that do not sample."""
        self.reserved_blocks = 0
        """What those in flight would take at their greatest lengths."""
        self.moved = 0
        self.rollouts: list[Rollout] = []
        self._marks = 0
        self._columns = Columns()
        self._generated = 0
        self._observed_clock = 0
        self._most_sampling = 0

    def open(self, capacity: EngineCapacity) -> None:
        """The engine serves; vLLM's block 0 is a null block."""
        self.is_open = True
        self.usable_blocks = capacity.kv_blocks - 1
        self.block_tokens = capacity.block_tokens
        self.capacity_tokens = self.usable_blocks * self.block_tokens
        self._generated = 0
        self._observed_clock = self.clock

    @property
    def held_tokens(self) -> int:
        """KV of those that sample."""
        return self._marks + self.sampling * self.clock

    @property
    def taken_tokens(self) -> int:
        """KV of all in flight, if nothing of those that wait for a tool is evicted."""
        return self._marks + self.sampling * self.clock + self.idle_tokens

    @property
    def in_tools(self) -> int:
        return self.in_flight - self.sampling - self.unbegun

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def place(self, rollout: Rollout) -> None:
        """Give it a place: it counts at once."""
        rollout.ledger, rollout.begun, rollout.slot = self, False, self.in_flight
        rollout.blocks = self.blocks_for(rollout.size.max_tokens)
        self.reserved_blocks += rollout.blocks
        self.idle_tokens += rollout.context
        self.unbegun += 1
        columns, slot = self._columns, rollout.slot
        if slot == len(columns.pace):
            columns.grow()
        columns.response[slot] = rollout.context - rollout.size.prompt_tokens
        columns.pace[slot] = 0
        columns.prompt[slot] = rollout.size.prompt_tokens
        columns.problem[slot] = rollout.problem
        self.rollouts.append(rollout)
        self.in_flight += 1

    def begin(self, rollout: Rollout, context: int) -> None:
        """A turn begins, with so many prompt and response tokens."""
        self.idle_tokens -= rollout.context
        if not rollout.begun:
            rollout.begun = True
            self.unbegun -= 1
        clock = self.clock
        rollout.context, rollout.since, rollout.sampling = context, clock, True
        self._marks += context - clock
        self.sampling += 1
        if self.sampling > self._most_sampling:
            self._most_sampling = self.sampling
        self._columns.response[rollout.slot] = context - rollout.size.prompt_tokens - clock
        self._columns.pace[rollout.slot] = 1

    def end(self, rollout: Rollout, context: int) -> None:
        """Its turn ended: whoever samples here has come as far since."""
        reached = rollout.since + context - rollout.context
        if reached > self.clock:
            self.clock = reached
        self._stop(rollout)
        rollout.context = context
        self.idle_tokens += context
        self._columns.response[rollout.slot] = context - rollout.size.prompt_tokens
        self._columns.pace[rollout.slot] = 0

    def release(self, rollout: Rollout) -> None:
        """Give its place back."""
        if rollout.sampling:
            self._stop(rollout)
        else:
            self.idle_tokens -= rollout.context
        if not rollout.begun:
            self.unbegun -= 1
        self.in_flight -= 1
        self.reserved_blocks -= rollout.blocks
        self._vacate(rollout.slot)
        rollout.ledger = None

    def observe(self, stats: EngineStats) -> None:
        """Move the clock by what the engine says it made; it is a lower bound, as no more sampled at any time."""
        made = stats.generated_tokens - self._generated
        if made > 0 and self._most_sampling:
            reached = self._observed_clock + made // max(self._most_sampling, stats.running)
            self.clock = max(self.clock, reached)
        self._generated = stats.generated_tokens
        self._observed_clock = self.clock
        self._most_sampling = self.sampling

    def responses(self) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        """Response tokens of everybody in flight, now."""
        columns, count = self._columns, self.in_flight
        return columns.response[:count] + columns.pace[:count] * self.clock

    def prompts(self) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        return self._columns.prompt[: self.in_flight]

    def problems(self) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        return self._columns.problem[: self.in_flight]

    def _stop(self, rollout: Rollout) -> None:
        self._marks -= rollout.context - rollout.since
        self.sampling -= 1
        rollout.sampling = False

    def _vacate(self, slot: int) -> None:
        """The last one takes the free slot, so that the columns have no holes."""
        last = self.rollouts.pop()
        if last.slot == slot:
            return
        columns = self._columns
        for column in (columns.response, columns.pace, columns.prompt, columns.problem):
            column[slot] = column[last.slot]
        self.rollouts[slot] = last
        last.slot = slot
