"""Whatever dies, hangs, fails or is cancelled in whatever order: every rollout gets one result, and every place comes
back."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.contract.resources import AimdScheduler, GrowthScheduler, KvCapScheduler, Scheduling, StaticScheduler
from engine.rollout.base import EngineCapacity, EngineUnavailable, GenerateRequest
from engine.rollout.place import Place
from engine.rollout.pool import EnginePool, Failed
from engine.rollout.scheduling.base import Size
from sandbox.contract import SandboxUnavailable
from tests.engine.rollout.pools import Engine, Pools, in_no_time

RULES = (
    StaticScheduler(kind="static"),
    KvCapScheduler(kind="kv_cap"),
    AimdScheduler(kind="aimd"),
    GrowthScheduler(),
)
ROOMY = EngineCapacity(kv_blocks=41, block_tokens=16, max_model_tokens=128)

TROUBLE = st.lists(
    st.tuples(
        st.floats(0, 8),
        st.sampled_from(["die", "die for good", "hung", "gone", "cancel", "another batch"]),
        st.integers(0, 2),
    ),
    max_size=6,
)


async def one(task: int, place: Place) -> int:
    """Some turns with a tool between them; the tool fails now and then."""
    source = random.Random(task)
    ids = [1, 2]
    for _ in range(source.randrange(1, 4)):
        made = await place.generate(GenerateRequest(list(ids), source.randrange(4, 40), 1.0, ()))
        ids = [*ids, *made.ids]
        await asyncio.sleep(source.random())
        if source.random() < 0.1:
            raise SandboxUnavailable("away")
    if source.random() < 0.1:
        place.leave()
    return task


TASKS = range(24)


def size(task: int) -> Size:
    return Size(f"{task // 4}", 2, 128)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
@given(trouble=TROUBLE)
@settings(max_examples=5)
def test_nothing_is_lost_and_everything_ends(rule: Scheduling, trouble: list[tuple[float, str, int]]) -> None:
    in_no_time(lambda: chaos(rule, trouble))


async def chaos(rule: Scheduling, trouble: list[tuple[float, str, int]]) -> None:
    pools = Pools()
    pool, engines = await pools(3, scheduling=rule, capacity=ROOMY, pace=lambda r: asyncio.sleep(r.max_tokens / 16))
    batches = [asyncio.ensure_future(pool.run(TASKS, one, size=size))]
    await asyncio.gather(*(make(pool, engines, batches, *each) for each in trouble))
    outcomes = await asyncio.gather(*batches, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, list):
            assert all(isinstance(each, Failed) or each == task for task, each in zip(TASKS, outcome, strict=True))
        else:
            assert isinstance(outcome, EngineUnavailable | asyncio.CancelledError)
    hopeless = all(not engine.revivable for engine in engines)
    assert hopeless or not any(isinstance(outcome, EngineUnavailable) for outcome in outcomes)
    await pools.close()


async def make(pool: EnginePool, engines: list[Engine], batches: list, at_s: float, what: str, number: int) -> None:
    """One trouble, at its time."""
    await asyncio.sleep(at_s)
    engine = engines[number]
    match what:
        case "die":
            engine.die()
        case "die for good":
            engine.revivable = False
            engine.die()
        case "hung" | "gone":
            engine.silent = what
        case "cancel":
            batches[0].cancel()
        case "another batch":
            batches.append(asyncio.ensure_future(pool.run(TASKS, one, size=size)))
