"""Steps that end before their last rollout: what is learned from when, by which weights, and what a crash leaves.

On the bench a rollout takes as many turns of the event loop as it has tokens.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from engine.contract.events import LogLine, StepFinished
from engine.learner.base import Sample, UpdateResult
from engine.stages import commit
from engine.stages.carryover import CarryOver
from engine.stages.reinforce import tell_reset
from engine.stages.updates import PolicyMismatch
from tests.engine.stages.bench import Bench, RecordingLearner, logprob_of

MakeBench = Callable[..., Bench]
SHORT, LONG = 5, 150
CARRY = {"kind": "carry", "share": 0.5, "chunk_tokens": 10}


class PresentLearner(RecordingLearner):
    """Its log-probabilities are those of its own version, whoever sampled; ``off`` by so much."""

    def __init__(self, off: float) -> None:
        super().__init__(gap=0.0)
        self.off = off

    def logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        own = logprob_of(len(self.parts)) + self.off
        return [[own if trained else 0.0 for trained in sample.trained] for sample in samples]

    def rl_update(self, batch: Sequence[Sample], *, lr_scale: float, normaliser: float | None = None) -> UpdateResult:
        rows = zip(self.logprobs(batch), batch, strict=True)
        self.gap = max(abs(a - b) for row, sample in rows for a, b in zip(row, sample.logprobs, strict=True))
        return super().rl_update(batch, lr_scale=lr_scale, normaliser=normaliser)


def carrying(bench: MakeBench, *, off: float = 0.0, **fields: Any) -> Bench:
    """Two problems a step, two rollouts each. The second rollout of every even problem is long.

    So step 1 is over when group 1 is whole, and step 2 has its own group and goes on with group 0 of step 1.
    """
    settings = {"stragglers": CARRY, "rollouts_per_problem": 2, "max_response_tokens": 480}
    found = bench(lambda ask: None, **{**settings, **fields})
    found.take(lambda problem, replica: LONG if replica and int(problem.split("+")[0]) % 2 == 0 else SHORT)
    found.learner = PresentLearner(off)
    return found


def asked(found: Bench) -> list[list[tuple[str, int, bool]]]:
    """Group, replica and whether it was begun before, of every batch."""
    return [[(ask.group, ask.replica, ask.begun is not None) for ask in asks] for asks in found.rollouts.asked]


def groups(found: Bench, body: StepFinished) -> set[str]:
    return {t.group for t in found.trajectories(body)}


async def test_whole_groups_are_learned_from_now_the_others_in_the_next_step(bench: MakeBench) -> None:
    found = carrying(bench)
    first, second = await found.step(1), await found.step(2)
    assert groups(found, first) == {"rl/1/1"}
    assert groups(found, second) == {"rl/1/0", "rl/2/0"}
    assert {t.step for t in found.trajectories(second)} == {2}, "the step that learns from them"


async def test_the_next_step_draws_only_what_is_missing_and_goes_on_with_what_it_has(bench: MakeBench) -> None:
    found = carrying(bench)
    await found.step(1)
    await found.step(2)
    assert asked(found)[1] == [("rl/1/0", 1, True), ("rl/2/0", 0, False), ("rl/2/0", 1, False)]
    texts = [ask.problem.text for ask in found.rollouts.asked[1]]
    assert texts == ["0+0?", "2+2?", "2+2?"], "behind the two problems that were drawn before"


async def test_tokens_keep_the_policy_step_that_sampled_them(bench: MakeBench) -> None:
    found = carrying(bench)
    await found.step(1)
    body = await found.step(2)
    short, long = sorted((t for t in found.trajectories(body) if t.group == "rl/1/0"), key=lambda t: t.replica)
    assert (short.first_version, short.last_version, short.policy_steps) == (0, 0, ())
    assert (long.first_version, long.last_version) == (0, 1)
    ((start, old), (going_on, new)) = long.policy_steps
    assert (start, old, new) == (0, 0, 1)
    assert set(long.logprobs[:going_on]) == {logprob_of(0)}
    assert set(long.logprobs[going_on:]) == {logprob_of(1)}


async def test_the_learner_is_given_its_log_probabilities_of_now_and_the_samplers_of_then(bench: MakeBench) -> None:
    """The ratio is to the present policy; the truncated weight is to whichever policy sampled the token."""
    found = carrying(bench)
    await found.step(1)
    await found.step(2)
    sample = max(found.learner.parts[1], key=lambda sample: len({*sample.logprobs}))
    old = {p for p, trained in zip(sample.old_logprobs, sample.trained, strict=True) if trained}
    then = {p for p, trained in zip(sample.logprobs, sample.trained, strict=True) if trained}
    assert (old, then) == ({logprob_of(1)}, {logprob_of(0), logprob_of(1)})
    assert found.context.recipe.weighs_sampler(found.stage)


async def test_older_tokens_are_not_held_against_the_present_policy(bench: MakeBench) -> None:
    """Sampler and learner differ by 0.1 on them, which would stop the run. The metric is of the others."""
    found = carrying(bench)
    await found.step(1)
    body = await found.step(2)
    assert body.metrics["logprob_gap_max"] == pytest.approx(0.0, abs=1e-12)


async def test_fresh_tokens_are(bench: MakeBench) -> None:
    found = carrying(bench)
    await found.step(1)
    found.learner.off = 1e-3
    with pytest.raises(PolicyMismatch, match=r"step 2: .* differ on sampled tokens by 1.0e-03 at most"):
        await found.step(2)


async def test_what_is_carried_is_counted_and_is_not_left_out(bench: MakeBench) -> None:
    found = carrying(bench)
    first, second = await found.step(1), await found.step(2)
    names = ("carried", "gone_on", "cut", "left_out", "policy_lag")
    assert {name: first.metrics[name] for name in names} == {**dict.fromkeys(names, 0.0), "carried": 1.0}
    assert (second.metrics["gone_on"], second.metrics["left_out"]) == (1.0, 0.0)
    lags = [t.last_version - t.first_version for t in found.trajectories(second)]
    assert second.metrics["policy_lag"] == sum(lags) / len(lags) > 0


async def test_the_last_step_waits_for_all(bench: MakeBench) -> None:
    found = carrying(bench, steps=2)
    await found.step(1)
    body = await found.step(2)
    assert body.metrics["carried"] == 0.0
    assert groups(found, body) == {"rl/1/0", "rl/2/0"}


async def test_a_step_whose_only_whole_group_is_rejected_is_empty_and_loses_nothing(bench: MakeBench) -> None:
    found = carrying(bench, problems_per_step=3, stragglers={**CARRY, "share": 0.3}, keep_per_problem=1)
    found.take(lambda problem, replica: SHORT if problem == "0+0?" else LONG)
    first, second = await found.step(1), await found.step(2)
    assert (groups(found, first), first.metrics["empty"]) == ({"rl/1/0"}, 1.0)
    assert [group for group, _, begun in asked(found)[1] if begun] == ["rl/1/1"] * 2 + ["rl/1/2"] * 2
    assert second.metrics["left_out"] == 0.0


async def test_refill_goes_on_with_a_group_under_way_and_replaces_the_rejected_only(bench: MakeBench) -> None:
    found = carrying(bench, refill=1, keep_per_problem=1)
    body = await found.step(1)
    assert asked(found)[1] == [("rl/1/0", 1, True), ("rl/1/2", 0, False), ("rl/1/2", 1, False)]
    assert body.metrics["refilled_groups"] == 1.0
    assert found.carried.cursor == 3


async def test_a_crash_loses_what_was_under_way_and_asks_the_same_groups_anew(bench: MakeBench) -> None:
    found = carrying(bench)
    await found.step(1)
    stored = commit.latest(found.folder, "rl")
    assert stored is not None
    assert stored.pending["draws"] == [{"step": 1, "place": 0, "problem": "0+0?", "answer": "4", "kind": ""}]
    before = {(ask.group, ask.replica): ask.u for ask in found.rollouts.asked[0]}
    found.carried = CarryOver.of(stored.pending)
    await found.step(2)
    again = [ask for ask in found.rollouts.asked[1] if ask.group == "rl/1/0"]
    assert [(ask.replica, ask.begun) for ask in again] == [(0, None), (1, None)]
    assert all(ask.u == before[ask.group, ask.replica] for ask in again)


async def test_cut_rollouts_are_left_out_counted_and_their_groups_keep_fewer(bench: MakeBench) -> None:
    """N' = 2 of 4 keep floor(2 * 2 / 4) = 1, as where we failed."""
    found = bench(lambda ask: None, stragglers={"kind": "cut", "share": 0.75}, max_response_tokens=480)
    found.take(lambda problem, replica: LONG if problem == "0+0?" and replica > 1 else SHORT)
    body = await found.step(1)
    assert (body.metrics["cut"], body.metrics["left_out"], body.metrics["carried"]) == (2.0, 0.0, 0.0)
    group = [t for t in found.trajectories(body) if t.group == "rl/1/0"]
    assert [t.replica for t in group] == [0, 1]
    assert found.rollouts.running == 0


def test_that_cutting_is_biased_is_said_once(bench: MakeBench) -> None:
    found = bench(lambda ask: None, stragglers={"kind": "cut"})
    tell_reset(found.context, found.stage, first=1)
    tell_reset(found.context, found.stage, first=2)
    (warned,) = [e.body for e in found.events() if isinstance(e.body, LogLine) and e.body.level == "warning"]
    assert "biased to short ones" in warned.message


async def test_where_all_are_waited_for_nothing_is_told_of_stragglers(bench: MakeBench) -> None:
    body = await bench(lambda ask: ask.replica % 2 == 0).step()
    assert not {"carried", "gone_on", "cut", "policy_lag"} & body.metrics.keys()
