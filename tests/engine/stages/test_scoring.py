"""Scoring and selection of a group: the glue around reward, RoC and advantage."""

from collections.abc import Callable

import pytest

from engine.contract.job import RlStage
from engine.contract.trajectory import RewardStatus, StopReason, Trajectory
from engine.reward import MathReward
from engine.stages.reinforce import sample_of
from engine.stages.scoring import make_downsampler, scored, select_group

Make = Callable[..., Trajectory]
STAGE = RlStage(name="rl", kind="rl", steps=1, max_response_tokens=64, rollouts_per_problem=8, keep_per_problem=4)


def select(group: list[Trajectory], stage: RlStage = STAGE) -> list[Trajectory]:
    return list(select_group(group, stage, make_downsampler(stage)).trajectories)


def test_a_right_answer_scores_one(make: Make) -> None:
    found = scored(make(reward_status=RewardStatus.unscored, reward=None), MathReward())
    assert (found.reward, found.answer, found.verdict) == (1.0, "4", "correct")


@pytest.mark.parametrize("reason", [StopReason.length, StopReason.max_turns])
def test_right_when_cut_scores_zero_and_keeps_its_verdict(make: Make, reason: StopReason) -> None:
    found = scored(make(stop_reason=reason), MathReward())
    assert (found.reward, found.reward_status, found.verdict) == (0.0, RewardStatus.scored, "correct")


def test_what_a_tool_printed_is_no_answer(make: Make) -> None:
    found = scored(make(text="no answer"), MathReward())
    assert (found.reward, found.answer) == (0.0, None)


def test_half_is_kept_with_both_classes_and_zero_sum_advantages(make: Make) -> None:
    group = [make(replica=i, reward=float(i % 2)) for i in range(8)]
    decided = select(group)
    kept = [t for t in decided if t.kept]
    assert len(kept) == 4
    assert {t.reward for t in kept} == {0.0, 1.0}
    assert sum(t.advantage or 0.0 for t in kept) == pytest.approx(0.0, abs=1e-9)
    assert all(t.advantage is None and t.kept_reason for t in decided if not t.kept)


def test_a_group_of_equals_is_rejected(make: Make) -> None:
    group = select_group([make(replica=i) for i in range(8)], STAGE, make_downsampler(STAGE))
    assert group.outcome == "all_right"
    assert not any(t.kept for t in group.trajectories)
    assert group.event().kept == 0


def test_a_group_that_we_spoiled_in_part_keeps_its_share(make: Make) -> None:
    """N' < N rollouts keep floor(N' K / N) (design: groups and infrastructure)."""
    group = select_group([make(replica=i, reward=float(i % 2)) for i in range(5)], STAGE, make_downsampler(STAGE))
    assert sum(t.kept for t in group.trajectories) == 2
    assert group.left_out == 3


def test_a_sample_trains_on_sampled_tokens_only(make: Make) -> None:
    sample = sample_of(make(advantage=0.7))
    assert sample.ids == (1, 2, 3, 4, 5)
    assert sample.trained == (False, False, True, False, True)
    assert sample.logprobs == (0.0, 0.0, -0.5, 0.0, -0.25)
    assert sample.advantage == 0.7
