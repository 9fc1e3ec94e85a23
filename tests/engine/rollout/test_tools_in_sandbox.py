"""The engine's side of a real sandbox: cells that share their variables, and rewards that are the same as our own."""

import json
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from engine.contract.resources import ScoringResources
from engine.contract.trajectory import RewardStatus, StopReason, Trajectory, Turn
from engine.reward import MathReward
from engine.rollout.tools.python import VARIABLES_GONE, PythonSessionTool, PythonTool
from engine.stages.grading import EngineGrader, SandboxGrader
from sandbox.client import SandboxClient, local_sandbox
from sandbox.contract import Limits

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

ANSWER = "<answer>\\boxed{4}</answer>"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncIterator[SandboxClient]:
    async with local_sandbox(slots=2) as client:
        yield client


@pytest.fixture
def sandbox(client: SandboxClient) -> SandboxClient:
    """What ``converse`` talks to."""
    return client


def cell(code: str) -> str:
    return f"<tool_call>{json.dumps({'name': 'execute_python_cell', 'arguments': {'code': code}})}</tool_call>"


async def test_variables_last_for_the_rollout_and_no_longer(converse, call, sandbox, eventually) -> None:
    tools = (PythonTool(), PythonSessionTool())
    turns = [
        cell("x = 40\nprint('set')"),
        cell("x + 2"),
        call("print(x)"),
        cell("import time\ntime.sleep(60)"),
        cell("x"),
        ANSWER,
    ]
    made = await converse(*turns, tools=tools).run(sandbox=Limits(wall_s=0.7), tool_response_chars=500)
    first, second, alone, hung, after = made.calls
    assert (first.response, second.response) == ("set", "42")
    assert (alone.status, alone.error_type) == ("error", "NameError"), "a program of its own sees none of them"
    assert hung.status == "timeout"
    assert hung.response.endswith(VARIABLES_GONE)
    assert (after.status, after.error_type) == ("error", "NameError")

    async def none_left() -> bool:
        return sandbox.node.backend.sessions == 0

    await eventually(none_left, 10)


async def test_the_sandbox_grades_as_the_engine_does(
    sandbox: SandboxClient, finished: Callable[..., Trajectory]
) -> None:
    texts = [ANSWER, "<answer>\\boxed{5}</answer>", "no answer"]
    rollouts = [finished(text, gold) for text in texts for gold in ("4", "8/2", "four")]
    by_sandbox = SandboxGrader(MathReward(), sandbox, ScoringResources(where="sandbox", batch=5))
    assert await by_sandbox(rollouts) == await EngineGrader(MathReward())(rollouts)


@pytest.fixture
def finished() -> Callable[..., Trajectory]:
    def make(text: str, gold: str) -> Trajectory:
        turns = (Turn(role="assistant", start=0, end=0, text=text),)
        fields = {"stage": "rl", "step": 1, "group": "g", "replica": 0, "problem_id": "p", "problem": "2+2?"}
        columns = {"prompt_ids": (), "ids": (), "sampled": (), "logprobs": ()}
        return Trajectory(
            **fields, **columns, gold=gold, turns=turns, stop_reason=StopReason.answered,
            reward_status=RewardStatus.unscored,
        )  # fmt: skip

    return make
