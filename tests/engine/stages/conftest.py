"""Trajectories made by hand, for tests of what is computed from them."""

from collections.abc import Callable
from typing import Any

import pytest

from engine.contract.trajectory import RewardStatus, StopReason, ToolCallRecord, Trajectory, Turn

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
