"""Engines that die, hang, come back, or get other weights under a pool's rollouts."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.contract.resources import KvCapScheduler
from engine.rollout import fleet
from engine.rollout.agent import MixedVersions
from engine.rollout.base import EngineCapacity, EngineUnavailable, GenerateRequest
from engine.rollout.place import Place
from engine.rollout.pool import EnginePool, Failed
from engine.rollout.scheduling.base import Size
from tests.engine.rollout.pools import REQUEST, Engine, Pools, ask, in_no_time, size, write_weights

PAPER = KvCapScheduler(kind="kv_cap")
WIDE = EngineCapacity(kv_blocks=16 * 8 + 1, block_tokens=16, max_model_tokens=128)
"""Room for 16 rollouts of 128 tokens."""


@pytest.fixture
async def make_pool() -> AsyncIterator[Pools]:
    pools = Pools()
    yield pools
    await pools.close()


async def test_f085_an_engine_dies_and_its_turns_are_sampled_again(
    make_pool: Pools, gate, tmp_path, eventually
) -> None:
    """They go to the other one, and it comes back with the present weights."""
    hold = gate()
    pool, engines = await make_pool(pace=hold)
    await pool.load_weights(write_weights(tmp_path / "w", b"1"), 7)
    work = asyncio.ensure_future(pool.run(range(6), ask, size=size))
    await hold.reached.wait()
    engines[0].die()
    hold.open.set()
    made = await asyncio.wait_for(work, 5)
    assert [one.version for one in made] == [7] * 6
    await eventually(lambda: pool.restarts == 1)
    assert (engines[0].starts, engines[1].starts) == (2, 1)
    back = await pool.run(range(8), ask, size=size)
    assert [one.version for one in back] == [7] * 8
    assert (await engines[0].generate(REQUEST)).version == 7


async def test_a_rollout_keeps_the_turns_before_the_one_that_was_lost(make_pool: Pools) -> None:
    """The engine dies in the third turn: it alone is asked for again, on the other engine, from the same ids."""
    pool, engines = await make_pool(scheduling=PAPER)
    engines[0].revivable = engines[1].revivable = False
    began = []

    async def one(task: int, place: Place) -> list[int]:
        began.append(task)
        ids = [1, 2]
        for turn in range(4):
            if turn == 2:
                next(engine for engine in engines if engine.asked).die()
            ids += (await place.generate(GenerateRequest(tuple(ids), 8, 1.0, (0,)))).ids
        return ids

    (ids,) = await pool.run([0], one, size=size)
    assert began == [0], "the attempt is not begun anew"
    assert sorted(len(engine.asked) for engine in engines) == [2, 2]
    assert [len(r.prompt_ids) for engine in engines for r in engine.asked if r.prompt_ids != (1, 2)] == [3, 4, 5]
    assert len(ids) == 6


async def test_an_engine_that_dies_while_a_tool_runs_costs_no_retry(make_pool: Pools, monkeypatch, eventually) -> None:
    monkeypatch.setattr(fleet, "BEAT_S", 0.01)
    pool, engines = await make_pool(retries=0, scheduling=PAPER)
    began = []

    async def down(engine: Engine) -> bool:
        return not (await pool.load())[engine.name]["serving"]

    async def one(task: int, place: Place) -> int:
        began.append(task)
        await place.generate(REQUEST)
        engine = next(engine for engine in engines if engine.asked)
        engine.revivable = False
        engine.die()
        await eventually(lambda: down(engine))
        return (await place.generate(REQUEST)).version

    assert await pool.run([0], one, size=size) == [0]
    assert began == [0]


async def test_a_rollout_may_stop_waiting_for_another_engine(make_pool: Pools, gate) -> None:
    """Its engine dies and is started again for long; what it returns meanwhile is its result."""
    pool, engines = await make_pool(1)
    start, starting = engines[0].start, gate()

    async def slow_start() -> None:
        await starting(REQUEST)
        await start()

    engines[0].start = slow_start

    async def one(task: int, place: Place) -> str:
        await place.generate(REQUEST)
        engines[0].die()
        turn = asyncio.ensure_future(place.generate(REQUEST))
        await starting.reached.wait()
        turn.cancel()
        await asyncio.wait([turn])
        return "stopped"

    assert await asyncio.wait_for(pool.run([0], one, size=size), 5) == ["stopped"]
    assert (pool.scheduler.queued, pool.scheduler.in_flight) == (0, 0)
    starting.open.set()


async def test_turns_of_two_versions_are_the_turn_loops_to_refuse(make_pool: Pools, tmp_path) -> None:
    """The pool gives what the engine sampled; an attempt that the turn loop refuses begins again."""
    pool, _ = await make_pool()
    attempts = []

    async def one(task: int, place: Place) -> list[int]:
        attempts.append(task)
        versions = [(await place.generate(REQUEST)).version]
        if len(attempts) == 1:
            await pool.load_weights(write_weights(tmp_path / "w", b"1"), 7)
        versions.append((await place.generate(REQUEST)).version)
        if len(set(versions)) > 1:
            raise MixedVersions(f"{versions}")
        return versions

    assert await pool.run([0], one, size=size) == [[7, 7]]
    assert attempts == [0, 0]


async def test_an_engine_that_kills_itself_on_one_rollout_does_not_loop(make_pool: Pools) -> None:
    pool, engines = await make_pool(1, retries=2)

    async def one(task: int, place: Place) -> int:
        if task == 3:
            request = GenerateRequest([9, 9], 8, 1.0, (0,))
            return (await place.generate(request)).version
        return (await place.generate(REQUEST)).version

    async def poison(request: GenerateRequest) -> None:
        if list(request.prompt_ids) == [9, 9]:
            engines[0].die()
        await asyncio.sleep(0)

    engines[0].pace = poison
    made = await asyncio.wait_for(pool.run(range(6), one, size=size), 5)
    assert isinstance(made[3], Failed)
    assert pool.restarts == 3


async def test_f085_with_every_engine_lost_nobody_waits(make_pool: Pools, gate) -> None:
    hold = gate()
    pool, engines = await make_pool(pace=hold)
    work = asyncio.ensure_future(pool.run(range(6), ask, size=size))
    await hold.reached.wait()
    for engine in engines:
        engine.revivable = False
        engine.die()
    with pytest.raises(EngineUnavailable, match="does not start"):
        await asyncio.wait_for(work, 5)
    with pytest.raises(EngineUnavailable, match="no rollout engine is left"):
        await pool.run([1], ask, size=size)
    with pytest.raises(EngineUnavailable, match="no rollout engine is left"):
        await pool.load_weights(Path("unused"), 1)


@pytest.mark.parametrize(("silent", "within_s"), [("gone", 3), ("hung", 30)])
def test_f085_an_engine_that_fails_no_turn_is_found_by_its_heartbeat(silent: str, within_s: float) -> None:
    """Its turns never end. The other engine samples them within the 30 seconds that the case allows."""

    async def main() -> float:
        pools = Pools()
        pool, engines = await pools(2, scheduling=PAPER)
        engines[0].revivable = False

        engines[0].silent = silent
        made = await pool.run(range(4), ask, size=size)
        assert [one.finish for one in made] == ["stop"] * 4
        took = asyncio.get_running_loop().time()
        await pools.close()
        return took

    assert in_no_time(main) < within_s


async def test_nobody_asks_engines_while_nothing_is_under_way(make_pool: Pools) -> None:
    pool, engines = await make_pool(1)
    asked = []
    metrics = engines[0].metrics

    async def counted() -> dict[str, float]:
        asked.append(1)
        return await metrics()

    engines[0].metrics = counted
    await asyncio.sleep(0.05)
    assert asked == []
    await pool.run(range(4), lambda task, place: asyncio.sleep(0.01), size=size)
    assert asked == [1]


def test_what_engines_say_reaches_the_scheduler_about_once_a_second() -> None:
    async def main() -> int:
        pools = Pools()
        pool, _ = await pools(2, pace=lambda request: asyncio.sleep(60))
        heard = []
        observe = pool.scheduler.observe
        pool.scheduler.observe = lambda engine, stats: (heard.append((engine, stats.running)), observe(engine, stats))
        await pool.run(range(2), ask, size=size)
        await pools.close()
        assert set(heard[4:-4]) == {("e0", 1), ("e1", 1)}
        return len(heard)

    assert in_no_time(main) == pytest.approx(2 * 60, abs=4)


@pytest.mark.parametrize("scheduling", [PAPER, None], ids=["kv_cap", "growth"])
def test_64_in_flight_and_an_engine_is_killed(scheduling) -> None:
    """4 engines of 16 places; one dies for good amid 256 rollouts of some turns each. Nothing is lost, and the others
    take no more than 1.3 times what they would if no place were ever free."""
    source = random.Random(7)
    turns = [[source.choice((4, 8, 24)) for _ in range(source.randrange(1, 5))] for _ in range(256)]
    death_s, in_flight = 20.0, []

    async def main() -> float:
        pools = Pools()
        pace = {"pace": lambda request: asyncio.sleep(request.max_tokens / 4), "capacity": WIDE}
        pool, engines = await pools(4, scheduling=scheduling, **pace)

        async def one(task: int, place: Place) -> int:
            ids = [1, 2]
            for tokens in turns[task]:
                ids += (await place.generate(GenerateRequest(list(ids), tokens, 1.0, ()))).ids
                await asyncio.sleep(1)
            return task

        def kill() -> None:
            in_flight.append(pool.scheduler.in_flight)
            engines[1].revivable = False
            engines[1].die()

        asyncio.get_running_loop().call_later(death_s, kill)
        made = await pool.run(range(256), one, size=lambda task: Size(f"{task // 16}", 2, 128))
        assert made == list(range(256))
        took = asyncio.get_running_loop().time()
        await pools.close()
        return took

    took = in_no_time(main)
    work = sum(tokens / 4 + 1 for each in turns for tokens in each)
    assert in_flight[0] >= 60
    assert death_s < took <= 1.3 * (death_s + (work - death_s * 64) / 48)


async def test_its_load_is_what_the_engine_says_and_what_the_scheduler_knows(make_pool, gate) -> None:
    hold = gate()
    pool, engines = await make_pool(pace=hold, scheduling=PAPER)
    work = asyncio.ensure_future(pool.run(range(9), ask, size=size))
    await hold.reached.wait()
    load = await pool.load()
    assert set(load) == {"e0", "e1"}
    expected = {
        "serving": 1,
        "running": 2,
        "in_flight": 2,
        "in_tools": 0,
        "queued": 5,
        "capacity_tokens": 64,
        "moved": 0,
    }
    assert expected.items() <= load["e0"].items()
    engines[0].die()
    left = (await pool.load())["e0"]
    assert "running" not in left, "one that does not answer says nothing"
    hold.open.set()
    await work


async def test_what_an_engine_computes_again_is_counted(make_pool) -> None:
    """Of what it computed, new were: the prompt once, as all share it, and each rollout's 4 tokens from a tool."""
    pool, (engine,) = await make_pool(1, scheduling=PAPER)

    async def one(task: int, place: Place) -> None:
        ids = [1, 2, *(await place.generate(REQUEST)).ids]
        await place.generate(GenerateRequest([*ids, 5, 5, 5, 5], 8, 1.0, (0,)))

    await pool.run(range(3), one, size=size)
    metrics = engine.metrics

    async def told() -> dict[str, float]:
        return {**await metrics(), "prefix_queries": 100.0, "prefix_hits": 60.0}

    engine.metrics = told
    assert (await pool.load())["e0"]["reprefilled_tokens"] == (100 - 60) - (2 + 3 * 4)


async def test_f085_a_start_that_hangs_is_given_up(make_pool: Pools, monkeypatch) -> None:
    monkeypatch.setattr(fleet, "GRACE_S", 0.05)
    pool, engines = await make_pool(1, start_timeout_s=0.05)
    engines[0].start = asyncio.Event().wait
    engines[0].die()
    with pytest.raises(EngineUnavailable, match="timed out"):
        await asyncio.wait_for(pool.run([1], ask, size=size), 5)


async def test_one_engine_lost_for_good_leaves_the_others_working(make_pool: Pools) -> None:
    pool, engines = await make_pool()
    engines[0].revivable = False
    engines[0].die()
    made = await asyncio.wait_for(pool.run(range(6), ask, size=size), 5)
    assert [one.finish for one in made] == ["stop"] * 6


async def test_a_start_that_fails_leaves_no_engine() -> None:
    engines = [Engine("e0"), Engine("e1")]
    engines[1].revivable = False
    pool = EnginePool(engines)
    with pytest.raises(EngineUnavailable, match="e1 does not start"):
        await pool.start()
    with pytest.raises(EngineUnavailable):
        await engines[0].generate(REQUEST)


async def test_weights_reach_every_engine(make_pool: Pools, tmp_path) -> None:
    pool, engines = await make_pool()
    await pool.load_weights(write_weights(tmp_path / "w", b"1"), 3)
    assert [(await engine.generate(REQUEST)).version for engine in engines] == [3, 3]


async def test_an_engine_that_fails_to_load_is_restarted_before_it_serves(make_pool: Pools, tmp_path) -> None:
    pool, engines = await make_pool()
    broken = engines[0].load_weights

    async def once(folder, version):
        engines[0].load_weights = broken
        engines[0].die()
        raise EngineUnavailable("reload failed")

    engines[0].load_weights = once
    await pool.load_weights(write_weights(tmp_path / "w", b"1"), 3)
    made = await pool.run(range(12), ask, size=size)
    assert {one.version for one in made} == {3}
    assert engines[0].starts == 2


async def test_an_engine_is_believed_only_what_it_reports(make_pool: Pools, tmp_path) -> None:
    """It says that it has loaded and serves something else: started again before anybody samples from it."""
    pool, engines = await make_pool()
    load = engines[0].load_weights

    async def nothing(folder, version):
        engines[0].load_weights = load

    engines[0].load_weights = nothing
    await pool.load_weights(write_weights(tmp_path / "w", b"1"), 3)
    made = await pool.run(range(12), ask, size=size)
    assert {one.version for one in made} == {3}
    assert engines[0].starts == 2


async def test_weights_that_no_engine_can_load_end_in_an_error(make_pool: Pools, tmp_path) -> None:
    pool, _ = await make_pool()
    with pytest.raises(EngineUnavailable, match="no weights in"):
        await asyncio.wait_for(pool.load_weights(tmp_path / "missing", 3), 5)


async def test_weights_that_change_while_an_engine_restarts(make_pool: Pools, tmp_path, eventually) -> None:
    """It comes up with version 1 in hand when 2 is published: it serves nothing but 2."""
    pool, engines = await make_pool()
    await pool.load_weights(write_weights(tmp_path / "1", b"1"), 1)
    loading, go_on = asyncio.Event(), asyncio.Event()
    load = engines[0].load_weights

    async def slow(folder, version):
        loading.set()
        await go_on.wait()
        await load(folder, version)

    engines[0].load_weights = slow
    engines[0].die()
    await pool.run(range(4), ask, size=size)
    await loading.wait()
    await pool.load_weights(write_weights(tmp_path / "2", b"2"), 2)
    go_on.set()
    made = [one for _ in range(3) for one in await pool.run(range(8), ask, size=size)]
    assert {one.version for one in made} == {2}
    await eventually(lambda: pool.restarts == 1)
    assert (await engines[0].generate(REQUEST)).version == 2


async def test_names_must_differ() -> None:
    with pytest.raises(ValueError, match="names of their own"):
        EnginePool([Engine("a"), Engine("a")])
