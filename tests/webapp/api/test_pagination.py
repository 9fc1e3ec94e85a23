"""Pages by keyset: nothing doubled or missing while rows come in, and deep pages found through an index."""

import base64
import json
from typing import Any

from django.db import connection
from rest_framework.test import APIClient

from tests.webapp.api.support import make_rows, make_trajectories, places, problem_of, strict
from tests.webapp.support import make_run
from webapp.accounts.models import Project, User
from webapp.api.pagination import beyond
from webapp.runs.models import Run
from webapp.trajectories.models import Trajectory
from webapp.trajectories.queries import trajectory_list


def walk(api: APIClient, url: str, link: str = "next") -> list[list[str]]:
    """The ids of all pages from ``url`` on."""
    pages, following = [], url
    while following:
        body = strict(api.get(following))
        pages.append([row["id"] for row in body["results"]])
        following = body[link]
    return pages


def clone_runs(run: Run, count: int) -> None:
    """Runs of the same project, as rows only."""
    common = {"project": run.project, "name": "x", "spec": {}, "created_by": run.created_by}
    Run.objects.bulk_create(Run(**common) for _ in range(count))


def test_paging_while_rows_are_created_shows_every_row_once(api: APIClient, run: Run) -> None:
    """F027"""
    clone_runs(run, 999)
    there = set(Run.objects.values_list("pk", flat=True))
    seen: list[str] = []
    following = "/api/v1/runs?limit=50"
    while following:
        body = strict(api.get(following))
        seen += [row["id"] for row in body["results"]]
        following = body["next"]
        clone_runs(run, 1)  # between two pages
    assert len(seen) == len(set(seen)), "a row came twice"
    assert there <= set(seen), "a row fell out"


def test_pages_backwards_are_the_pages_forwards(api: APIClient, run: Run) -> None:
    clone_runs(run, 10)
    forwards = walk(api, "/api/v1/runs?limit=4")
    last = [page for page in forwards if page][-1]
    assert [len(page) for page in forwards] == [4, 4, 3]

    body = strict(api.get("/api/v1/runs?limit=4"))
    while body["next"]:
        body = strict(api.get(body["next"]))
    assert [row["id"] for row in body["results"]] == last
    backwards = walk(api, body["previous"], "previous")
    assert [*backwards[::-1], last] == forwards


def test_links_are_in_the_header_as_well(api: APIClient, run: Run) -> None:
    clone_runs(run, 5)
    answer = api.get("/api/v1/runs?limit=2")
    body = strict(answer)
    assert answer["Link"] == f'<{body["next"]}>; rel="next"'
    second = api.get(body["next"])
    assert 'rel="next"' in second["Link"]
    assert 'rel="previous"' in second["Link"]
    assert body["previous"] is None


def test_a_total_is_counted_only_when_asked_for(api: APIClient, run: Run) -> None:
    clone_runs(run, 5)
    assert "count" not in strict(api.get("/api/v1/runs?limit=2"))
    counted = strict(api.get("/api/v1/runs?limit=2&count=exact"))
    assert counted["count"] == 6
    assert "count" not in counted["next"]
    problem_of(api.get("/api/v1/runs?count=guess"), 400, "invalid")


def test_a_limit_beyond_reason_is_capped(api: APIClient, owner: User) -> None:
    """F031"""
    Project.objects.bulk_create(Project(owner=owner, name=str(n)) for n in range(501))
    for query in ("page_size=100000000", "limit=" + "9" * 400):
        assert len(strict(api.get(f"/api/v1/projects?{query}"))["results"]) == 500
    assert len(strict(api.get("/api/v1/projects"))["results"]) == 50


def test_a_limit_that_is_no_number_of_rows_is_refused(api: APIClient) -> None:
    for limit in ("0", "-1", "ten", "1.5", "", "٣", "0000"):
        assert places(problem_of(api.get("/api/v1/runs", {"limit": limit}), 400, "invalid")) == {"limit"}


def packed(*values: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


CURSORS = [
    "nonsense",
    "!",
    "é",
    packed(),
    packed(2, "-id", 0, "run_x"),
    packed(1, "-id", 0),
    packed(1, "-id", 0, 5),
    packed(1, "-id", 0, "a\x00b"),
    packed(1, "-id", 0, "\ud800"),
    packed(1, "-id", 0, None),
    packed(1, "-id", 0, "a", "b"),
    packed(1, "id", 0, "run_x"),
    base64.urlsafe_b64encode(b"[" * 50_000).decode(),
]


def test_a_cursor_that_is_not_ours_is_refused(api: APIClient) -> None:
    for cursor in CURSORS:
        body = problem_of(api.get("/api/v1/runs", {"cursor": cursor}), 400, "invalid_cursor")
        assert places(body) == {"cursor"}


def test_rows_can_be_ordered_by_what_has_an_index_only(api: APIClient, run: Run) -> None:
    make_trajectories(run, 9)
    url = f"/api/v1/runs/{run.pk}/trajectories"
    assert walk(api, f"{url}?ordering=step&limit=2") == walk(api, f"{url}?limit=2")
    ids = [row for page in walk(api, f"{url}?ordering=-step&limit=2") for row in page]
    assert ids == sorted(ids, reverse=True)
    body = problem_of(api.get(f"{url}?ordering=-reward"), 400, "invalid")
    assert "expected one of id, step" in body["detail"]


def plan_of(rows: Any) -> dict[str, Any]:
    """The only scan of the plan that Postgres makes for a page of ``rows``."""
    with connection.cursor() as cursor:
        sql, parameters = rows.query.sql_with_params()
        cursor.execute(f"EXPLAIN (FORMAT JSON) {sql}", parameters)
        (plan,) = cursor.fetchone()
    node = (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]
    while "Plans" in node:
        (node,) = node["Plans"]
    return dict(node)


def test_a_deep_page_is_found_through_the_index(project: Project) -> None:
    """F029: page 20000 costs what page 2 costs, because it is one step down the index and not a walk over rows."""
    run, other = make_run(project), make_run(project)
    for each in (run, other):
        make_rows(each, 1500)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE trajectories_trajectory")
    deep = trajectory_list(run).order_by("id")[1400].pk
    page = trajectory_list(run).filter(beyond(["id"], [deep], descending=False)).order_by("id")[:51]
    scan = plan_of(page)
    assert scan["Node Type"] in ("Index Scan", "Index Only Scan"), scan
    assert "id" in scan["Index Cond"], scan
    assert deep in scan["Index Cond"], scan


def test_the_bound_of_two_fields_is_on_the_first_as_well(run: Run) -> None:
    make_trajectories(run, 12)
    rows = list(Trajectory.objects.order_by("step", "id"))
    keys = (rows[5].step, rows[5].pk)
    ordered = Trajectory.objects.order_by("step", "id")
    assert list(ordered.filter(beyond(["step", "id"], keys, descending=False))) == rows[6:]
    assert list(ordered.filter(beyond(["step", "id"], keys, descending=True))) == rows[:5]
