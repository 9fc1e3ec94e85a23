"""Rows for tests of pages: a trajectory with its turns and calls, its group, figures of an evaluation, log lines."""

import itertools
from typing import Any

from django.utils import timezone

from webapp.config.ids import new_id
from webapp.runs.models import Run, StageRun
from webapp.telemetry.models import LogLine
from webapp.trajectories.models import Group, ToolCall, Trajectory, Turn

_numbers = itertools.count()
CALL = '<tool_call>{"name": "execute_python_code_with_standard_io", "arguments": {"code": "print(6*7)"}}</tool_call>'
ANSWER = "<answer>\\boxed{42}</answer>"


def make_trajectory(run: Run, *, texts: bool = True, **fields: Any) -> Trajectory:
    """A right rollout of the stage ``rl`` with one tool call, as it comes out of ingest; ``fields`` differ from it."""
    number = next(_numbers)
    values: dict[str, Any] = {
        "id": new_id("traj"), "run": run, "revision": 1, "attempt": 1, "stage": "rl", "step": 1,
        "group_name": "rl/1/0", "replica": number, "problem_id": f"problem{number}", "problem": "What is 6 times 7?",
        "gold": "42", "stop_reason": "answered", "first_version": 3, "last_version": 3, "answer": "42",
        "verdict": "correct", "reward": 1.0, "reward_status": "scored", "u": 0.5, "penalty": 0.0, "advantage": 0.7,
        "kept": True, "kept_reason": "kept", "seconds": 1.5, "prompt_tokens": 40, "response_tokens": 60,
        "sampled_tokens": 50, "assistant_turns": 2, "tool_calls": 1, "tool_errors": 0,
        "file": "trajectories/1/rl-1.parquet", "row": number,
    }  # fmt: skip
    row = Trajectory.objects.create(**values | fields)
    if texts:
        add_turns(row, [("assistant", f"I compute it.\n{CALL}"), ("tool", "42\n"), ("assistant", ANSWER)])
        add_call(row)
    return row


def add_turns(row: Trajectory, messages: list[tuple[str, str]], first: int = 0) -> None:
    Turn.objects.bulk_create(
        Turn(trajectory=row, position=place, role=role, start=10 * place, end=10 * place + 10, text=text)
        for place, (role, text) in enumerate(messages, start=first)
    )


def add_call(row: Trajectory, **fields: Any) -> ToolCall:
    values: dict[str, Any] = {
        "id": new_id("tc"), "run": row.run, "trajectory": row, "turn": 0, "position": 0,
        "name": "execute_python_code_with_standard_io", "arguments": {"code": "print(6*7)"}, "status": "ok",
        "response": "42\n", "error_type": None, "queued_s": 0.01, "wall_s": 0.05,
    }  # fmt: skip
    return ToolCall.objects.create(**values | fields)


def make_group(row: Trajectory, **fields: Any) -> Group:
    """The group that the trajectory names."""
    values: dict[str, Any] = {
        "id": new_id("grp"), "run": row.run, "revision": 1, "attempt": row.attempt, "stage": row.stage,
        "step": row.step, "name": row.group_name, "problem_id": row.problem_id, "rollouts": 4, "left_out": 0,
        "right": 2, "kept": 2, "outcome": "kept", "tool_calls": 4, "tool_errors": 1,
    }  # fmt: skip
    return Group.objects.create(**values | fields)


def finish_evaluation(run: Run, name: str = "eval", **metrics: float) -> None:
    StageRun.objects.filter(run=run, name=name).update(
        started_at=timezone.now(), finished_at=timezone.now(), metrics={"pass@1": 0.5, "pass@1_stderr": 0.1} | metrics
    )


def log(run: Run, *messages: str, level: str = "info") -> None:
    LogLine.objects.bulk_create(
        LogLine(run=run, revision=1, attempt=1, seq=next(_numbers) + 1, at=timezone.now(), level=level, message=text)
        for text in messages
    )
