"""Pools of scripted engines for tests, and a clock that jumps.

``Pools`` opens them and looks whether anything runs on after they are closed. ``in_no_time`` runs a coroutine on a loop
whose time passes only while everybody waits, and then at once: minutes cost nothing, and who waits for nothing that
will ever come is found out.
"""

import asyncio
import random
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Literal, TypeVar

from engine.contract.resources import GrowthScheduler, Scheduling
from engine.rollout.base import EngineCapacity, EngineUnavailable, GenerateRequest, Generation
from engine.rollout.place import Place
from engine.rollout.pool import EnginePool
from engine.rollout.scheduling.base import Size
from engine.rollout.scheduling.lengths import LengthModel
from engine.rollout.scheduling.registry import make_scheduler
from engine.rollout.scripted_engine import ScriptedEngine

T = TypeVar("T")

REQUEST = GenerateRequest([1, 2], max_tokens=8, temperature=1.0, stop_token_ids=(0,))
PAIR = EngineCapacity(kv_blocks=5, block_tokens=16, max_model_tokens=32)
"""Room for two rollouts of 32 tokens."""


def draw(prompt: list[int], version: int, source: random.Random) -> list[int]:
    return [version, source.randrange(1, 100), 0]


def size(task: object) -> Size:
    """Two of them fit an engine with the capacity ``PAIR``."""
    return Size(f"{task}", 2, 32)


async def ask(task: object, place: Place) -> Generation:
    """The shortest rollout: one turn."""
    return await place.generate(REQUEST)


def write_weights(folder: Path, content: bytes) -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(content)
    return folder


class Engine(ScriptedEngine):
    """Knows how many turns it runs, and can fall silent until its next start: its turns never end and never fail.

    ``hung``, it does not answer questions either; ``gone``, it refuses them.
    """

    def __init__(self, name: str, pace: Callable[[GenerateRequest], Awaitable[None]] | None = None, **settings: Any):
        super().__init__(name, settings.pop("policy", draw), pace=self._paced, **settings)
        self.silent: Literal["", "hung", "gone"] = ""
        self.turns = 0
        self.most = 0
        self.asked: list[GenerateRequest] = []
        self.pace = pace

    async def _paced(self, request: GenerateRequest) -> None:
        self.asked.append(request)
        self.turns += 1
        self.most = max(self.most, self.turns)
        try:
            await (self.pace(request) if self.pace else asyncio.sleep(0))
            if self.silent:
                await asyncio.Event().wait()
        finally:
            self.turns -= 1

    async def start(self) -> None:
        self.silent = ""
        await super().start()

    async def metrics(self) -> dict[str, float]:
        await self._asked()
        return await super().metrics()

    async def capacity(self) -> EngineCapacity:
        await self._asked()
        return await super().capacity()

    async def _asked(self) -> None:
        if self.silent == "hung":
            await asyncio.Event().wait()
        if self.silent == "gone":
            raise EngineUnavailable("connection refused")


class Pools:
    """Opens pools; ``close`` closes them all."""

    def __init__(self) -> None:
        self._opened: list[EnginePool] = []

    async def __call__(
        self,
        count: int = 2,
        *,
        pace: Any = None,
        capacity: EngineCapacity = PAIR,
        scheduling: Scheduling | None = None,
        **settings: Any,
    ) -> tuple[EnginePool, list[Engine]]:
        """``count`` engines, e0 and on, each with room for two rollouts unless ``capacity`` says otherwise."""
        engines = [Engine(f"e{n}", pace, capacity=capacity) for n in range(count)]
        scheduler = make_scheduler(scheduling or GrowthScheduler(), max_running=256, lengths=LengthModel())
        pool = EnginePool(engines, scheduler=scheduler, **settings)
        self._opened.append(pool)
        await pool.start()
        return pool, engines

    async def close(self) -> None:
        for pool in self._opened:
            await pool.close()
            assert (pool.scheduler.queued, pool.scheduler.in_flight) == (0, 0), "every place came back"
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not [task for task in others if "engine" in str(task.get_coro())], "nothing runs on"


class _Jumping(selectors.DefaultSelector):
    """Waits for nothing: says how long it would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if timeout is None:
            raise AssertionError("everybody waits for something that will never come")
        self.waited_s += timeout
        return events


class JumpingLoop(asyncio.SelectorEventLoop):
    """Its clock is the sum of what it would have waited."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.waited_s


def in_no_time(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of ``main``, run on a loop whose clock jumps."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(main())
