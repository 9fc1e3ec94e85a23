"""Reads answers strictly, and makes rows for lists in bulk."""

import json
from datetime import UTC, datetime
from typing import Any

from webapp.config.ids import derived_id
from webapp.runs.models import Run
from webapp.trajectories.models import Group, ToolCall, Trajectory, Turn

AT = datetime(2026, 3, 1, tzinfo=UTC).timestamp()
HOSTILE = "<img src=x onerror=alert(1)> \\x00 \u202e"


def strict(answer: Any) -> Any:
    """The body, read by a parser that refuses what JSON does not have."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in the answer")

    return json.loads(answer.content, parse_constant=refuse)


def problem_of(answer: Any, status: int, code: str) -> dict[str, Any]:
    """The body of a problem, after a look at what every problem has."""
    body: dict[str, Any] = strict(answer)
    assert (answer.status_code, body["status"], body["code"]) == (status, status, code), body
    assert answer["Content-Type"] == "application/problem+json"
    assert body["type"] == f"urn:starloom:problem:{code}"
    assert body["title"]
    assert body["detail"]
    assert body["request_id"] == answer["X-Request-ID"]
    return body


def places(body: dict[str, Any]) -> set[str]:
    """Where a problem says that something is wrong."""
    return {error.get("pointer", error.get("parameter")) for error in body["errors"]}


def make_trajectories(run: Run, count: int, first: int = 0, **fields: Any) -> list[Trajectory]:
    """Rollouts, in the order of their ids, four a step; each with two turns."""
    rows = make_rows(run, count, first, **fields)
    turns = [
        Turn(trajectory=row, position=place, role=role, start=0, end=9, text=HOSTILE)
        for row in rows
        for place, role in enumerate(("assistant", "tool"))
    ]
    Turn.objects.bulk_create(turns)
    return rows


def make_rows(run: Run, count: int, first: int = 0, **fields: Any) -> list[Trajectory]:
    """Rollouts without turns."""
    rows = [
        Trajectory(
            id=derived_id("traj", AT + n, run.pk, n),
            run=run,
            revision=1,
            attempt=1,
            stage="rl",
            group_name=f"g{n // 4}",
            replica=n % 4,
            problem_id=f"p{n // 4}",
            file="trajectories/rl-00001.parquet",
            row=n,
            **{**ROLLOUT, "step": 1 + n // 4, **fields},
        )
        for n in range(first, first + count)
    ]
    return Trajectory.objects.bulk_create(rows)


ROLLOUT: dict[str, Any] = {
    "problem": "1 + 1?",
    "gold": "2",
    "stop_reason": "answered",
    "first_version": 0,
    "last_version": 0,
    "answer": "2",
    "verdict": "right",
    "reward": 1.0,
    "reward_status": "scored",
    "u": 0.5,
    "penalty": 0.25,
    "advantage": 1.0,
    "kept": True,
    "kept_reason": "drawn",
    "seconds": 1.5,
    "prompt_tokens": 10,
    "response_tokens": 20,
    "sampled_tokens": 15,
    "assistant_turns": 1,
    "tool_calls": 1,
    "tool_errors": 0,
}


def make_call(trajectory: Trajectory, **fields: Any) -> ToolCall:
    values: dict[str, Any] = {
        "turn": 0,
        "position": 0,
        "name": "python",
        "arguments": {"code": "print(1 + 1)"},
        "status": "ok",
        "response": HOSTILE,
        "error_type": None,
        "queued_s": 0.0,
        "wall_s": 0.1,
        **fields,
    }
    facts = (trajectory.pk, values["turn"], values["position"])
    return ToolCall.objects.create(id=derived_id("tc", AT, *facts), run=trajectory.run, trajectory=trajectory, **values)


def make_group(run: Run, n: int, **fields: Any) -> Group:
    values: dict[str, Any] = {
        "revision": 1,
        "attempt": 1,
        "stage": "rl",
        "step": 1,
        "name": f"g{n}",
        "problem_id": f"p{n}",
        "rollouts": 4,
        "left_out": 0,
        "right": 2,
        "kept": 2,
        "outcome": "kept",
        "tool_calls": 4,
        "tool_errors": 1,
        **fields,
    }
    return Group.objects.create(id=derived_id("grp", AT + n, run.pk, n), run=run, **values)
