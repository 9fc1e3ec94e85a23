"""How the sandbox is, by REST: the sandbox's own words, or a problem that says why there are none."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from rest_framework.test import APIClient

from sandbox.contract import NodeStatus, SandboxStatus
from tests.webapp.api.support import problem_of, strict
from webapp.machine import sandbox_door

NODE = NodeStatus(
    name="a",
    host="host-1",
    tier="container",
    isolation="landlock",
    slots=4,
    busy=1,
    sessions=2,
    answered=7,
    uptime_s=65,
    load_1m=0.5,
    memory_mb=48,
)


def test_it_is_answered_as_the_committed_schema_says(api: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    status = SandboxStatus(nodes=(NODE,), queued_interactive=0, queued_training=3)
    monkeypatch.setattr(sandbox_door, "status", lambda place: status)

    answer = strict(api.get("/api/v1/sandbox"))

    assert SandboxStatus.model_validate(answer) == status
    schema = json.loads(Path("docs/openapi.json").read_text())
    said = schema["paths"]["/api/v1/sandbox"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    Draft202012Validator({**said, "components": schema["components"]}).validate(answer)


def test_where_there_is_none_the_problem_says_why(api: APIClient) -> None:
    problem = problem_of(api.get("/api/v1/sandbox"), 503, "sandbox_unavailable")
    assert "no node listens at unix:" in problem["detail"]
