"""An evaluation's rollouts: what we could not grade is left out, never scored wrong."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from engine.contract.stages import EvalStage
from engine.contract.trajectory import RewardStatus, Trajectory
from engine.data.problem import Problem
from engine.reward import MathReward
from engine.stages.evaluate import GREEDY, SAMPLED, rollouts
from engine.stages.grading import EngineGrader
from tests.engine.stages.bench import PacedRollouts, recipe

STAGE = EvalStage(name="eval", kind="eval", max_response_tokens=64, temperature=0.7)


def context(ungraded: int) -> Any:
    """A stage's parts: every rollout comes through, the last ``ungraded`` cannot be graded."""
    grader = EngineGrader(MathReward())

    async def grade(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        graded = len(trajectories) - ungraded
        unscored = {"reward": None, "reward_status": RewardStatus.unscored}
        others = [each.model_copy(update=unscored) for each in trajectories[graded:]]
        return [*await grader(trajectories[:graded]), *others]

    @asynccontextmanager
    async def engine_timeline(stage: str, step: int) -> AsyncIterator[None]:
        yield

    taken = PacedRollouts(recipe(), lambda problem, replica: 3)
    return SimpleNamespace(rollouts=taken, grade=grade, engine_timeline=engine_timeline)


async def test_what_we_could_not_grade_is_left_out() -> None:
    problems = [Problem(f"{number}+1?", "4") for number in range(3)]
    found = await rollouts(context(ungraded=2), STAGE, problems, SAMPLED, 2)
    assert [(t.group, t.replica, t.reward) for t in found] == [
        ("eval/sampled/0", 0, 1.0),
        ("eval/sampled/0", 1, 0.0),
        ("eval/sampled/1", 0, 1.0),
        ("eval/sampled/1", 1, 0.0),
    ]


async def test_greedy_is_cold_and_sampled_as_hot_as_the_stage() -> None:
    parts = context(ungraded=0)
    for kind in (SAMPLED, GREEDY):
        await rollouts(parts, STAGE, [Problem("1+1?", "2")], kind, 1)
    assert parts.rollouts.heat == [0.7, 0.0]
