"""The summary of a run that pages, REST and live updates show."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.webapp.support import make_project, make_run, make_user
from webapp.runs import services
from webapp.runs.models import Run
from webapp.runs.queries import run_list, run_summary

pytestmark = pytest.mark.django_db


def test_a_summary_is_strict_json_with_times_in_utc() -> None:
    run = make_run(state="running", x=5, latest={"reward": 0.5}, started_at=datetime(2026, 5, 1, 12, tzinfo=UTC))
    services.send_command(run.pk, "checkpoint", by="ada")
    run.refresh_from_db()
    found = json.loads(json.dumps(run_summary(run), allow_nan=False))
    assert found["started_at"] == "2026-05-01T12:00:00Z"
    assert found["created_at"].endswith("Z")
    assert (found["ended_at"], found["x"], found["total_steps"]) == (None, 5, 14)
    assert (found["project"], found["created_by"]) == (run.project_id, run.created_by.username)
    assert (found["allowed_commands"], found["waiting_commands"]) == (
        ["pause", "stop", "checkpoint", "kill"],
        ["checkpoint"],
    )
    assert [(stage["name"], stage["offset"], stage["trained_steps"]) for stage in found["stages"]] == [
        ("sft", 0, 0),
        ("rl", 4, 0),
        ("eval", 14, 0),
    ]
    assert found["cursor"] == run.revision


def test_what_waited_for_an_earlier_launch_waits_no_more() -> None:
    run = make_run(state="running")
    services.send_command(run.pk, "checkpoint", by="ada")
    Run.objects.filter(pk=run.pk).update(launches=2)
    assert run_summary(Run.objects.get(pk=run.pk))["waiting_commands"] == []
    assert run_summary(run_list(run.created_by).get())["waiting_commands"] == []


def test_a_list_of_runs_costs_the_same_however_long_it_is() -> None:
    project = make_project()

    def asked() -> tuple[int, int]:
        with CaptureQueriesContext(connection) as queries:
            shown = [run_summary(run) for run in run_list(project.owner)]
        return len(shown), len(queries)

    make_run(project)
    one = asked()
    for _ in range(4):
        make_run(project, state="running")
    assert (one[0], asked()) == (1, (5, one[1]))
    assert one[1] == 3


def test_a_list_leaves_the_recipes_out() -> None:
    run = make_run()
    with CaptureQueriesContext(connection) as queries:
        list(run_list(run.created_by))
    assert '"spec"' not in queries[0]["sql"]
    assert '"toml"' not in queries[0]["sql"]


def test_everybody_sees_his_own() -> None:
    mine, other = make_run(), make_run()
    assert list(run_list(mine.created_by)) == [mine]
    assert set(run_list(make_user(is_superuser=True))) == {mine, other}
    assert list(run_list(AnonymousUser())) == []


def test_the_newest_comes_first() -> None:
    project = make_project()
    made: list[Any] = [make_run(project) for _ in range(3)]
    assert list(run_list(project.owner)) == sorted(made, key=lambda run: run.pk, reverse=True)
