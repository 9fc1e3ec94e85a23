"""Lists are summary rows at a constant price; a trajectory is its transcript; an export is all of them as lines."""

import asyncio
import json
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoAssertNumQueries
from rest_framework.test import APIClient

from tests.webapp.api.support import (
    HOSTILE,
    make_call,
    make_group,
    make_trajectories,
    places,
    problem_of,
    strict,
)
from webapp.api.serializers import TrajectoryResource, TrajectoryRow
from webapp.api.views.trajectories import exported, in_threads
from webapp.runs.models import Run
from webapp.trajectories.models import Trajectory
from webapp.trajectories.queries import trajectory_list


@pytest.fixture
def url(run: Run) -> str:
    return f"/api/v1/runs/{run.pk}/trajectories"


def test_a_list_loads_no_bodies_and_costs_the_same_for_any_length(
    api: APIClient, run: Run, url: str, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    """F021: what a row holds in bulk is not even selected."""
    make_trajectories(run, 12, problem="x" * 5_000, gold="y" * 5_000)
    api.get(url)
    for limit in (1, 12):
        with django_assert_num_queries(3) as queries:  # the token, the run, its trajectories
            rows = strict(api.get(f"{url}?limit={limit}"))["results"]
        assert len(rows) == limit
    assert set(rows[0]) == set(TrajectoryRow().fields)
    selected = queries[-1]["sql"].partition(" FROM ")[0]
    for body in ('"problem"', '"gold"', '"kept_reason"'):
        assert body not in selected
    with CaptureQueriesContext(connection) as counted:
        assert strict(api.get(f"{url}?count=exact"))["count"] == 12
    assert not any('"problem"' in query["sql"] for query in counted)


def test_trajectories_can_be_filtered_by_what_the_page_filters(api: APIClient, run: Run, url: str) -> None:
    def make(n: int, **fields: Any) -> str:
        return make_trajectories(run, 1, n, **fields)[0].pk

    wrong = make(0, reward=0.0, kept=False, step=1, tool_errors=2, stop_reason="length", response_tokens=500)
    right = make(1, reward=1.0, kept=True, step=2, tool_errors=0)
    unscored = make(2, reward=None, kept=False, step=3, tool_errors=1, stop_reason="aborted")
    make_call(Trajectory.objects.get(pk=wrong), status="error", error_type="NameError")
    gone = make(3, superseded=True)

    def found(query: str) -> set[str]:
        return {row["id"] for row in strict(api.get(f"{url}?{query}"))["results"]}

    expected = {
        "": {wrong, right, unscored},
        "reward__gte=0.5": {right},
        "reward__lte=0.5": {wrong},
        "reward=1": {right},
        "step=2": {right},
        "step__gte=2": {right, unscored},
        "step__lte=1&stage=rl": {wrong},
        "stage=other": set(),
        "tool_errors__gt=0": {wrong, unscored},
        "kept=true": {right},
        "kept=false": {wrong, unscored},
        "stop_reason=length": {wrong},
        "error_type=NameError": {wrong},
        "error_type=ValueError": set(),
        "group=g0": {wrong, right, unscored},
        "attempt=2": set(),
        "response_tokens__gte=100": {wrong},
        "superseded=true": {gone},
        "superseded=false": {wrong, right, unscored},
        "kept=&step=": {wrong, right, unscored},
    }
    assert {query: found(query) for query in expected} == expected


REFUSED = [
    "reward__gte=nan",
    "reward__gte=inf",
    "reward__lte=-1e400",
    "reward=one",
    "step=-1",
    "step=99999999999999999999",
    "step=1.5",
    "kept=maybe",
    "kept=1",
    "stop_reason=bored",
    "superseded=x",
]


def test_no_value_of_a_filter_is_too_much(api: APIClient, run: Run, url: str) -> None:
    for query in REFUSED:
        body = problem_of(api.get(f"{url}?{query}"), 400, "invalid")
        assert places(body) == {query.partition("=")[0]}, query
    assert api.get(f"{url}?stage={'x' * 100_000}&tool_errors__gt=").status_code == 200


def test_a_trajectory_is_its_transcript_in_few_queries(
    api: APIClient, run: Run, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    (trajectory,) = make_trajectories(run, 1)
    call = make_call(trajectory, status="error", error_type="NameError")
    api.get("/api/v1/projects")  # notes when the token was used
    with django_assert_num_queries(4):  # the token, trajectory, turns, calls
        body = strict(api.get(f"/api/v1/trajectories/{trajectory.pk}"))
    assert set(body) == set(TrajectoryResource().fields)
    assert (body["problem"], body["gold"], body["run"]) == ("1 + 1?", "2", run.pk)
    assistant, tool = body["turns"]
    assert (assistant["role"], tool["role"]) == ("assistant", "tool")
    assert assistant["text"] == HOSTILE
    assert [made["id"] for made in assistant["calls"]] == [call.pk]
    assert tool["calls"] == []
    alone = strict(api.get(f"/api/v1/tool-calls/{call.pk}"))
    assert alone == {**assistant["calls"][0], "run": run.pk, "trajectory": trajectory.pk}


def test_hostile_text_travels_as_json_that_no_browser_takes_for_a_page(api: APIClient, run: Run) -> None:
    (trajectory,) = make_trajectories(run, 1)
    answer = api.get(f"/api/v1/trajectories/{trajectory.pk}")
    assert answer["Content-Type"] == "application/json"
    assert answer["X-Content-Type-Options"] == "nosniff"


def test_groups_show_what_down_sampling_made_of_them(api: APIClient, run: Run) -> None:
    url = f"/api/v1/runs/{run.pk}/groups"
    kept, again = make_group(run, 1), make_group(run, 2, superseded=True)
    right = make_group(run, 3, outcome="all_right", step=2)

    def found(query: str) -> list[str]:
        return [row["id"] for row in strict(api.get(f"{url}?{query}"))["results"]]

    assert found("") == [kept.pk, right.pk]
    assert found("outcome=all_right") == found("step=2") == [right.pk]
    assert found("superseded=true") == [again.pk]


def lines_of(answer: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in b"".join(answer.streaming_content).splitlines()]


def test_an_export_is_every_trajectory_as_reading_it_answers(api: APIClient, run: Run) -> None:
    made = make_trajectories(run, 45)
    make_call(made[7])
    answer = api.get(f"/api/v1/runs/{run.pk}/export")
    assert answer["Content-Type"] == "application/x-ndjson"
    assert answer["Content-Disposition"] == f'attachment; filename="{run.pk}-trajectories.ndjson"'
    assert answer["X-Content-Type-Options"] == "nosniff"
    rows = lines_of(answer)
    assert [row["id"] for row in rows] == [row.pk for row in made]
    assert rows[7] == strict(api.get(f"/api/v1/trajectories/{made[7].pk}"))
    assert len(rows[7]["turns"][0]["calls"]) == 1


def test_an_export_takes_the_filters_of_the_list(api: APIClient, run: Run) -> None:
    make_trajectories(run, 2)
    (wanted,) = make_trajectories(run, 1, 2, reward=0.0)
    url = f"/api/v1/runs/{run.pk}/export"
    assert [row["id"] for row in lines_of(api.get(f"{url}?reward__lte=0.5"))] == [wanted.pk]
    assert places(problem_of(api.get(f"{url}?reward__lte=x"), 400, "invalid")) == {"reward__lte"}
    assert places(problem_of(api.get(f"{url}?limit=5"), 400, "unknown_parameter")) == {"limit"}
    assert api.get(url, headers={"Accept": "application/x-ndjson"}).status_code == 200


def test_an_export_costs_queries_by_the_chunk_not_by_the_row(
    run: Run, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    make_trajectories(run, 40)
    with django_assert_num_queries(1 + 2 * 2):  # the cursor; turns and calls of each chunk
        assert len(list(exported(trajectory_list(run).defer(None)))) == 40


@pytest.mark.django_db(transaction=True)
def test_an_asgi_server_gets_an_export_line_by_line(run: Run) -> None:
    make_trajectories(run, 3)

    async def read() -> list[bytes]:
        try:
            return [line async for line in in_threads(exported(trajectory_list(run).defer(None)))]
        finally:
            await sync_to_async(lambda: connection.close())()  # that of the thread that read

    assert len(asyncio.run(read())) == 3
