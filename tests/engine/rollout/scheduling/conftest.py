"""A toy world for schedulers. Tests cannot import this file (importlib mode), so what they need are fixtures."""

from collections.abc import Callable
from heapq import heappop, heappush

import pytest

from engine.contract.resources import GrowthScheduler, Scheduling
from engine.rollout.base import EngineCapacity
from engine.rollout.scheduling.base import EngineStats, Size
from engine.rollout.scheduling.lengths import LengthModel
from engine.rollout.scheduling.registry import make_scheduler
from engine.rollout.scheduling.scheduler import Scheduler


@pytest.fixture
def scheduler() -> Callable[..., Scheduler]:
    def make(
        rule: Scheduling | None = None,
        engines: dict[str, tuple[int, int]] | None = None,
        max_running: int = 256,
        lengths: LengthModel | None = None,
    ) -> Scheduler:
        """``engines``: name -> usable KV blocks, tokens a block."""
        made = make_scheduler(rule or GrowthScheduler(), max_running=max_running, lengths=lengths or LengthModel())
        for name, (blocks, tokens) in (engines or {"a": (96, 32)}).items():
            made.open(name, EngineCapacity(blocks + 1, tokens, blocks * tokens))
        return made

    return make


@pytest.fixture
def play() -> Callable[..., dict[str, float]]:
    def run(made: Scheduler, lengths: list[int], engines: list[str]) -> dict[str, float]:
        """Rollouts of one turn of so many tokens, a second each: seconds each engine was busy, and ``all`` it took."""
        longest = 8 + max(lengths)
        length = {made.submit(Size(f"p{n}", 8, longest)): tokens for n, tokens in enumerate(lengths)}
        busy, made_tokens = dict.fromkeys(engines, 0.0), dict.fromkeys(engines, 0)
        running: dict[str, set[int]] = {name: set() for name in engines}
        ends: list[tuple[float, int, str]] = []
        now = 0.0
        while made.queued or ends:
            for placed in made.admit().placed:
                number = placed.number
                engine = made.turn_started(number, 8)
                running[engine].add(number)
                heappush(ends, (now + length[number], number, engine))
            before, (now, number, ended_on) = now, heappop(ends)
            for name, there in running.items():
                busy[name] += (now - before) * bool(there)
                made_tokens[name] += int(now - before) * len(there)
                made.observe(name, EngineStats(len(there), 0, 0.5, 0, made_tokens[name]))
            running[ended_on].remove(number)
            made.turn_ended(number, 8 + length[number])
            made.finish(number, length[number], cut=False)
        return {**busy, "all": now}

    return run
