"""Rewards from the sandbox: the same as the engine's own, and a failure of ours is never a wrong answer."""

from collections.abc import Callable

import pytest

from engine.contract.resources import ScoringResources
from engine.contract.trajectory import RewardStatus, StopReason, Trajectory
from engine.reward import MathReward
from engine.reward.program import Answer
from engine.stages import grading
from engine.stages.grading import EngineGrader, SandboxGrader, batches, make_grader
from sandbox.contract import ExecStatus, SandboxUnavailable
from tests.engine.stages.bench import PlainSandbox

Make = Callable[..., Trajectory]


@pytest.fixture
def finished(make: Make) -> list[Trajectory]:
    """Right, wrong, right but cut, of a problem that cannot be graded; not scored yet."""
    fresh = {"reward": None, "reward_status": RewardStatus.unscored}
    return [
        make(replica=0, **fresh),
        make(replica=1, text="<answer>\\boxed{5}</answer>", **fresh),
        make(replica=2, stop_reason=StopReason.max_turns, **fresh),
        make(replica=3, gold="four", **fresh),
    ]


def grader(sandbox: PlainSandbox, batch: int = 64) -> SandboxGrader:
    return SandboxGrader(MathReward(), sandbox, ScoringResources(where="sandbox", wall_s=3, batch=batch))


@pytest.mark.parametrize("batch", [1, 3, 64])
async def test_the_sandbox_gives_the_rewards_of_the_engine(finished: list[Trajectory], batch: int) -> None:
    sandbox = PlainSandbox()
    assert await grader(sandbox, batch)(finished) == await EngineGrader(MathReward())(finished)
    assert len(sandbox.requests) == -(-len(finished) // batch)
    assert {request.limits.wall_s for request in sandbox.requests} == {3}


async def test_an_answer_that_hangs_the_grader_costs_no_other_its_reward(finished: list[Trajectory]) -> None:
    sandbox = PlainSandbox(lambda stdin: ExecStatus.TIMEOUT if "boxed{5}" in stdin else None)
    first, hanging, *others = await grader(sandbox)(finished)
    assert (hanging.reward, hanging.reward_status) == (None, RewardStatus.unscored)
    expected = await EngineGrader(MathReward())(finished)
    assert [first, *others] == [expected[0], *expected[2:]]
    assert len(sandbox.requests) == 1 + len(finished)


@pytest.mark.parametrize("fault", [ExecStatus.ERROR, ExecStatus.MEMORY, SandboxUnavailable("node lost")])
async def test_where_nothing_could_be_graded_the_step_fails(finished: list[Trajectory], fault: object) -> None:
    with pytest.raises(SandboxUnavailable, match="graded none of 4 answers"):
        await grader(PlainSandbox(lambda stdin: fault))(finished)


async def test_nothing_to_grade_asks_nothing() -> None:
    sandbox = PlainSandbox()
    assert await grader(sandbox)([]) == []
    assert sandbox.requests == []


def test_batches_keep_order_and_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grading, "BATCH_CHARS", 10)
    answers = [Answer("", "x" * length, cut=False) for length in (4, 4, 4, 20, 1, 1, 1)]
    parts = list(batches(answers, 2))
    assert [[len(each.text) for each in part] for part in parts] == [[4, 4], [4], [20], [1, 1], [1]]
    assert [each for part in parts for each in part] == answers


def test_the_recipe_says_where() -> None:
    sandbox = PlainSandbox()
    assert isinstance(make_grader(ScoringResources(), sandbox), EngineGrader)
    assert isinstance(make_grader(ScoringResources(where="sandbox"), sandbox), SandboxGrader)
