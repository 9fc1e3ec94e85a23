"""Real vLLM engines for measurements: small, and able to outlast the pools that use them.

Each arm of a comparison has a pool and a scheduler of its own, on the very same engines. Leaves out what is measured.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from engine.contract.resources import Scheduling
from engine.rollout.base import RolloutEngine
from engine.rollout.pool import EnginePool
from engine.rollout.scheduling.lengths import LengthModel
from engine.rollout.scheduling.registry import make_scheduler
from engine.rollout.vllm_engine import VllmEngine

START_TIMEOUT_S = 300.0


class LastingEngine(VllmEngine):
    """Stays up when a pool that uses it closes; ``end`` ends it."""

    _up = False

    async def start(self) -> None:
        if not self._up:
            await super().start()
            self._up = True

    async def close(self) -> None:
        """Nothing: another pool uses it next."""

    async def end(self) -> None:
        await super().close()


@asynccontextmanager
async def lasting_engines(
    count: int,
    *,
    model: Path,
    logs: Path,
    kv_cache_mb: int,
    context_tokens: int,
    max_running: int = 256,
    kind: type[LastingEngine] = LastingEngine,
) -> AsyncIterator[list[LastingEngine]]:
    """Engines that are up; they end with the context."""
    engines = [
        kind(
            f"vllm-{number}",
            model_folder=model,
            runtime_folder=logs,
            kv_cache_mb=kv_cache_mb,
            max_model_tokens=context_tokens,
            max_running=max_running,
            start_timeout_s=START_TIMEOUT_S,
        )
        for number in range(count)
    ]
    async with AsyncExitStack() as stack:
        for engine in engines:
            stack.push_async_callback(engine.end)
        await asyncio.gather(*(engine.start() for engine in engines))
        yield engines


@asynccontextmanager
async def pool_of(
    engines: Sequence[RolloutEngine], scheduling: Scheduling, *, max_running: int, lengths: LengthModel | None = None
) -> AsyncIterator[EnginePool]:
    """A pool with the scheduler that a recipe's ``rollout.scheduler`` would give it."""
    scheduler = make_scheduler(scheduling, max_running=max_running, lengths=lengths or LengthModel())
    pool = EnginePool(engines, scheduler=scheduler, start_timeout_s=START_TIMEOUT_S)
    await pool.start()
    try:
        yield pool
    finally:
        await pool.close()
