"""Admission: how many rollouts an engine may hold at once, and which engine gets the next one (paper, 3).

An engine that takes more rollouts than its KV cache can hold to the end preempts some and computes them
again. So each admitted rollout reserves blocks for its longest possible length, and the next waits in one
queue for all engines until blocks come free. Pure bookkeeping: no clock, no engine, no task, so that a
simulation can drive the same object. Leaves out the queue and running things (``pool.py``).
"""

from dataclasses import dataclass
from typing import Protocol

from engine.rollout.base import EngineCapacity


class NeverFits(Exception):
    """A rollout longer than any open engine could ever hold: a setting is wrong, waiting would not help."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A place in one engine; given back exactly once."""

    number: int
    engine: str
    blocks: int


class AdmissionPolicy(Protocol):
    """Decides where the next rollout goes, or that it waits."""

    def open(self, engine: str, capacity: EngineCapacity) -> None:
        """From now on ``engine`` may be given rollouts; also after it was closed, then with new capacity."""

    def close(self, engine: str) -> None:
        """No new rollouts for ``engine``. What is reserved stays so until it is released."""

    def reserve(self, max_tokens: int) -> Reservation | None:
        """A place for a rollout of at most ``max_tokens``, or None while there is none.

        Raises ``NeverFits`` if engines are open and none of them could hold it even when empty.
        """
        ...

    def release(self, reservation: Reservation) -> None:
        """Give a place back. Raises ``ValueError`` for one that is not held."""


@dataclass(slots=True)
class _Engine:
    usable_blocks: int
    block_tokens: int
    running: int = 0
    reserved_blocks: int = 0
    is_open: bool = True

    def blocks_for(self, max_tokens: int) -> int:
        return -(-max_tokens // self.block_tokens)

    @property
    def free_blocks(self) -> int:
        return self.usable_blocks - self.reserved_blocks


class KvCap:
    """The paper's rule: K rollouts an engine, as many as its KV cache holds at full length.

    For equal lengths K = min(max_running, (kv_blocks - 1) // ceil(max_tokens / block_tokens)); block 0 is
    vLLM's null block. Lengths may differ: what is counted is blocks. The engine with the most free blocks
    gets the next rollout.
    """

    def __init__(self, max_running: int) -> None:
        if max_running < 1:
            raise ValueError(f"max_running must be at least 1, is {max_running}")
        self._max_running = max_running
        self._engines: dict[str, _Engine] = {}
        self._held: dict[int, Reservation] = {}
        self._next = 0

    def open(self, engine: str, capacity: EngineCapacity) -> None:
        known = self._engines.setdefault(engine, _Engine(0, 1))
        known.usable_blocks = capacity.kv_blocks - 1
        known.block_tokens = capacity.block_tokens
        known.is_open = True

    def close(self, engine: str) -> None:
        self._engines[engine].is_open = False

    def reserve(self, max_tokens: int) -> Reservation | None:
        opened = {name: engine for name, engine in self._engines.items() if engine.is_open}
        if opened and all(e.blocks_for(max_tokens) > e.usable_blocks for e in opened.values()):
            raise NeverFits(self._explain(max_tokens, opened))
        fitting = [name for name, engine in opened.items() if self._fits(engine, max_tokens)]
        if not fitting:
            return None
        name = max(fitting, key=lambda one: (opened[one].free_blocks, -opened[one].running))
        return self._take(name, opened[name].blocks_for(max_tokens))

    def release(self, reservation: Reservation) -> None:
        if self._held.pop(reservation.number, None) is None:
            raise ValueError(f"{reservation} is not held")
        engine = self._engines[reservation.engine]
        engine.running -= 1
        engine.reserved_blocks -= reservation.blocks

    def running(self, engine: str) -> int:
        """Rollouts that hold a place in ``engine``."""
        return self._engines[engine].running

    def _fits(self, engine: _Engine, max_tokens: int) -> bool:
        return engine.running < self._max_running and engine.blocks_for(max_tokens) <= engine.free_blocks

    def _take(self, name: str, blocks: int) -> Reservation:
        self._next += 1
        reservation = Reservation(self._next, name, blocks)
        self._held[reservation.number] = reservation
        self._engines[name].running += 1
        self._engines[name].reserved_blocks += blocks
        return reservation

    def _explain(self, max_tokens: int, opened: dict[str, _Engine]) -> str:
        held = ", ".join(f"{name}: {e.usable_blocks * e.block_tokens}" for name, e in opened.items())
        return f"a rollout of {max_tokens} tokens fits no engine's KV cache (tokens: {held}); raise kv_cache_mb"
