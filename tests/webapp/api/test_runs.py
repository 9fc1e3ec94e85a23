"""Runs over REST: created from a version, JSON or TOML, listed, read, commanded."""

import json
import tomllib
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from pytest_django import DjangoAssertNumQueries
from rest_framework.test import APIClient

from tests.webapp.api.support import places, problem_of, strict
from tests.webapp.support import RECIPE, make_project, make_run
from webapp.accounts.models import Project, User
from webapp.api.serializers import RunDetail, RunSummary
from webapp.datasets.models import Dataset
from webapp.recipes.models import RecipeVersion
from webapp.recipes.services import save_version
from webapp.runs.models import Command, Run
from webapp.runs.queries import run_summary

RUNS = "/api/v1/runs"
FOREIGN = {"kind": "file", "path": "/etc/passwd"}
AS_JSON: dict[str, Any] = tomllib.loads(RECIPE)
ROWS = [json.loads(line) for line in Path("tests/cases/platform.jsonl").read_text().splitlines()]
CASES = {row["id"]: row for row in ROWS}


def post(api: APIClient, body: Any, **headers: str) -> Any:
    return api.post(RUNS, body, format="json", headers=headers)


def with_stage(place: int, **fields: Any) -> dict[str, Any]:
    recipe = deepcopy(AS_JSON)
    recipe["stages"][place].update(fields)
    return recipe


@pytest.mark.parametrize("given", ["recipe", "toml", "recipe_version"])
def test_a_run_is_made_from_a_recipe_in_any_of_its_forms(
    api: APIClient,
    owner: User,
    project: Project,
    queued_tasks: list[Any],
    django_capture_on_commit_callbacks: Any,
    given: str,
) -> None:
    version = save_version(user=owner, project=project, name="saved", toml=RECIPE)
    form = {"recipe": AS_JSON, "toml": RECIPE, "recipe_version": version.pk}[given]
    with django_capture_on_commit_callbacks(execute=True):
        answer = post(api, {given: form, "name": "first"})
    assert answer.status_code == 201, answer.content
    body = strict(answer)
    run = Run.objects.get(pk=body["id"])
    assert answer["Location"] == f"http://testserver{RUNS}/{run.pk}"
    assert (body["state"], body["name"], body["project"]) == ("queued", "first", project.pk)
    assert body["digest"] == version.digest
    assert body["recipe_version"] == (version.pk if given == "recipe_version" else None)
    assert tomllib.loads(body["toml"]) == AS_JSON
    assert queued_tasks == [("start_run", run.pk)]
    assert strict(api.get(answer["Location"])) == body


def test_a_built_in_preset_can_be_run_by_anybody(api: APIClient) -> None:
    version = RecipeVersion.objects.filter(recipe__project=None).first()
    assert version is not None
    assert post(api, {"recipe_version": version.pk}).status_code == 201


def test_without_a_project_it_is_ones_first(api: APIClient, owner: User) -> None:
    body = strict(post(api, {"toml": RECIPE}))
    assert body["project"] == owner.projects.get().pk


def test_a_dataset_can_be_the_data_of_a_stage(api: APIClient, owner: User, project: Project) -> None:
    dataset = Dataset.objects.create(project=project, name="d", version=1, sha256="0" * 64, count=1, created_by=owner)
    body = strict(post(api, {"toml": RECIPE, "datasets": {"rl": dataset.pk}}))
    assert body["datasets"] == {"rl": dataset.pk}
    refused = post(api, {"toml": RECIPE, "datasets": {"rl": "ds_nothing", "sft": dataset.pk}})
    assert places(problem_of(refused, 400, "invalid")) == {"/datasets/rl"}
    refused = post(api, {"toml": RECIPE, "datasets": {"sft": dataset.pk}})
    assert places(problem_of(refused, 400, "invalid")) == {"/datasets/sft"}


# F035 in the words of our recipe. What has no counterpart: ``clip_low`` > ``clip_high`` is legal here, because both are
# distances from 1; and that ``keep_per_problem`` is more than ``rollouts_per_problem`` can be said only of a number of
# rollouts that could be.
COUNTERPARTS = {
    "group_size": "rollouts_per_problem",
    "down_sample_to": "keep_per_problem",
    "lr": "learning_rate",
    "max_turns": "max_turns",
    "clip_low": "clip_low",
    "clip_high": "clip_high",
}


def test_every_wrong_field_of_a_recipe_is_named(api: APIClient) -> None:
    """F035"""
    case = CASES["F035"]
    recipe = with_stage(1, **{COUNTERPARTS[name]: value for name, value in case["input"]["config"].items()})
    body = problem_of(post(api, {"recipe": recipe}), case["expected"]["status"], "invalid")
    stage = "/recipe/stages/1"
    assert places(body) == {f"{stage}/rollouts_per_problem", f"{stage}/learning_rate", f"{stage}/max_turns"}
    assert not Run.objects.exists()


def test_keeping_more_than_there_are_is_named_at_the_field(api: APIClient) -> None:
    body = problem_of(post(api, {"recipe": with_stage(1, keep_per_problem=5)}), 400, "invalid")
    assert places(body) == {"/recipe/stages/1/keep_per_problem"}


def test_clip_ranges_are_distances_and_may_be_any_way_round(api: APIClient) -> None:
    assert post(api, {"recipe": with_stage(1, clip_low=0.3, clip_high=0.2)}).status_code == 201


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, {""}),
        ({"toml": RECIPE, "recipe": AS_JSON}, {""}),
        ({"toml": RECIPE, "nmae": "x", "datasets": {"rl": 5}}, {"/nmae"}),
        ({"toml": RECIPE, "name": "x" * 121, "datasets": []}, {"/name", "/datasets"}),
        ({"toml": "name = ", "name": ["x"]}, {"/toml", "/name"}),
        ({"toml": 5}, {"/toml"}),
        ({"toml": ""}, {"/toml"}),
        ({"toml": RECIPE + "nonsense = 1"}, {"/toml"}),
        ({"toml": RECIPE, "project": "prj_no"}, {"/project"}),
        ({"recipe_version": "rcv_no"}, {"/recipe_version"}),
        ({"recipe_version": {"a": 1}}, {"/recipe_version"}),
        ({"recipe": None}, {"/recipe"}),
        ({"recipe": []}, {"/recipe"}),
        ({"recipe": {}}, {"/recipe/name", "/recipe/model", "/recipe/stages"}),
        ({"recipe": {**AS_JSON, "seed": 10**400}}, {"/recipe/seed"}),
        ({"recipe": with_stage(1, learning_rate=10**400)}, {"/recipe/stages/1/learning_rate"}),
        ({"recipe": with_stage(1, problems=FOREIGN)}, {"/recipe/stages/1/problems/path"}),
        ({"recipe": {**AS_JSON, "model": {"kind": "folder", "path": "/etc"}}}, {"/recipe/model/path"}),
    ],
)
def test_wrong_bodies_are_told_field_by_field(api: APIClient, body: Any, expected: set[str]) -> None:
    assert places(problem_of(post(api, body), 400, "invalid")) == expected
    assert not Run.objects.exists()


def test_toml_that_is_none_is_told_with_its_line(api: APIClient) -> None:
    body = problem_of(post(api, {"toml": 'name = "x"\nseed = \n'}), 400, "invalid")
    assert "line 2" in body["errors"][0]["message"]


def test_answers_have_the_members_that_the_schema_says(api: APIClient, run: Run) -> None:
    assert set(run_summary(run)) == set(RunSummary().fields)
    assert set(strict(api.get(f"{RUNS}/{run.pk}"))) == set(RunDetail().fields)
    assert set(run_summary(run)["stages"][0]) == set(RunSummary().fields["stages"].child.fields)  # type: ignore[attr-defined]


def test_a_list_costs_the_same_number_of_queries_whatever_its_length(
    api: APIClient, project: Project, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for _ in range(12):
        make_run(project, state="running")
    api.get(RUNS)
    for limit in (1, 12):
        with django_assert_num_queries(4):  # the token, runs, stages, commands
            assert len(strict(api.get(f"{RUNS}?limit={limit}"))["results"]) == limit


def test_runs_can_be_filtered(api: APIClient, owner: User, project: Project) -> None:
    other = make_project(owner)
    running, paused, ended = (make_run(project, state=state) for state in ("running", "paused", "finished"))
    elsewhere = make_run(other, state="running")

    def found(query: str) -> set[str]:
        return {row["id"] for row in strict(api.get(f"{RUNS}?{query}"))["results"]}

    assert found("state=running") == {running.pk, elsewhere.pk}
    assert found("state=running&state=paused") == {running.pk, elsewhere.pk, paused.pk}
    assert found(f"project={project.pk}") == {running.pk, paused.pk, ended.pk}
    assert found("project=prj_nothing") == set()
    body = problem_of(api.get(f"{RUNS}?state=sleeping"), 400, "invalid")
    assert "sleeping is none of queued, starting, running" in body["detail"]


TIMES = [
    ("2025-03-30T02:30:00", True),  # does not exist in Paris; without an offset it is UTC, where it does
    ("2025-03-30T02:30:00%2B01:00", True),
    ("2025-03-30T02:30:00Z", True),
    ("2025-03-30", True),
    ("0001-01-01T00:00:00Z", True),
    ("2025-03-30T02:30:00%2B23:59", True),
    ("0001-01-01T00:00:00%2B14:00", False),
    ("9999-12-31T23:59:59-14:00", False),
    ("2025-03-30T02:30:00 01:00", False),  # a + that was not escaped
    ("2025-03-30T02:30:00 Europe/Paris", False),
    ("2025-03-30T02:30:00%2B99:99", False),
    ("2025-13-01T00:00:00Z", False),
    ("yesterday", False),
    ("1e400", False),
]


def test_times_are_moments_in_utc_or_refused_in_words(api: APIClient, run: Run) -> None:
    """F037"""
    for time, fine in TIMES:
        answer = api.get(f"{RUNS}?created_at__gte={time}")
        if fine:
            assert answer.status_code == 200, time
        else:
            assert "2026-03-30T02:30:00Z" in problem_of(answer, 400, "invalid")["detail"], time


def test_an_offset_is_taken_into_account(api: APIClient, run: Run) -> None:
    """F037: the same moment, written in two ways."""
    Run.objects.filter(pk=run.pk).update(created_at="2025-03-30T00:30:00Z")
    assert strict(api.get(f"{RUNS}?created_at__gte=2025-03-30T01:30:00%2B01:00"))["results"]
    assert not strict(api.get(f"{RUNS}?created_at__lt=2025-03-30T01:30:00%2B01:00"))["results"]
    (row,) = strict(api.get(RUNS))["results"]
    assert row["created_at"] == "2025-03-30T00:30:00Z"


def test_fields_and_omit_choose_members(api: APIClient, run: Run) -> None:
    assert set(strict(api.get(f"{RUNS}/{run.pk}?fields=id,state"))) == {"id", "state"}
    assert set(strict(api.get(f"{RUNS}?fields=id,state&omit=state"))["results"][0]) == {"id"}
    assert "recipe" not in strict(api.get(f"{RUNS}/{run.pk}?omit=recipe,toml"))
    body = problem_of(api.get(f"{RUNS}?fields=id,stat"), 400, "unknown_field")
    assert "known are: id, name" in body["detail"]


def test_a_command_is_accepted_and_can_be_waited_for(api: APIClient, run: Run, owner: User) -> None:
    answer = api.post(f"{RUNS}/{run.pk}/commands/pause", {"reason": "lunch"}, format="json")
    body = strict(answer)
    assert answer.status_code == 202
    expected = {"kind": "pause", "status": "accepted", "reason": "lunch", "by": owner.username, "run": run.pk}
    assert expected.items() <= body.items()
    where = answer["Location"]
    assert where == f"http://testserver{RUNS}/{run.pk}/commands/{body['id']}"
    assert strict(api.get(where)) == body
    run.refresh_from_db()
    assert run.state == "pausing"

    Command.objects.filter(pk=body["id"]).update(status="applied")
    assert strict(api.get(where))["status"] == "applied"
    assert [row["id"] for row in strict(api.get(f"{RUNS}/{run.pk}/commands"))["results"]] == [body["id"]]
    assert strict(api.get(f"{RUNS}/{run.pk}/commands?status=accepted"))["results"] == []


def test_a_command_needs_no_body(api: APIClient, run: Run) -> None:
    assert api.post(f"{RUNS}/{run.pk}/commands/checkpoint").status_code == 202


def test_a_command_that_makes_no_sense_now_says_what_does(api: APIClient, project: Project) -> None:
    run = make_run(project, state="finished")
    body = problem_of(api.post(f"{RUNS}/{run.pk}/commands/pause"), 409, "wrong_state")
    assert (body["state"], body["allowed_commands"]) == ("finished", [])
    run = make_run(project, state="paused")
    body = problem_of(api.post(f"{RUNS}/{run.pk}/commands/checkpoint"), 409, "wrong_state")
    assert body["allowed_commands"] == ["resume", "stop", "kill"]
    assert not Command.objects.exists()


def test_a_command_that_there_is_not_lists_those_that_there_are(api: APIClient, run: Run) -> None:
    body = problem_of(api.post(f"{RUNS}/{run.pk}/commands/fly"), 404, "unknown_command")
    assert "pause, resume, stop, checkpoint, kill" in body["detail"]


def test_a_wrong_body_of_a_command_changes_nothing(api: APIClient, run: Run) -> None:
    answer = api.post(f"{RUNS}/{run.pk}/commands/stop", {"reason": "x" * 501, "now": True}, format="json")
    assert places(problem_of(answer, 400, "invalid")) == {"/reason", "/now"}
    run.refresh_from_db()
    assert run.state == "running"
