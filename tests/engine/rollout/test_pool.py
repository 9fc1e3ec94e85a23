"""The pool over scripted engines: order, places, engines that die, weights, an end to every wait."""

import asyncio
import random
from pathlib import Path

import pytest

from engine.contract.trajectory import StopReason
from engine.rollout import pool as pool_module
from engine.rollout.agent import RolloutAborted
from engine.rollout.base import EngineCapacity, EngineUnavailable, GenerateRequest
from engine.rollout.pool import EnginePool, Failed
from engine.rollout.scheduler import KvCap, NeverFits
from engine.rollout.scripted_engine import ScriptedEngine
from sandbox.contract import SandboxUnavailable

REQUEST = GenerateRequest([1, 2], max_tokens=8, temperature=1.0, stop_token_ids=(0,))
PAIR = EngineCapacity(kv_blocks=5, block_tokens=16, max_model_tokens=32)
"""Room for two rollouts of 32 tokens."""


def draw(prompt: list[int], version: int, source: random.Random) -> list[int]:
    return [version, source.randrange(1, 100), 0]


@pytest.fixture
async def make_pool():
    pools = []

    async def make(count: int = 2, **settings) -> tuple[EnginePool, list[ScriptedEngine]]:
        pace = settings.pop("pace", None)
        engines = [
            ScriptedEngine(f"e{n}", draw, capacity=PAIR, **({"pace": pace} if pace else {})) for n in range(count)
        ]
        made = EnginePool(engines, **settings)
        pools.append(made)
        await made.start()
        return made, engines

    yield make
    for made in pools:
        await made.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not [task for task in others if "engine" in str(task.get_coro())], "nothing runs on"


async def ask(task, engine):
    return await engine.generate(REQUEST)


def write_weights(folder: Path, content: bytes) -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(content)
    return folder


async def test_results_keep_the_order_of_the_tasks(make_pool) -> None:
    pool, _ = await make_pool()

    async def one(task: int, engine) -> int:
        for _ in range(10 - task % 10):
            await asyncio.sleep(0)
        return task

    assert await pool.run(range(50), one) == list(range(50))


async def test_at_most_k_rollouts_in_each_engine_and_refilled_at_once(make_pool) -> None:
    """K is 2; whenever a rollout begins and others wait, every place is taken."""
    places = KvCap(256)
    pool, _ = await make_pool(admission=places)
    running: dict[str, int] = {"e0": 0, "e1": 0}
    seen = []

    async def one(task: int, engine) -> None:
        running[engine.name] += 1
        assert running[engine.name] <= 2
        seen.append((places.running("e0"), places.running("e1")))
        for _ in range(task % 5):
            await asyncio.sleep(0)
        running[engine.name] -= 1

    await pool.run(range(40), one)
    assert seen == [(2, 2)] * 40


async def test_first_in_first_out(make_pool) -> None:
    pool, _ = await make_pool(1)
    started = []

    async def one(task: int, engine) -> None:
        started.append(task)
        await asyncio.sleep(0)

    await pool.run(range(20), one)
    assert started == list(range(20))


async def test_a_rollout_keeps_its_engine(make_pool) -> None:
    pool, _ = await make_pool()

    async def one(task: int, engine) -> set[str]:
        names = set()
        for _ in range(3):
            await engine.generate(REQUEST)
            names.add(engine.name)
        return names

    assert all(len(names) == 1 for names in await pool.run(range(8), one))


async def test_f085_an_engine_dies_and_its_rollouts_are_done_again(make_pool, gate, tmp_path, eventually) -> None:
    """Its rollouts go to the other one, and it comes back with the present weights."""
    hold = gate()
    pool, engines = await make_pool(pace=hold)
    await pool.load_weights(write_weights(tmp_path / "w", b"1"), 7)
    work = asyncio.ensure_future(pool.run(range(6), ask))
    await hold.reached.wait()
    engines[0].die()
    hold.open.set()
    made = await asyncio.wait_for(work, 5)
    assert [one.version for one in made] == [7] * 6
    await eventually(lambda: pool.restarts == 1)
    assert (engines[0].starts, engines[1].starts) == (2, 1)
    back = await pool.run(range(8), ask)
    assert [one.version for one in back] == [7] * 8
    assert (await engines[0].generate(REQUEST)).version == 7


@pytest.mark.parametrize("error", [SandboxUnavailable("node lost"), RolloutAborted("paused"), EngineUnavailable("500")])
async def test_f097_a_spoiled_rollout_is_done_again_then_left_out(make_pool, error) -> None:
    pool, engines = await make_pool(retries=2)
    attempts: dict[int, int] = {}

    async def one(task: int, engine) -> str:
        attempts[task] = attempts.get(task, 0) + 1
        if task == 1 or (task == 2 and attempts[2] < 3):
            raise error
        return "done"

    made = await pool.run(range(4), one)
    assert made == ["done", Failed(f"{type(error).__name__}: {error}"), "done", "done"]
    assert attempts == {0: 1, 1: 3, 2: 3, 3: 1}
    assert [engine.starts for engine in engines] == [1, 1], "an engine that answers is not restarted"


async def test_an_engine_that_kills_itself_on_one_rollout_does_not_loop(make_pool) -> None:
    pool, _ = await make_pool(1, retries=2)

    async def one(task: int, engine) -> int:
        if task == 3:
            engine.die()
        return (await engine.generate(REQUEST)).version

    made = await asyncio.wait_for(pool.run(range(6), one), 5)
    assert isinstance(made[3], Failed)
    assert pool.restarts == 3
    assert sum(isinstance(result, Failed) for result in made) >= 1


async def test_f085_with_every_engine_lost_nobody_waits(make_pool, gate) -> None:
    hold = gate()
    pool, engines = await make_pool(pace=hold)
    work = asyncio.ensure_future(pool.run(range(6), ask))
    await hold.reached.wait()
    for engine in engines:
        engine.revivable = False
        engine.die()
    with pytest.raises(EngineUnavailable, match="does not start"):
        await asyncio.wait_for(work, 5)
    with pytest.raises(EngineUnavailable, match="no rollout engine is left"):
        await pool.run([1], ask)
    with pytest.raises(EngineUnavailable, match="no rollout engine is left"):
        await pool.load_weights(Path("unused"), 1)


async def test_f085_a_start_that_hangs_is_given_up(make_pool, monkeypatch) -> None:
    monkeypatch.setattr(pool_module, "GRACE_S", 0.05)
    pool, engines = await make_pool(1, start_timeout_s=0.05)
    engines[0].start = asyncio.Event().wait
    engines[0].die()
    with pytest.raises(EngineUnavailable, match="timed out"):
        await asyncio.wait_for(pool.run([1], ask), 5)


async def test_one_engine_lost_for_good_leaves_the_others_working(make_pool) -> None:
    pool, engines = await make_pool()
    engines[0].revivable = False
    engines[0].die()
    made = await asyncio.wait_for(pool.run(range(6), ask), 5)
    assert [one.finish for one in made] == ["stop"] * 6


async def test_a_start_that_fails_leaves_no_engine() -> None:
    engines = [ScriptedEngine("e0", draw), ScriptedEngine("e1", draw)]
    engines[1].revivable = False
    pool = EnginePool(engines)
    with pytest.raises(EngineUnavailable, match="e1 does not start"):
        await pool.start()
    with pytest.raises(EngineUnavailable):
        await engines[0].generate(REQUEST)


async def test_a_fault_of_the_caller_is_passed_on_and_stops_the_rest(make_pool, gate) -> None:
    hold = gate()
    pool, _ = await make_pool(pace=hold)
    began, ended = [], []

    async def one(task: int, engine):
        began.append(task)
        try:
            if task == 1:
                await hold.reached.wait()
                raise KeyError("a bug")
            return await engine.generate(REQUEST)
        finally:
            ended.append(task)

    with pytest.raises(KeyError, match="a bug"):
        await pool.run(range(9), one)
    assert sorted(ended) == sorted(began), "what ran was stopped"
    assert len(began) < 9, "what waited never began"
    hold.open.set()
    assert len(await pool.run(range(4), ask)) == 4, "all places came back"


async def test_cancelling_leaves_nothing_running(make_pool, gate) -> None:
    hold = gate()
    pool, engines = await make_pool(pace=hold)
    work = asyncio.ensure_future(pool.run(range(9), ask))
    await hold.reached.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert [(await engine.metrics())["running"] for engine in engines] == [0, 0]
    hold.open.set()
    assert len(await pool.run(range(4), ask)) == 4


async def test_two_batches_share_the_engines(make_pool) -> None:
    pool, _ = await make_pool()
    first, second = await asyncio.gather(pool.run(range(9), ask), pool.run(range(9), ask))
    assert len(first) == len(second) == 9


async def test_a_rollout_that_never_fits_says_so(make_pool) -> None:
    pool, _ = await make_pool()
    with pytest.raises(NeverFits, match="kv_cache_mb"):
        await pool.run([1], ask, max_tokens=65)


async def test_lengths_decide_how_many_fit(make_pool) -> None:
    pool, _ = await make_pool(1)
    running = peak = 0

    async def one(task: int, engine) -> None:
        nonlocal running, peak
        running, peak = running + 1, max(peak, running + 1)
        await asyncio.sleep(0)
        running -= 1

    await pool.run(range(9), one, max_tokens=16)
    assert peak == 4


async def test_weights_reach_every_engine(make_pool, tmp_path) -> None:
    pool, engines = await make_pool()
    await pool.load_weights(write_weights(tmp_path / "w", b"1"), 3)
    assert [(await engine.generate(REQUEST)).version for engine in engines] == [3, 3]


async def test_an_engine_that_fails_to_load_is_restarted_before_it_serves(make_pool, tmp_path) -> None:
    pool, engines = await make_pool()
    broken = engines[0].load_weights

    async def once(folder, version):
        engines[0].load_weights = broken
        engines[0].die()
        raise EngineUnavailable("reload failed")

    engines[0].load_weights = once
    await pool.load_weights(write_weights(tmp_path / "w", b"1"), 3)
    made = await pool.run(range(12), ask)
    assert {one.version for one in made} == {3}
    assert engines[0].starts == 2


async def test_an_engine_is_believed_only_what_it_reports(make_pool, tmp_path) -> None:
    """It says that it has loaded and serves something else: started again before anybody samples from it."""
    pool, engines = await make_pool()
    load = engines[0].load_weights

    async def nothing(folder, version):
        engines[0].load_weights = load

    engines[0].load_weights = nothing
    await pool.load_weights(write_weights(tmp_path / "w", b"1"), 3)
    made = await pool.run(range(12), ask)
    assert {one.version for one in made} == {3}
    assert engines[0].starts == 2


async def test_weights_that_no_engine_can_load_end_in_an_error(make_pool, tmp_path) -> None:
    pool, _ = await make_pool()
    with pytest.raises(EngineUnavailable, match="no weights in"):
        await asyncio.wait_for(pool.load_weights(tmp_path / "missing", 3), 5)


async def test_weights_that_change_while_an_engine_restarts(make_pool, tmp_path, eventually) -> None:
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
    await pool.run(range(4), ask)
    await loading.wait()
    await pool.load_weights(write_weights(tmp_path / "2", b"2"), 2)
    go_on.set()
    made = [one for _ in range(3) for one in await pool.run(range(8), ask)]
    assert {one.version for one in made} == {2}
    await eventually(lambda: pool.restarts == 1)
    assert (await engines[0].generate(REQUEST)).version == 2


async def test_metrics_leave_out_an_engine_that_is_down(make_pool) -> None:
    pool, engines = await make_pool()
    assert set(await pool.metrics()) == {"e0", "e1"}
    engines[0].die()
    assert set(await pool.metrics()) == {"e1"}


async def test_closing_tells_who_waits(make_pool, gate) -> None:
    hold = gate()
    pool, _ = await make_pool(pace=hold)
    work = asyncio.ensure_future(pool.run(range(9), ask))
    await hold.reached.wait()
    await pool.close()
    with pytest.raises(EngineUnavailable, match="closed"):
        await work
    await pool.close()


async def test_f083_a_long_tail_leaves_no_engine_idle_before_the_queue_is_empty(make_pool, rows) -> None:
    """10% of the rollouts are 20 times longer; time is counted in turns of the event loop."""
    pool, _ = await make_pool(4)
    lengths = [400 if random.Random(n).random() < 0.1 else 20 for n in range(256)]
    left, idle = len(lengths), 0
    busy = {f"e{n}": 0 for n in range(4)}

    async def one(length: int, engine) -> None:
        nonlocal left, idle
        left -= 1
        busy[engine.name] += 1
        for _ in range(length):
            await asyncio.sleep(0)
            idle += left > 0 and min(busy.values()) == 0
        busy[engine.name] -= 1

    await pool.run(lengths, one)
    assert idle <= 0.15 * sum(lengths)


async def test_names_must_differ() -> None:
    with pytest.raises(ValueError, match="names of their own"):
        EnginePool([ScriptedEngine("a", draw), ScriptedEngine("a", draw)])


async def test_whole_rollouts_through_the_pool(converse, call, make_pool, sandbox) -> None:
    """The turn loop under the pool: a sandbox that fails once costs a retry and leaves one trajectory."""
    pool, _ = await make_pool()
    failures = iter([True, False])

    async def flaky(request):
        if next(failures):
            raise SandboxUnavailable("node lost")
        return sandbox.result(request, stdout="4")

    sandbox.programs["x"] = flaky
    conversation = converse(call("x"), "<answer>4</answer>")
    (made,) = await pool.run(["p"], lambda task, engine: conversation.run(problem=task))
    assert made.stop_reason is StopReason.answered
    assert [record.response for record in made.calls] == ["4"]
