"""One batch of rollouts: when it is over, and what becomes of those that are under way then."""

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import pytest

from engine.contract.resources import GrowthScheduler
from engine.contract.stages import CarryStragglers, CutStragglers, RlStage
from engine.data.problem import Problem
from engine.rollout.base import EngineCapacity, EngineUnavailable, GenerateRequest
from engine.rollout.pool import EnginePool, Failed
from engine.rollout.scheduling.lengths import LengthModel
from engine.rollout.scheduling.registry import make_scheduler
from engine.rollout.scripted_engine import ScriptedEngine
from engine.stages.sampling import Ask, Sampled, sample
from tests.engine.rollout.pools import in_no_time
from tests.engine.stages.bench import END, GivenRollouts, PacedRollouts, logprob_of, recipe

SHORT, LONG = 5, 400
CARRY = CarryStragglers(kind="carry", share=0.5, chunk_tokens=10)
CUT = CutStragglers(kind="cut", share=0.5)
RECIPE = recipe(max_response_tokens=480)
STAGE = RECIPE.stages[0]
assert isinstance(STAGE, RlStage)


def asks(*groups: int) -> list[Ask]:
    """Groups of so many rollouts; the problems are named a, b, ..."""
    return [
        Ask(Problem("abcdef"[place], "4"), "rl", 1, f"rl/1/{place}", replica, 0.5)
        for place, size in enumerate(groups)
        for replica in range(size)
    ]


def rollouts(**long: Any) -> Any:
    """Each problem's replicas in ``long`` are long, the others short."""
    taken: Mapping[str, Any] = long
    return PacedRollouts(RECIPE, lambda problem, replica: LONG if replica in taken.get(problem, ()) else SHORT)


def names(found: list[Any]) -> list[tuple[str, int]]:
    return sorted((each.group[-1], each.replica) for each in found)


async def test_by_default_a_batch_is_over_with_its_last_rollout() -> None:
    found = await sample(rollouts(a=[1]), asks(2, 2), STAGE)
    assert names(found.finished) == [("0", 0), ("0", 1), ("1", 0), ("1", 1)]
    assert (found.halted, found.cut) == ([], 0)


async def test_carried_over_is_what_is_under_way_when_enough_groups_are_whole() -> None:
    batch = rollouts(a=[1])
    found = await sample(batch, asks(2, 2), STAGE, stragglers=CARRY)
    assert names(found.finished) == [("0", 0), ("1", 0), ("1", 1)]
    ((ask, begun),) = found.halted
    assert (ask.group, ask.replica) == ("rl/1/0", 1)
    assert 0 < len(begun.ids) < LONG
    assert len(begun.ids) % 10 == 0, "at the end of a chunk"
    assert [place.left for place in batch.places] == [False, True, False, False]


async def test_what_counts_is_whole_groups() -> None:
    """Three of four have ended, but no group has: nothing could be learned from now, so nothing halts yet."""
    found = await sample(rollouts(a=[1], b=[0, 1]), asks(2, 2), STAGE, stragglers=CARRY)
    assert found.halted == []


async def test_what_is_carried_over_goes_on_as_if_it_had_not_been_halted() -> None:
    batch = rollouts(a=[1])
    ((ask, begun),) = (await sample(batch, asks(2, 2), STAGE, stragglers=CARRY)).halted
    batch.published.append(1)
    again = Ask(ask.problem, "rl", 2, ask.group, ask.replica, ask.u, begun)
    ((ended,), plain) = ((await sample(batch, [again], STAGE)).finished, await sample(rollouts(a=[1]), asks(2), STAGE))
    assert ended.ids == plain.finished[1].ids
    assert ended.turns == plain.finished[1].turns
    assert ended.policy_steps == ((0, 0), (len(begun.ids), 1))
    assert set(ended.logprobs[: len(begun.ids)]) == {logprob_of(0)}, "as sampled then"
    assert set(ended.logprobs[len(begun.ids) :]) == {logprob_of(1)}
    assert (batch.sizes[0].response_tokens, batch.sizes[0].prompt_tokens) == (len(begun.ids), 1)


async def test_cut_are_those_that_have_not_ended_when_enough_have() -> None:
    """Two of four are enough, whole group or not; the others are stopped in the middle of their turn."""
    batch = rollouts(a=[1], b=[1])
    found = await sample(batch, asks(2, 2), STAGE, stragglers=CUT)
    assert names(found.finished) == [("0", 0), ("1", 0)]
    assert (found.halted, found.cut) == ([], 2)
    assert [place.left for place in batch.places] == [False, True, False, True]
    assert batch.running == 0


async def test_the_scheduler_is_told_the_longest_that_a_rollout_can_get() -> None:
    batch = rollouts()
    await sample(batch, asks(1), STAGE)
    (size,) = batch.sizes
    assert size.problem == Problem("a", "4").id, "siblings are of similar length"
    assert (size.prompt_tokens, size.max_tokens, size.response_tokens) == (1, 1 + 480, 0)


async def test_a_batch_that_we_spoiled_whole_is_our_failure() -> None:
    given = GivenRollouts(RECIPE, lambda ask: None)
    with pytest.raises(EngineUnavailable, match="all 2 rollouts were lost, the last by: as given"):
        await sample(given, asks(2), STAGE)  # type: ignore[arg-type]


async def test_a_batch_of_nothing_is_done() -> None:
    assert (await sample(rollouts(), [], STAGE)).finished == []


async def test_with_nothing_but_failures_and_rollouts_under_way_the_step_goes_on() -> None:
    """A lost rollout ends no group; what halted is no failure."""

    class LosesTheFirst(PacedRollouts):
        async def run(self, asks: Any, one: Any, *, size: Any) -> list[Any]:
            return [Failed("as given"), *await super().run(asks[1:], one, size=size)]

    batch: Any = LosesTheFirst(RECIPE, lambda problem, replica: SHORT)
    found = await sample(batch, asks(2), STAGE, stragglers=CARRY)
    assert names(found.finished) == [("0", 1)]


@pytest.mark.parametrize("stragglers", [CARRY, CUT])
def test_on_real_engines_nothing_is_lost_and_every_place_is_given_back(
    stragglers: CarryStragglers | CutStragglers,
) -> None:
    """Two engines with room for a few, others in the queue; seconds of sampling take no time here."""

    def policy(prompt: list[int], version: int, source: random.Random) -> list[int]:
        return [*b"x" * source.choice([SHORT, SHORT, SHORT, LONG]), END]

    async def pace(request: GenerateRequest) -> None:
        await asyncio.sleep(request.max_tokens / 100)

    async def work() -> tuple[Sampled, EnginePool]:
        capacity = EngineCapacity(kv_blocks=100, block_tokens=16, max_model_tokens=1024)
        engines = [ScriptedEngine(f"e{number}", policy, capacity=capacity, pace=pace) for number in range(2)]
        pool = EnginePool(engines, scheduler=make_scheduler(GrowthScheduler(), max_running=8, lengths=LengthModel()))
        await pool.start()
        batch = rollouts()
        batch.ready = lambda: asyncio.sleep(0, pool)
        found = await sample(batch, asks(*[4] * 6), STAGE, stragglers=stragglers)
        await pool.close()
        return found, pool

    found, pool = in_no_time(work)
    halted = [(ask.group, ask.replica) for ask, _ in found.halted]
    ended = [(each.group, each.replica) for each in found.finished]
    assert len({*halted, *ended}) == len(halted) + len(ended) == 24 - found.cut
    assert len(ended) >= 12
    assert found.cut + len(halted) > 0
    assert (pool.scheduler.in_flight, pool.scheduler.queued) == (0, 0)
