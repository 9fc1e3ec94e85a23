"""A batch through the scheduler that runs use: by hand where that is possible, nothing lost anywhere."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.contract.resources import AimdScheduler, GrowthScheduler, KvCapScheduler, StaticScheduler
from engine.rollout.scheduling.base import NeverFits, Size
from engine.rollout.scheduling.lengths import LengthModel
from engine.rollout.scheduling.registry import make_scheduler
from engine.simulate.driver import Death, Stuck, TooSlow, simulate
from engine.simulate.engine_model import EngineModel
from engine.simulate.workload import SimulatedRollout

RULES = (
    StaticScheduler(kind="static"),
    KvCapScheduler(kind="kv_cap"),
    AimdScheduler(kind="aimd"),
    GrowthScheduler(),
)


def test_a_rollout_is_its_prefills_its_tokens_and_its_tools(engine, rollout, scheduler):
    outcome = simulate([rollout([6, 4], [2.3])], scheduler(), [engine()])
    # 10 prompt tokens in 1 s, 6 steps until 7; the tool until 9.3; 5 tool tokens in 0.5 s, 4 steps
    assert outcome.makespan_s == pytest.approx(13.8)
    assert outcome.useful_tokens == outcome.counters.generated == 10
    assert outcome.counters.prefilled == 15
    assert (outcome.recomputed_share, outcome.reprefilled_share, outcome.finish_spread) == (0, 0, 0)


def test_tools_run_while_others_sample(engine, rollout, scheduler):
    fast = engine(prefill_tokens_per_s=1e12)
    outcome = simulate([rollout([5, 5], [8.0]), rollout([30])], scheduler(), [fast])
    assert outcome.makespan_s == pytest.approx(30)


def test_behind_a_barrier_turns_wait_for_one_another_and_for_the_slowest_tool(engine, rollout, scheduler):
    fast = engine(prefill_tokens_per_s=1e12)
    batch = [rollout([5, 5], [8.0]), rollout([30, 3], [1.0])]
    assert simulate(batch, scheduler(), [fast], barrier=True).makespan_s == pytest.approx(30 + 1 + 5)
    assert simulate(batch, scheduler(), [fast]).makespan_s == pytest.approx(30 + 1 + 3)


def test_static_rollouts_wait_for_the_cap(engine, rollout, scheduler):
    fast = engine(prefill_tokens_per_s=1e12)
    outcome = simulate([rollout([10])] * 4, scheduler(RULES[0], max_running=1), [fast] * 2)
    assert outcome.makespan_s == pytest.approx(20)


def test_engines_that_end_at_different_times_have_a_spread(engine, rollout, scheduler):
    fast = engine(prefill_tokens_per_s=1e12)
    outcome = simulate([rollout([10]), rollout([40])], scheduler(RULES[0]), [fast] * 2)
    assert outcome.finish_s == (pytest.approx(10), pytest.approx(40))
    assert outcome.finish_spread == pytest.approx(0.75)


def test_an_engine_that_dies_costs_its_turns_and_nothing_else(engine, rollout, scheduler):
    fast = engine(prefill_tokens_per_s=1e12)
    batch = [rollout([10])] * 4
    outcome = simulate(batch, scheduler(), [fast] * 2, deaths=[Death(engine=1, at_s=5.5)])
    assert outcome.useful_tokens == 40
    assert outcome.counters.generated == 40 + 2 * 5  # five steps of two rollouts were lost with the engine
    assert outcome.makespan_s == pytest.approx(16)  # the others take them from their next step on
    assert outcome.finish_s[1] == 0


def test_a_rollout_whose_engine_died_during_its_tool_goes_on_elsewhere(engine, rollout, scheduler):
    outcome = simulate([rollout([5, 5], [10.0])] * 2, scheduler(), [engine()] * 2, deaths=[Death(0, at_s=8.0)])
    assert outcome.counters.generated == 20
    assert outcome.counters.reprefilled == 15


def test_an_engine_that_comes_back_is_given_work(engine, rollout, scheduler):
    outcome = simulate(
        [rollout([10])] * 20,
        scheduler(max_running=2),
        [engine(prefill_tokens_per_s=1e12)] * 2,
        deaths=[Death(0, at_s=2.0, down_s=3.0)],
    )
    assert outcome.finish_s[0] > 5


def test_with_all_engines_dead_it_says_who_waits(engine, rollout, scheduler):
    with pytest.raises(Stuck, match="2 rollouts are not admitted"):
        simulate([rollout([10])] * 2, scheduler(), [engine()], deaths=[Death(0, at_s=2.0)])


def test_a_limit_ends_it(engine, rollout, scheduler):
    with pytest.raises(TooSlow, match="1 of 1 rollouts are left after 3 s"):
        simulate([rollout([10])], scheduler(), [engine()], limit_s=3)


def test_what_fits_no_engine_is_refused(engine, rollout, scheduler):
    with pytest.raises(NeverFits):
        simulate([rollout([10])], scheduler(), [engine(kv_tokens=100)])


def test_a_timeline_has_every_engine_each_second(engine, rollout, scheduler):
    outcome = simulate([rollout([10])] * 2, scheduler(), [engine()] * 2, timeline=True)
    assert [(moment.at_s, moment.engine) for moment in outcome.timeline[:4]] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert all(moment.in_flight == 1 for moment in outcome.timeline)


@st.composite
def batches(draw):
    size = Size(draw(st.sampled_from("ab")), draw(st.integers(1, 30)), 200)
    sampled = draw(st.lists(st.integers(1, 30), min_size=1, max_size=4))
    tool_s = draw(st.lists(st.floats(0, 20), min_size=len(sampled) - 1, max_size=len(sampled) - 1))
    return SimulatedRollout(size, tuple(sampled), (3,) * len(tool_s), tuple(tool_s))


@settings(deadline=None)
@given(
    batch=st.lists(batches(), min_size=1, max_size=20),
    rule=st.sampled_from(RULES),
    kv_tokens=st.integers(230, 900),
    engines=st.integers(1, 3),
    death_s=st.none() | st.floats(0.5, 60),
)
def test_no_token_and_no_rollout_is_lost_and_a_batch_goes_the_same_way_twice(batch, rule, kv_tokens, engines, death_s):
    model = EngineModel(kv_tokens, 1.0, 0.1, 0.001, 50.0, block_tokens=8)
    deaths = [Death(0, death_s, down_s=10.0)] if death_s else []

    def outcome():
        scheduler = make_scheduler(rule, max_running=6, lengths=LengthModel())
        found = simulate(batch, scheduler, [model] * engines, deaths=deaths)
        assert (scheduler.queued, scheduler.in_flight) == (0, 0)
        return found

    first = outcome()
    assert first == outcome()
    assert first.useful_tokens == sum(sum(rollout.sampled) for rollout in batch)
    if deaths:
        assert first.counters.generated >= first.useful_tokens
    else:
        assert first.counters.generated == first.useful_tokens
        assert len(first.waits_s) == sum(len(rollout.sampled) for rollout in batch)
        fresh = sum(rollout.size.prompt_tokens + sum(rollout.answered) for rollout in batch)
        assert first.counters.prefilled == fresh + first.counters.recomputed + first.counters.reprefilled
