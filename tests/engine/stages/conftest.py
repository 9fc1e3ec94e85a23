"""Trajectories made by hand, and steps on a bench that gives them out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.contract.trajectory import RewardStatus, StopReason, ToolCallRecord, Trajectory, Turn
from engine.stages.sampling import Ask
from tests.engine.stages.bench import Bench, recipe

Make = Callable[..., Trajectory]


@pytest.fixture
def make() -> Make:
    """A scored trajectory: ``statuses`` are those of its tool calls, ``text`` what the policy wrote last."""

    def build(
        *,
        reward: float = 1.0,
        statuses: tuple[str, ...] = ("ok",),
        text: str = "<answer>\\boxed{4}</answer>",
        replica: int = 0,
        **other: Any,
    ) -> Trajectory:
        calls = tuple(ToolCallRecord(name="python", status=status, response="") for status in statuses)
        fields: dict[str, Any] = {
            "stage": "rl",
            "step": 1,
            "group": "rl/1/0",
            "replica": replica,
            "problem_id": "p",
            "problem": "2+2?",
            "gold": "4",
            "prompt_ids": (1, 2),
            "ids": (3, 4, 5),
            "sampled": (True, False, True),
            "logprobs": (-0.5, 0.0, -0.25),
            "turns": (
                Turn(role="assistant", start=0, end=1, text="call", calls=calls),
                Turn(role="assistant", start=2, end=3, text=text),
            ),
            "stop_reason": StopReason.answered,
            "reward": reward,
            "reward_status": RewardStatus.scored,
            "u": (replica + 1) / 64,
        }
        return Trajectory(**{**fields, **other})

    return build


@pytest.fixture
def bench(tmp_path: Path, make: Make) -> Callable[..., Bench]:
    """A bench whose rollouts are right, wrong, or None for one that our own failure spoiled after retries."""

    def build(right: Callable[[Ask], bool | None], *, gap: float = 1e-6, **fields: Any) -> Bench:
        def answer(ask: Ask) -> Trajectory | None:
            verdict = right(ask)
            if verdict is None:
                return None
            text = f"<answer>\\boxed{{{4 if verdict else 5}}}</answer>"
            own = {"group": ask.group, "replica": ask.replica, "u": ask.u, "problem_id": ask.problem.id}
            return make(text=text, step=ask.step, **own)

        return Bench(tmp_path, recipe(**fields), answer, gap)

    return build
