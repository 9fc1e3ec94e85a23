"""An evaluation's rollouts: what we could not grade is left out, never scored wrong."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from engine.contract.job import EvalStage
from engine.contract.trajectory import RewardStatus, Trajectory
from engine.data.problem import Problem
from engine.stages.evaluate import GREEDY, SAMPLED, rollouts
from engine.stages.rollouts import Ask

STAGE = EvalStage(name="eval", kind="eval", max_response_tokens=64, temperature=0.7)


def context(make: Callable[..., Trajectory], ungraded: int) -> Any:
    """A stage's parts: every rollout comes through, the last ``ungraded`` cannot be graded."""
    heat: list[float] = []

    async def sample(asks: Sequence[Ask], stage: EvalStage, *, temperature: float) -> list[Trajectory]:
        heat.append(temperature)
        return [make(group=ask.group, replica=ask.replica) for ask in asks]

    async def grade(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        graded = len(trajectories) - ungraded
        unscored = {"reward": None, "reward_status": RewardStatus.unscored}
        return [*trajectories[:graded], *(each.model_copy(update=unscored) for each in trajectories[graded:])]

    return SimpleNamespace(rollouts=SimpleNamespace(sample=sample), grade=grade, heat=heat)


async def test_what_we_could_not_grade_is_left_out(make: Callable[..., Trajectory]) -> None:
    problems = [Problem(f"{number}+1?", "4") for number in range(3)]
    found = await rollouts(context(make, ungraded=2), STAGE, problems, SAMPLED, 2)
    assert [(t.group, t.replica) for t in found] == [
        ("eval/sampled/0", 0),
        ("eval/sampled/0", 1),
        ("eval/sampled/1", 0),
        ("eval/sampled/1", 1),
    ]
    assert all(t.reward == 1.0 for t in found)


async def test_greedy_is_cold_and_sampled_as_hot_as_the_stage(make: Callable[..., Trajectory]) -> None:
    parts = context(make, ungraded=0)
    for kind in (SAMPLED, GREEDY):
        await rollouts(parts, STAGE, [Problem("1+1?", "2")], kind, 1)
    assert parts.heat == [0.7, 0.0]
