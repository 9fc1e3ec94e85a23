"""Recipes, datasets, tokens and projects over REST."""

import json
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import CommandError, call_command
from pytest_django import DjangoAssertNumQueries
from rest_framework.test import APIClient

from tests.webapp.api.conftest import ClientOf
from tests.webapp.api.support import places, problem_of, strict
from tests.webapp.support import PASSWORD, RECIPE
from webapp.accounts.models import ApiToken, Project, User
from webapp.accounts.services import token_of
from webapp.api import parsers
from webapp.datasets.models import Dataset
from webapp.recipes.models import Recipe, RecipeVersion
from webapp.recipes.services import save_version

RECIPES, DATASETS, TOKENS = "/api/v1/recipes", "/api/v1/datasets", "/api/v1/tokens"
OTHER = RECIPE.replace("steps = 4", "steps = 5")
LINE = json.dumps({"problem": "1+1?", "answer": "2"}).encode() + b"\n"


def post(api: APIClient, url: str, body: Any) -> Any:
    return api.post(url, body, format="json")


def test_a_recipe_is_saved_as_versions(api: APIClient, project: Project) -> None:
    first = post(api, RECIPES, {"name": "mine", "toml": RECIPE})
    assert first.status_code == 201, first.content
    version = strict(first)
    assert (version["number"], version["created_by"]) == (1, "owner")
    assert strict(api.get(first["Location"])) == version
    url = f"{RECIPES}/{version['recipe_id']}"

    second = strict(post(api, f"{url}/versions", {"toml": OTHER}))
    assert second["number"] == 2
    assert second["recipe"]["stages"][0]["steps"] == 5
    assert strict(post(api, f"{url}/versions", {"toml": OTHER}))["id"] == second["id"]

    listed = strict(api.get(f"{url}/versions"))["results"]
    assert [row["number"] for row in listed] == [2, 1]
    assert "toml" not in listed[0]
    row = strict(api.get(url))
    assert (row["version"], row["number"], row["built_in"], row["project"]) == (second["id"], 2, False, project.pk)
    problem_of(api.get(f"{url}/versions/9"), 404, "not_found")


def test_presets_are_there_and_stay_as_they_are(api: APIClient) -> None:
    (preset, *_) = strict(api.get(f"{RECIPES}?built_in=true"))["results"]
    assert preset["version"] is not None
    answer = post(api, f"{RECIPES}/{preset['id']}/versions", {"toml": RECIPE})
    assert "POST /api/v1/recipes" in problem_of(answer, 409, "built_in")["detail"]


def test_recipes_come_by_name_in_a_constant_number_of_queries(
    api: APIClient, owner: User, project: Project, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for name in ("b", "c", "a"):
        save_version(user=owner, project=project, name=name, toml=RECIPE)
    url = f"{RECIPES}?project={project.pk}"
    api.get(url)
    with django_assert_num_queries(2):  # the token, recipes
        assert [row["name"] for row in strict(api.get(url))["results"]] == ["a", "b", "c"]
    two = strict(api.get(f"{url}&limit=2"))
    assert [row["name"] for row in strict(api.get(two["next"]))["results"]] == ["c"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"name": "x"}, {"/toml"}),
        ({"name": "", "toml": "x ="}, {"/name", "/toml"}),
        ({"name": "x" * 81, "toml": RECIPE, "spec": {}}, {"/name", "/spec"}),
        ({"name": "x", "toml": RECIPE, "project": "prj_no"}, {"/project"}),
        ({"name": "x", "toml": RECIPE.replace("steps = 4", "steps = 0")}, {"/toml"}),
    ],
)
def test_a_recipe_that_cannot_be_is_told_field_by_field(api: APIClient, body: Any, expected: set[str]) -> None:
    assert places(problem_of(post(api, RECIPES, body), 400, "invalid")) == expected
    assert not Recipe.objects.exclude(project=None).exists()


def test_a_wrong_place_in_toml_is_told_inside_the_text(api: APIClient) -> None:
    answer = post(api, RECIPES, {"name": "x", "toml": RECIPE.replace("steps = 4", "steps = 0")})
    assert problem_of(answer, 400, "invalid")["errors"][0]["message"].startswith("/stages/0/steps: ")


def upload_form(api: APIClient, content: bytes, **fields: str) -> Any:
    return api.post(DATASETS, {"file": SimpleUploadedFile("p.jsonl", content), **fields}, format="multipart")


def upload_body(api: APIClient, content: bytes, query: str, kind: str = "application/x-ndjson") -> Any:
    return api.generic("POST", f"{DATASETS}{query}", content, content_type=kind)


def test_a_dataset_is_uploaded_as_a_form_or_as_the_body(api: APIClient, project: Project) -> None:
    form = upload_form(api, LINE, name="sums")
    body = upload_body(api, LINE * 2, f"?name=sums&project={project.pk}", "application/jsonl")
    assert (form.status_code, body.status_code) == (201, 201), body.content
    assert [strict(answer)["version"] for answer in (form, body)] == [1, 2]
    assert strict(body)["count"] == 2
    assert strict(api.get(body["Location"])) == strict(body)
    assert [row["version"] for row in strict(api.get(f"{DATASETS}?name=sums"))["results"]] == [2, 1]


def test_a_session_uploads_with_the_csrf_token_of_the_form(owner: User, project: Project) -> None:
    client = APIClient(enforce_csrf_checks=True)
    client.login(username=owner.username, password=PASSWORD)
    problem_of(upload_form(client, LINE, name="x"), 403, "permission_denied")
    client.get("/api/docs?script=")
    cookie = client.cookies["starloom_csrf"].value
    form = {"file": SimpleUploadedFile("p.jsonl", LINE), "name": "x"}
    assert client.post(DATASETS, form, format="multipart", headers={"X-CSRFToken": cookie}).status_code == 201


def test_wrong_lines_are_told_with_their_numbers_and_nothing_is_stored(api: APIClient) -> None:
    body = problem_of(upload_form(api, LINE + b"nonsense\n" + LINE + b"{}\n", name="x"), 400, "wrong_lines")
    assert [error["line"] for error in body["errors"]] == [2, 4]
    assert body["total"] == 2
    assert not Dataset.objects.exists()


@pytest.mark.parametrize(
    ("query", "content", "expected"),
    [
        ("", LINE, {"/name"}),
        ("?name=", LINE, {"/name"}),
        ("?name=x", b"", {"/file"}),
        ("?name=x&project=prj_no", LINE, {"/project"}),
        ("?name=" + "x" * 81, LINE, {"/name"}),
    ],
)
def test_an_upload_that_is_not_whole_is_told_so(api: APIClient, query: str, content: bytes, expected: set[str]) -> None:
    assert places(problem_of(upload_body(api, content, query), 400, "invalid")) == expected


def test_a_form_that_is_not_whole_is_told_so(api: APIClient) -> None:
    assert places(problem_of(api.post(DATASETS, {"name": "x"}, format="multipart"), 400, "invalid")) == {"/file"}
    assert places(problem_of(upload_form(api, LINE, nmae="x"), 400, "invalid")) == {"/nmae", "/name"}
    broken = api.generic("POST", DATASETS, b"--x\r\nnonsense", content_type="multipart/form-data; boundary=x")
    assert broken.status_code == 400
    broken = api.generic("POST", DATASETS, b"x", content_type="multipart/form-data")
    problem_of(broken, 400, "parse_error")


def test_an_upload_that_is_too_large_is_given_up(api: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsers, "DATASET_LIMIT", 1000)
    problem_of(upload_body(api, LINE * 100, "?name=x"), 413, "body_too_large")
    problem_of(upload_form(api, LINE * 100, name="x"), 413, "body_too_large")
    answer = api.generic("POST", DATASETS, b"x", content_type="application/jsonl", CONTENT_LENGTH=str(257 * 2**20))
    problem_of(answer, 413, "body_too_large")
    assert not Dataset.objects.exists()


def test_a_token_is_shown_once_listed_without_its_secret_and_revoked(api: APIClient, owner: User) -> None:
    made = strict(post(api, TOKENS, {"name": "ci", "scopes": ["runs:read"], "days": 7}))
    url = f"{TOKENS}/{made['id']}"
    shown = strict(api.get(url))
    assert {**shown, "token": made["token"]} == made
    found = token_of(made["token"])
    assert found is not None
    assert (found.user, found.scopes) == (owner, ["runs:read"])
    secret = made["token"].split("_")[2]
    assert secret not in json.dumps([shown, strict(api.get(TOKENS))])
    assert api.delete(url).status_code == 204
    assert token_of(made["token"]) is None
    revoked = strict(api.get(url))["revoked_at"]
    assert revoked is not None
    assert api.delete(url).status_code == 204
    assert strict(api.get(url))["revoked_at"] == revoked


def test_a_token_gives_no_scope_that_it_does_not_have(owner: User, client_of: ClientOf) -> None:
    client = client_of(owner, "tokens:manage", "runs:read")
    assert post(client, TOKENS, {"name": "less", "scopes": ["runs:read"]}).status_code == 201
    refused = post(client, TOKENS, {"name": "more", "scopes": ["runs:read", "runs:control"]})
    assert places(problem_of(refused, 400, "invalid")) == {"/scopes/1"}
    assert not ApiToken.objects.filter(name="more").exists()


def test_somebody_with_a_session_may_give_any_scope(owner: User) -> None:
    client = APIClient()
    client.force_login(owner)
    assert post(client, TOKENS, {"name": "x", "scopes": ["runs:control"]}).status_code == 201


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, {"/name", "/scopes"}),
        ({"name": "x", "scopes": []}, {"/scopes"}),
        ({"name": "x", "scopes": ["fly"]}, {"/scopes/0"}),
        ({"name": "x", "scopes": "runs:read"}, {"/scopes"}),
        ({"name": "x", "scopes": ["runs:read"], "days": 0}, {"/days"}),
        ({"name": "x", "scopes": ["runs:read"], "days": 10**30}, {"/days"}),
        ({"name": "x", "scopes": ["runs:read"], "days": 1.5}, {"/days"}),
    ],
)
def test_a_token_that_cannot_be_is_told_field_by_field(api: APIClient, body: Any, expected: set[str]) -> None:
    assert places(problem_of(post(api, TOKENS, body), 400, "invalid")) == expected


def test_projects_are_listed_with_their_owner(api: APIClient, project: Project) -> None:
    (row,) = strict(api.get("/api/v1/projects"))["results"]
    assert (row["id"], row["owner"]) == (project.pk, "owner")


def test_the_command_line_makes_a_token(owner: User, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("create_token", "owner", "--scope", "runs:read", "--days", "3", "--name", "cron")
    token = token_of(capsys.readouterr().out.strip())
    assert token is not None
    assert (token.name, token.scopes, token.user) == ("cron", ["runs:read"], owner)
    with pytest.raises(CommandError, match="there is no user 'nobody'"):
        call_command("create_token", "nobody")
    with pytest.raises(CommandError, match="days"):
        call_command("create_token", "owner", "--days", "0")


def test_versions_of_a_built_in_recipe_have_no_maker(api: APIClient) -> None:
    version = RecipeVersion.objects.filter(recipe__project=None).first()
    assert version is not None
    body = strict(api.get(f"{RECIPES}/{version.recipe_id}/versions/{version.number}"))
    assert body["created_by"] is None
