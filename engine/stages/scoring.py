"""From finished rollouts to rewards, kept rollouts and advantages: the glue around the pure functions.

Pure too: trajectories in, trajectories with more fields filled in out. The rules themselves are in ``engine.reward``,
``engine.downsample`` and ``engine.objective.advantage``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from engine.contract.events import GroupFinished
from engine.contract.stages import RlStage
from engine.contract.trajectory import RewardStatus, StopReason, Trajectory
from engine.downsample.base import Candidate, Outcome, Selection
from engine.downsample.record import GroupRecord
from engine.objective.advantage import group_advantages
from engine.reward import Reward, Score, count_answer_tags
from engine.stages.metrics import is_right

CUT = (StopReason.length, StopReason.max_turns)


def is_cut(trajectory: Trajectory) -> bool:
    """Whether a limit ended the rollout: then its reward is 0, and it stays in the loss."""
    return trajectory.stop_reason in CUT


def scored(trajectory: Trajectory, reward: Reward) -> Trajectory:
    """The trajectory with its answer, verdict and reward."""
    return with_score(trajectory, reward.score(trajectory.gold, trajectory.sampled_text, cut=is_cut(trajectory)))


def with_score(trajectory: Trajectory, score: Score) -> Trajectory:
    return trajectory.model_copy(
        update={
            "answer": score.answer,
            "verdict": str(score.verdict),
            "reward": score.reward,
            "reward_status": RewardStatus(score.status),
        }
    )


def candidate(trajectory: Trajectory) -> Candidate:
    """What down-sampling may know of a rollout; tags are counted in sampled text only."""
    opens, closes = count_answer_tags(trajectory.sampled_text)
    return Candidate(
        index=trajectory.replica,
        reward=trajectory.reward or 0.0,
        calls=len(trajectory.calls),
        errors=trajectory.tool_errors,
        answer_opens=opens,
        answer_closes=closes,
        turns=trajectory.assistant_turns,
        u=trajectory.u,
    )


@dataclass(frozen=True, slots=True)
class Group:
    """All rollouts of one problem in one step, after selection; ``record`` is how they were selected."""

    trajectories: tuple[Trajectory, ...]
    record: GroupRecord

    @property
    def outcome(self) -> Outcome:
        return self.record.selection.outcome

    @property
    def kept(self) -> list[Trajectory]:
        """The rollouts that are learned from; none in a rejected group."""
        return [trajectory for trajectory in self.trajectories if trajectory.kept]

    def event(self) -> GroupFinished:
        first = self.trajectories[0]
        return GroupFinished(
            stage=first.stage,
            step=first.step,
            group=first.group,
            problem_id=first.problem_id,
            rollouts=len(self.trajectories),
            left_out=self.record.planned - len(self.trajectories),  # spoiled by our own failures
            right=sum(map(is_right, self.trajectories)),
            kept=len(self.kept),
            outcome=self.outcome,
            tool_calls=sum(len(t.calls) for t in self.trajectories),
            tool_errors=sum(t.tool_errors for t in self.trajectories),
        )


def select_group(trajectories: Sequence[Trajectory], stage: RlStage) -> Group:
    """Keep some of a group's scored rollouts; the kept get their advantages after the selection, as in the paper."""
    ordered = sorted(trajectories, key=lambda t: t.replica)
    record = GroupRecord.decide(
        group=ordered[0].group,
        problem_id=ordered[0].problem_id,
        kind=stage.downsampling.kind,
        options=stage.downsampling.model_dump(exclude={"kind"}),
        planned=stage.rollouts_per_problem,
        keep=stage.keep_per_problem,
        candidates=[candidate(trajectory) for trajectory in ordered],
    )
    return Group(tuple(_decided(ordered, record.selection, stage)), record)


def _decided(ordered: Sequence[Trajectory], selection: Selection, stage: RlStage) -> Iterator[Trajectory]:
    advantages = _advantages(ordered, selection, stage)
    for trajectory, decision in zip(ordered, selection.decisions, strict=True):
        yield trajectory.model_copy(
            update={
                "penalty": decision.p_total,
                "kept": decision.kept,
                "kept_reason": decision.reason,
                "advantage": advantages.get(decision.index),
            }
        )


def _advantages(ordered: Sequence[Trajectory], selection: Selection, stage: RlStage) -> dict[int, float]:
    if not selection.kept:
        return {}
    rewards = {
        decision.index: advantage_reward(trajectory, decision.p_total, stage)
        for trajectory, decision in zip(ordered, selection.decisions, strict=True)
    }
    reward_N = torch.tensor([rewards[index] for index in selection.kept], dtype=torch.float64)
    advantage_N = group_advantages(reward_N, norm=stage.advantage_norm, ddof=stage.advantage_ddof)
    return dict(zip(selection.kept, advantage_N.tolist(), strict=True))


def advantage_reward(trajectory: Trajectory, p_total: float, stage: RlStage) -> float:
    """The reward that advantages are taken of.

    It is the recorded one, but in the ablation arm that penalises bad calls in the reward, as RoC avoids to: there a
    right rollout's loses ``penalty_in_reward`` x p_total. Right or wrong, and what is recorded, stay as they are.
    """
    reward = trajectory.reward or 0.0
    return reward - stage.penalty_in_reward * p_total if is_right(trajectory) else reward
