"""Rollouts in the pool: order, places, what is done again, and an end to every wait."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from engine.contract.resources import KvCapScheduler, StaticScheduler
from engine.contract.trajectory import StopReason
from engine.rollout.agent import RolloutAborted
from engine.rollout.base import EngineCapacity, EngineUnavailable, GenerateRequest
from engine.rollout.place import Place
from engine.rollout.pool import Failed
from engine.rollout.scheduling.base import NeverFits, Size
from sandbox.contract import SandboxUnavailable
from tests.engine.rollout.pools import REQUEST, Pools, ask, in_no_time, size

PAPER = KvCapScheduler(kind="kv_cap")
STATIC = StaticScheduler(kind="static")


@pytest.fixture
async def make_pool() -> AsyncIterator[Pools]:
    pools = Pools()
    yield pools
    await pools.close()


async def test_results_keep_the_order_of_the_tasks(make_pool: Pools) -> None:
    pool, _ = await make_pool()

    async def one(task: int, place: Place) -> int:
        for _ in range(10 - task % 10):
            await asyncio.sleep(0)
        return task

    assert await pool.run(range(50), one, size=size) == list(range(50))
    assert await pool.run([], one, size=size) == []


async def test_at_most_k_rollouts_in_each_engine_and_refilled_at_once(make_pool: Pools) -> None:
    """K is 2; whenever a rollout begins and others wait, every place is taken."""
    pool, engines = await make_pool(scheduling=PAPER)
    seen = []

    async def one(task: int, place: Place) -> None:
        seen.append([pool.scheduler.figures(engine.name).in_flight for engine in engines])
        for _ in range(task % 5):
            await place.generate(REQUEST)

    await pool.run(range(40), one, size=size)
    assert seen == [[2, 2]] * 40
    assert [engine.most for engine in engines] == [2, 2]


async def test_first_in_first_out(make_pool: Pools) -> None:
    pool, _ = await make_pool(1, scheduling=PAPER)
    started = []

    async def one(task: int, place: Place) -> None:
        started.append(task)
        await asyncio.sleep(0)

    await pool.run(range(20), one, size=size)
    assert started == list(range(20))


async def test_a_rollout_keeps_its_engine(make_pool: Pools) -> None:
    """Its later turns find their prefix there: each engine is asked only for rollouts that began there."""
    pool, engines = await make_pool(scheduling=PAPER)

    async def one(task: int, place: Place) -> None:
        for turn in range(3):
            await place.generate(GenerateRequest([task + 1] * (turn + 1), 8, 1.0, (0,)))

    await pool.run(range(8), one, size=size)
    tasks = [{request.prompt_ids[0] for request in engine.asked} for engine in engines]
    assert tasks[0].isdisjoint(tasks[1])
    assert tasks[0] | tasks[1] == set(range(1, 9))


@pytest.mark.parametrize("error", [SandboxUnavailable("node lost"), RolloutAborted("paused"), EngineUnavailable("500")])
async def test_f097_a_spoiled_rollout_is_done_again_then_left_out(make_pool: Pools, error: Exception) -> None:
    pool, engines = await make_pool(retries=2)
    attempts: dict[int, int] = {}

    async def one(task: int, place: Place) -> str:
        attempts[task] = attempts.get(task, 0) + 1
        if task == 1 or (task == 2 and attempts[2] < 3):
            raise error
        return "done"

    made = await pool.run(range(4), one, size=size)
    assert made == ["done", Failed(f"{type(error).__name__}: {error}"), "done", "done"]
    assert attempts == {0: 1, 1: 3, 2: 3, 3: 1}
    assert [engine.starts for engine in engines] == [1, 1], "an engine that answers is not restarted"


async def test_a_fault_of_the_caller_is_passed_on_and_stops_the_rest(make_pool: Pools, gate) -> None:
    hold = gate()
    pool, _ = await make_pool(pace=hold)
    began, ended = [], []

    async def one(task: int, place: Place):
        began.append(task)
        try:
            if task == 1:
                await hold.reached.wait()
                raise KeyError("a bug")
            return await place.generate(REQUEST)
        finally:
            ended.append(task)

    with pytest.raises(KeyError, match="a bug"):
        await pool.run(range(9), one, size=size)
    assert sorted(ended) == sorted(began), "what ran was stopped"
    assert len(began) < 9, "what waited never began"
    hold.open.set()
    assert len(await pool.run(range(4), ask, size=size)) == 4, "all places came back"


async def test_cancelling_leaves_nothing_running(make_pool: Pools, gate) -> None:
    hold = gate()
    pool, engines = await make_pool(pace=hold)
    work = asyncio.ensure_future(pool.run(range(9), ask, size=size))
    await hold.reached.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert [(await engine.metrics())["running"] for engine in engines] == [0, 0]
    assert (pool.scheduler.queued, pool.scheduler.in_flight) == (0, 0)
    hold.open.set()
    assert len(await pool.run(range(4), ask, size=size)) == 4


async def test_two_batches_share_the_engines(make_pool: Pools) -> None:
    pool, _ = await make_pool()
    first, second = await asyncio.gather(*(pool.run(range(9), ask, size=size) for _ in range(2)))
    assert len(first) == len(second) == 9


async def test_a_rollout_that_never_fits_says_so(make_pool: Pools) -> None:
    pool, _ = await make_pool()
    with pytest.raises(NeverFits, match="kv_cache_mb"):
        await pool.run(range(3), ask, size=lambda task: Size("p", 2, 65 if task else 32))
    assert len(await pool.run(range(3), ask, size=size)) == 3


async def test_lengths_decide_how_many_fit(make_pool: Pools) -> None:
    pool, (engine,) = await make_pool(1, scheduling=PAPER)
    await pool.run(range(9), ask, size=lambda task: Size("p", 2, 16))
    assert engine.most == 4


async def test_what_rollouts_came_to_is_learned_and_what_was_stopped_counts_as_longer(make_pool: Pools) -> None:
    """Those that end by themselves are seen, those that were cut or that leave are known to be at least as long."""
    pool, _ = await make_pool()

    async def one(task: str, place: Place) -> None:
        await place.generate(REQUEST if task != "cut" else GenerateRequest([1, 2], 2, 1.0, ()))
        if task == "leaves":
            place.leave()

    await pool.run(["ends", "cut", "leaves"], one, size=size)
    learned = pool.scheduler.lengths.as_dict()
    assert (sum(learned["ended"]), sum(learned["stopped"])) == (1, 2)


async def test_closing_tells_who_waits(make_pool: Pools, gate) -> None:
    hold = gate()
    pool, _ = await make_pool(pace=hold)
    work = asyncio.ensure_future(pool.run(range(9), ask, size=size))
    await hold.reached.wait()
    await pool.close()
    with pytest.raises(EngineUnavailable, match="closed"):
        await work
    await pool.close()


def test_f083_a_long_tail_leaves_no_engine_idle_before_the_queue_is_empty() -> None:
    """4 engines, 256 rollouts, 10% of them 20 times longer: no place is free while anybody waits."""
    lengths = [400 if random.Random(n).random() < 0.1 else 20 for n in range(256)]
    pair = EngineCapacity(kv_blocks=2 * 26 + 1, block_tokens=16, max_model_tokens=402)

    async def main() -> float:
        pools = Pools()
        pool, engines = await pools(4, pace=lambda request: asyncio.sleep(request.max_tokens / 20), capacity=pair)
        idle = []

        async def one(length: int, place: Place) -> None:
            await place.generate(GenerateRequest([1, 2], length, 1.0, ()))

        async def look() -> None:
            while True:
                await asyncio.sleep(0.25)
                idle.append(sum(2 - engine.turns for engine in engines) / 8 if pool.scheduler.queued else 0.0)

        looking = asyncio.create_task(look())
        await pool.run(lengths, one, size=lambda task: Size("p", 2, 402))
        looking.cancel()
        await asyncio.wait([looking])
        await pools.close()
        return sum(idle) / len(idle)

    assert in_no_time(main) <= 0.15


async def test_whole_rollouts_through_the_pool(converse, call, make_pool: Pools, sandbox) -> None:
    """The turn loop under the pool: a sandbox that fails once costs a retry and leaves one trajectory."""
    pool, _ = await make_pool()
    failures = iter([True, False])

    async def flaky(request):
        if next(failures):
            raise SandboxUnavailable("node lost")
        return sandbox.result(request, stdout="4")

    sandbox.programs["x"] = flaky
    conversation = converse(call("x"), "<answer>4</answer>")
    (made,) = await pool.run(["p"], lambda task, place: conversation.run(problem=task), size=size)
    assert made.stop_reason is StopReason.answered
    assert [record.response for record in made.calls] == ["4"]


@pytest.mark.parametrize("scheduling", [PAPER, STATIC, None], ids=["kv_cap", "static", "growth"])
def test_a_sandbox_outage_leaves_rollouts_out_and_loses_no_place(scheduling) -> None:
    """Every other rollout finds the sandbox away for good: left out with the reason, after as many tries as allowed."""

    async def main() -> None:
        pools = Pools()
        pool, _ = await pools(3, scheduling=scheduling, retries=1)
        tries = dict.fromkeys(range(64), 0)

        async def one(task: int, place: Place) -> int:
            tries[task] += 1
            await place.generate(REQUEST)
            await asyncio.sleep(30)
            if task % 2:
                raise SandboxUnavailable("no node")
            return task

        made = await pool.run(range(64), one, size=size)
        assert made == [Failed("SandboxUnavailable: no node") if task % 2 else task for task in range(64)]
        assert tries == {task: 2 if task % 2 else 1 for task in range(64)}
        await pools.close()

    in_no_time(main)
