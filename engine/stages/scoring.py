"""From finished rollouts to rewards, kept rollouts and advantages: the glue around the pure functions.

Pure too: trajectories in, trajectories with more fields filled in out. The rules themselves are in ``engine.reward``,
``engine.downsample`` and ``engine.objective.advantage``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.contract.events import GroupFinished
from engine.contract.job import RlStage
from engine.contract.trajectory import RewardStatus, StopReason, Trajectory
from engine.downsample import DOWNSAMPLERS, Candidate, Downsampler, Selection, keep_count
from engine.objective.advantage import group_advantages
from engine.reward import Reward, count_answer_tags
from engine.stages.metrics import is_right

CUT = (StopReason.length, StopReason.max_turns)


def scored(trajectory: Trajectory, reward: Reward) -> Trajectory:
    """The trajectory with its answer, verdict and reward."""
    score = reward.score(trajectory.gold, trajectory.sampled_text, cut=trajectory.stop_reason in CUT)
    return trajectory.model_copy(
        update={
            "answer": score.answer,
            "verdict": str(score.verdict),
            "reward": score.reward,
            "reward_status": RewardStatus(score.status),
        }
    )


def make_downsampler(stage: RlStage) -> Downsampler:
    options = stage.downsampling.model_dump(exclude={"kind"})
    return DOWNSAMPLERS[stage.downsampling.kind](**options)


def candidate(index: int, trajectory: Trajectory) -> Candidate:
    """What down-sampling may know of a rollout; tags are counted in sampled text only."""
    opens, closes = count_answer_tags(trajectory.sampled_text)
    return Candidate(
        index=index,
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
    """All rollouts of one problem in one step, after selection. ``left_out``: spoiled by our own failures."""

    trajectories: tuple[Trajectory, ...]
    left_out: int
    outcome: str

    def event(self) -> GroupFinished:
        first = self.trajectories[0]
        return GroupFinished(
            stage=first.stage,
            step=first.step,
            group=first.group,
            problem_id=first.problem_id,
            rollouts=len(self.trajectories),
            left_out=self.left_out,
            right=sum(map(is_right, self.trajectories)),
            kept=sum(t.kept for t in self.trajectories),
            outcome=self.outcome,
            tool_calls=sum(len(t.calls) for t in self.trajectories),
            tool_errors=sum(t.tool_errors for t in self.trajectories),
        )


def select_group(trajectories: Sequence[Trajectory], stage: RlStage, downsampler: Downsampler) -> Group:
    """Keep some of a group's scored rollouts; the kept get their advantages after the selection, as in the paper."""
    left_out = stage.rollouts_per_problem - len(trajectories)
    keep = keep_count(stage.rollouts_per_problem, stage.keep_per_problem, len(trajectories))
    selection = downsampler.select([candidate(i, t) for i, t in enumerate(trajectories)], keep)
    advantages = _advantages(trajectories, selection, stage)
    decided = [
        t.model_copy(
            update={
                "penalty": decision.p_total,
                "kept": decision.kept,
                "kept_reason": decision.reason,
                "advantage": advantages.get(decision.index),
            }
        )
        for t, decision in zip(trajectories, selection.decisions, strict=True)
    ]
    return Group(tuple(decided), left_out, selection.outcome)


def _advantages(scored_ones: Sequence[Trajectory], selection: Selection, stage: RlStage) -> dict[int, float]:
    if not selection.kept:
        return {}
    rewards = torch.tensor([scored_ones[i].reward for i in selection.kept], dtype=torch.float64)
    values = group_advantages(rewards, norm=stage.advantage_norm).tolist()
    return dict(zip(selection.kept, values, strict=True))
