"""Scoring and selection of a group: the glue around reward, RoC and advantage."""

import math
from collections.abc import Callable

import pytest

from engine.contract.stages import KeepAll, RlStage
from engine.contract.trajectory import RewardStatus, StopReason, Trajectory
from engine.reward import MathReward
from engine.stages.scoring import scored, select_group

Make = Callable[..., Trajectory]
STAGE = RlStage(name="rl", kind="rl", steps=1, max_response_tokens=64, rollouts_per_problem=8, keep_per_problem=4)


def select(group: list[Trajectory], stage: RlStage = STAGE) -> list[Trajectory]:
    return list(select_group(group, stage).trajectories)


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
    group = select_group([make(replica=i) for i in range(8)], STAGE)
    assert group.outcome == "all_right"
    assert not any(t.kept for t in group.trajectories)
    assert group.event().kept == 0


def test_a_group_that_we_spoiled_in_part_keeps_its_share(make: Make) -> None:
    """N' < N rollouts keep floor(N' K / N) (design: groups and infrastructure)."""
    group = select_group([make(replica=i, reward=float(i % 2)) for i in range(5)], STAGE)
    assert sum(t.kept for t in group.trajectories) == 2
    assert group.event().left_out == 3


def test_a_selection_does_not_depend_on_the_order_of_finishing(make: Make) -> None:
    group = [make(replica=i, reward=float(i % 3 == 0)) for i in range(8)]
    assert select_group(group[::-1], STAGE) == select_group(group, STAGE)


def test_the_samples_std_makes_smaller_advantages(make: Make) -> None:
    """ddof = 1 divides by sqrt(sum / (n - 1)), as the release does."""
    group = [make(replica=i, reward=float(i < 4)) for i in range(8)]
    population, sample = (
        [t.advantage for t in select(group, STAGE.model_copy(update={"advantage_ddof": ddof})) if t.kept]
        for ddof in (0, 1)
    )
    assert max(population) == pytest.approx(1.0, abs=1e-5)
    assert max(sample) == pytest.approx(math.sqrt(3 / 4), abs=1e-5)


def test_the_penalised_reward_changes_advantages_and_nothing_else(make: Make) -> None:
    """The ablation arm: right rollouts lose 0.5 x p_total. Who is right, kept, and what is recorded stay."""
    clean = [make(replica=i, reward=1.0) for i in range(2)]
    broken = [make(replica=i, reward=1.0, statuses=("error",)) for i in range(2, 4)]
    wrong = [make(replica=i, reward=0.0, statuses=("error",)) for i in range(4, 8)]
    keep_all = {"downsampling": KeepAll(kind="keep_all"), "keep_per_problem": 8, "advantage_norm": "none"}
    plain = select([*clean, *broken, *wrong], STAGE.model_copy(update=keep_all))
    arm = select([*clean, *broken, *wrong], STAGE.model_copy(update={**keep_all, "penalty_in_reward": 0.5}))
    assert [(t.kept, t.reward, t.penalty) for t in arm] == [(t.kept, t.reward, t.penalty) for t in plain]
    assert [t.penalty for t in arm] == [0.0] * 2 + [1.0] * 6
    assert [t.advantage for t in plain] == [0.5] * 4 + [-0.5] * 4
    assert [t.advantage for t in arm] == [1.0 - 0.375] * 2 + [0.5 - 0.375] * 2 + [-0.375] * 4


@pytest.mark.parametrize("kind", ["roc", "uniform", "balanced"])
def test_every_rule_of_the_contract_selects(make: Make, kind: str) -> None:
    stage = RlStage.model_validate({**STAGE.model_dump(), "downsampling": {"kind": kind}})
    group = select_group([make(replica=i, reward=float(i < 2)) for i in range(8)], stage)
    assert group.record.kind == kind
    assert {t.reward for t in group.kept} == {0.0, 1.0}
