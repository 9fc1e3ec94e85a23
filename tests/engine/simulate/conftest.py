"""Engines and rollouts small enough to follow by hand: a step takes a second, a prefilled token a tenth."""

from collections.abc import Callable, Sequence

import pytest

from engine.contract.resources import GrowthScheduler, Scheduling
from engine.rollout.scheduling.base import Size
from engine.rollout.scheduling.lengths import LengthModel
from engine.rollout.scheduling.registry import make_scheduler
from engine.rollout.scheduling.scheduler import Scheduler
from engine.simulate.engine_model import EngineModel
from engine.simulate.workload import SimulatedRollout


@pytest.fixture
def engine() -> Callable[..., EngineModel]:
    def make(kv_tokens: int = 10_000, **changes: float) -> EngineModel:
        plain = {"step_s": 1.0, "step_per_request_s": 0.0, "step_per_kv_token_s": 0.0, "prefill_tokens_per_s": 10.0}
        return EngineModel(kv_tokens, block_tokens=1, **{**plain, **changes})  # type: ignore[arg-type]

    return make


@pytest.fixture
def rollout() -> Callable[..., SimulatedRollout]:
    def make(
        sampled: Sequence[int], tool_s: Sequence[float] = (), *, prompt: int = 10, answer: int = 5, longest: int = 500
    ) -> SimulatedRollout:
        size = Size("problem", prompt, prompt + longest)
        return SimulatedRollout(size, tuple(sampled), (answer,) * len(tool_s), tuple(tool_s))

    return make


@pytest.fixture
def scheduler() -> Callable[..., Scheduler]:
    def make(settings: Scheduling | None = None, max_running: int = 1000) -> Scheduler:
        return make_scheduler(settings or GrowthScheduler(), max_running=max_running, lengths=LengthModel())

    return make
