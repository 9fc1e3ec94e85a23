"""Who may do what: sessions with CSRF, tokens with scopes, and nothing of other people's."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils import timezone
from rest_framework.test import APIClient

from tests.webapp.api.conftest import ClientOf
from tests.webapp.api.support import make_call, make_group, make_trajectories, places, problem_of, strict
from tests.webapp.support import PASSWORD
from webapp.accounts.models import ApiToken, User
from webapp.accounts.scopes import SCOPES
from webapp.accounts.services import create_token
from webapp.api import urls
from webapp.datasets.models import Dataset
from webapp.recipes.models import Recipe
from webapp.runs import services
from webapp.runs.models import Run

METHODS = ("get", "post", "put", "patch", "delete")


def views(patterns: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every view of REST with its address."""
    for pattern in patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from views(pattern.url_patterns, route)
        elif isinstance(pattern, URLPattern) and hasattr(pattern.callback, "cls"):
            yield route, pattern.callback.cls


ROUTES = dict(views(urls.urlpatterns))


def test_there_are_routes_to_look_at() -> None:
    assert len(ROUTES) > 20
    assert get_resolver("webapp.api.urls").url_patterns


@pytest.mark.parametrize("route", sorted(ROUTES))
def test_every_method_of_every_route_declares_its_scope(route: str) -> None:
    view = ROUTES[route]
    offered = {method.upper() for method in METHODS if method in view.http_method_names and hasattr(view, method)}
    assert set(view.required_scopes) == offered
    assert set(view.required_scopes.values()) <= {*SCOPES, ""}


@pytest.mark.parametrize("route", sorted(route for route, view in ROUTES.items() if hasattr(view, "post")))
def test_every_post_takes_an_idempotency_key(route: str) -> None:
    assert ROUTES[route].post.idempotent


def test_without_login_there_is_nothing_and_a_hint_how_to_come_in(run: Run) -> None:
    answer = APIClient().get(f"/api/v1/runs/{run.pk}")
    assert "Bearer" in problem_of(answer, 401, "not_authenticated")["detail"]
    assert answer["WWW-Authenticate"] == 'Bearer realm="starloom"'


def test_a_wrong_token_is_refused(db: None) -> None:
    for sent in ("sl_nobody_secret", "sl_", "", "slr_of-a-run", "x" * 5000, "sl_a_b c", "é"):
        answer = APIClient().get("/api/v1/runs", headers={"Authorization": f"Bearer {sent}"})
        problem_of(answer, 401, "invalid_token")
        assert answer["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize("end", [{"revoked_at": timezone.now()}, {"expires_at": timezone.now() - timedelta(seconds=1)}])
def test_a_token_that_has_ended_is_refused_even_beside_a_session(owner: User, end: dict[str, Any]) -> None:
    token, text = create_token(user=owner, name="x", scopes=["runs:read"], days=1)
    client = APIClient()
    client.login(username=owner.username, password=PASSWORD)
    assert client.get("/api/v1/runs").status_code == 200
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {text}")
    assert client.get("/api/v1/runs").status_code == 200
    ApiToken.objects.filter(pk=token.pk).update(**end)
    problem_of(client.get("/api/v1/runs"), 401, "invalid_token")


def test_a_missing_scope_is_named(owner: User, run: Run, client_of: ClientOf) -> None:
    client = client_of(owner, "runs:read")
    assert client.get(f"/api/v1/runs/{run.pk}").status_code == 200
    body = problem_of(client.post(f"/api/v1/runs/{run.pk}/commands/pause"), 403, "missing_scope")
    assert body["required_scope"] == "runs:control"
    assert "pause, resume" in body["detail"]


def test_a_session_needs_the_csrf_token_for_writes(owner: User, run: Run) -> None:
    client = APIClient(enforce_csrf_checks=True)
    client.login(username=owner.username, password=PASSWORD)
    url = f"/api/v1/runs/{run.pk}/commands/checkpoint"
    assert "CSRF" in problem_of(client.post(url), 403, "permission_denied")["detail"]
    client.get("/api/docs?script=")  # what sends requests from a page of ours brings the cookie
    cookie = client.cookies["starloom_csrf"].value
    assert client.post(url, headers={"X-CSRFToken": cookie}).status_code == 202


def test_a_token_needs_no_csrf_token(owner: User, run: Run, client_of: ClientOf) -> None:
    client = client_of(owner)
    client.handler.enforce_csrf_checks = True
    assert client.post(f"/api/v1/runs/{run.pk}/commands/checkpoint").status_code == 202


@pytest.fixture
def things(owner: User, run: Run) -> dict[str, str]:
    """Addresses of one of everything that belongs to the owner."""
    (trajectory,) = make_trajectories(run, 1)
    call = make_call(trajectory)
    make_group(run, 1)
    command = services.send_command(run.pk, "checkpoint", by=owner.username)
    dataset = Dataset.objects.create(
        project=run.project, name="sums", version=1, sha256="0" * 64, count=1, created_by=owner
    )
    recipe = Recipe.objects.create(project=run.project, name="mine")
    token = ApiToken.objects.filter(user=owner).first() or create_token(user=owner, name="x", scopes=["runs:read"])[0]
    of_run = {
        part: f"/api/v1/runs/{run.pk}/{part}"
        for part in ("commands", "series", "charts", "logs", "groups", "trajectories", "export")
    }
    return {
        **of_run,
        "command": f"/api/v1/runs/{run.pk}/commands/{command.pk}",
        "run": f"/api/v1/runs/{run.pk}",
        "updates": f"/api/v1/runs/{run.pk}/updates?since=0",
        "trajectory": f"/api/v1/trajectories/{trajectory.pk}",
        "tool call": f"/api/v1/tool-calls/{call.pk}",
        "dataset": f"/api/v1/datasets/{dataset.pk}",
        "recipe": f"/api/v1/recipes/{recipe.pk}",
        "recipe versions": f"/api/v1/recipes/{recipe.pk}/versions",
        "token": f"/api/v1/tokens/{token.pk}",
    }


def test_what_belongs_to_others_does_not_exist(
    api: APIClient, stranger: User, client_of: ClientOf, things: dict[str, str]
) -> None:
    """F041"""
    other = client_of(stranger)
    for name, url in things.items():
        assert api.get(url).status_code == 200, name
        problem_of(other.get(url), 404, "not_found")


def test_others_are_not_in_lists(api: APIClient, stranger: User, client_of: ClientOf, things: dict[str, str]) -> None:
    other = client_of(stranger)
    for name in ("runs", "datasets", "projects"):
        assert strict(api.get(f"/api/v1/{name}"))["results"], name
        assert strict(other.get(f"/api/v1/{name}"))["results"] == [], name
    assert {row["built_in"] for row in strict(other.get("/api/v1/recipes"))["results"]} == {True}


def test_others_cannot_write(run: Run, stranger: User, client_of: ClientOf, things: dict[str, str]) -> None:
    other = client_of(stranger)
    problem_of(other.post(f"/api/v1/runs/{run.pk}/commands/kill"), 404, "not_found")
    problem_of(other.delete(things["token"]), 404, "not_found")
    body = {"toml": 'name = "x"', "project": run.project_id}
    refused = other.post("/api/v1/recipes", {"name": "x", **body}, format="json")
    assert refused.status_code == 400
    dataset = Dataset.objects.get()
    body = {"toml": run.toml, "datasets": {"rl": dataset.pk}}
    assert places(problem_of(other.post("/api/v1/runs", body, format="json"), 400, "invalid")) == {"/datasets/rl"}
    body = {"toml": run.toml, "project": run.project_id}
    assert places(problem_of(other.post("/api/v1/runs", body, format="json"), 400, "invalid")) == {"/project"}
    run.refresh_from_db()
    assert run.state == "running"
    assert ApiToken.objects.filter(revoked_at=None, user=run.project.owner).exists()


def test_an_administrator_sees_all(owner: User, client_of: ClientOf, things: dict[str, str]) -> None:
    admin = client_of(User.objects.create_superuser("admin"))
    assert [name for name, url in things.items() if admin.get(url).status_code != 200] == ["token"]
