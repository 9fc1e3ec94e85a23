"""A job, an empty run folder and a trajectory for the tests of the sinks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.contract.job import JobSpec, Recipe
from engine.contract.trajectory import StopReason, ToolCallRecord, Trajectory, Turn
from engine.sink.run_folder import RunFolder


@pytest.fixture
def job() -> JobSpec:
    recipe = Recipe.model_validate(
        {
            "name": "laptop",
            "model": {"kind": "tiny-qwen3"},
            "stages": [{"kind": "rl", "name": "rl-1", "steps": 3, "max_response_tokens": 160}],
        }
    )
    return JobSpec(run_id="run-1", created_at=1.5, digest=recipe.digest, recipe=recipe)


@pytest.fixture
def folder(tmp_path: Path, job: JobSpec) -> RunFolder:
    return RunFolder.create(tmp_path / "run", job)


@pytest.fixture
def make_trajectory() -> Callable[..., Trajectory]:
    """A small trajectory with one failed call; keyword arguments replace fields."""

    def make(**changes: Any) -> Trajectory:
        call = ToolCallRecord(name="python", arguments={"code": "1/0"}, status="error", response="ZeroDivisionError")
        fields: dict[str, Any] = {
            "stage": "rl-1",
            "step": 12,
            "group": "g1",
            "replica": 3,
            "problem_id": "p1",
            "problem": "1 + 1?",
            "gold": "2",
            "prompt_ids": (5, 6),
            "ids": (7, 8, 9),
            "sampled": (True, True, False),
            "logprobs": (-0.5, -1.25, 0.0),
            "turns": (Turn(role="assistant", start=0, end=2, text="<tool_call>", calls=(call,)),),
            "stop_reason": StopReason.answered,
        }
        return Trajectory(**{**fields, **changes})

    return make
