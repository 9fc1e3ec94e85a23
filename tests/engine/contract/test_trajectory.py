"""One rollout: lengths that agree, errors by status, text of the policy alone."""

from typing import Any

import pytest
from pydantic import ValidationError

from engine.contract.base import visible
from engine.contract.trajectory import StopReason, ToolCallRecord, Trajectory, Turn


def trajectory(**changes: Any) -> Trajectory:
    calls = (
        ToolCallRecord(name="python", status="ok", response="an error in its words only"),
        ToolCallRecord(name="", status="parse_error", response="not JSON"),
        ToolCallRecord(name="python", status="timeout", response=""),
    )
    fields: dict[str, Any] = {
        "stage": "rl-1",
        "step": 1,
        "group": "g",
        "replica": 0,
        "problem_id": "p",
        "problem": "1 + 1?",
        "gold": "2",
        "prompt_ids": (1,),
        "ids": (2, 3, 4),
        "sampled": (True, False, True),
        "logprobs": (-0.1, 0.0, -0.2),
        "turns": (
            Turn(role="assistant", start=0, end=1, text="calls", calls=calls),
            Turn(role="tool", start=1, end=2, text="\\boxed{9}"),
            Turn(role="assistant", start=2, end=3, text="answers"),
        ),
        "stop_reason": StopReason.answered,
    }
    return Trajectory(**{**fields, **changes})


@pytest.mark.parametrize("field", ["ids", "sampled", "logprobs"])
def test_unequal_lengths_are_refused_and_named(field: str) -> None:
    with pytest.raises(ValidationError, match=r"ids, sampled, logprobs differ: \d, \d, \d"):
        trajectory(**{field: getattr(trajectory(), field)[:-1]})


@pytest.mark.parametrize("u", [0.0, -0.1, 1.1])
def test_the_stored_uniform_is_in_its_range(u: float) -> None:
    with pytest.raises(ValidationError, match="u\n"):
        trajectory(u=u)


def test_a_tool_error_is_a_status_never_a_word() -> None:
    assert trajectory().tool_errors == 2
    assert len(trajectory().calls) == 3


def test_sampled_text_is_the_policy_alone() -> None:
    assert trajectory().sampled_text == "calls\nanswers"
    assert trajectory().assistant_turns == 2


def test_a_trajectory_survives_json() -> None:
    assert Trajectory.model_validate_json(trajectory().model_dump_json()) == trajectory()


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\x00b", "a\\x00b"), ("\ud800", "\\ud800"), ("é 数 🙂\n\t", "é 数 🙂\n\t"), ("", "")],
)
def test_text_as_stored(text: str, shown: str) -> None:
    assert visible(text) == shown
