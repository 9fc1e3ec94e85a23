"""The OpenAPI schema: what is committed is what the code says, and Swagger UI needs nothing that the CSP forbids."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from django.contrib.staticfiles import finders
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiJsonRenderer
from jsonschema import Draft202012Validator
from rest_framework.test import APIClient

from tests.webapp.api.support import strict
from webapp.accounts.models import User

COMMITTED = Path("docs/openapi.json")
RENEW = "python manage.py spectacular --format openapi-json --file docs/openapi.json"


@pytest.fixture(scope="module")
def schema() -> Any:
    made = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    return json.loads(OpenApiJsonRenderer().render(made, renderer_context={}))


def operations(schema: Any) -> dict[str, Any]:
    return {
        f"{method.upper()} {path}": operation
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    }


def test_the_committed_schema_is_current(schema: Any) -> None:
    assert json.loads(COMMITTED.read_text()) == schema, f"the API has changed; {RENEW}"


def test_every_operation_says_what_it_does_and_needs(schema: Any) -> None:
    for name, operation in operations(schema).items():
        assert operation["summary"], name
        assert "Scope: `" in operation["description"], name
        assert {"400", "401", "403", "503"} <= set(operation["responses"]), name


def test_every_parameter_is_described(schema: Any) -> None:
    bare = [
        f"{name}: {parameter['name']}"
        for name, operation in operations(schema).items()
        for parameter in operation.get("parameters", ())
        if parameter["in"] == "query" and not parameter.get("description")
    ]
    assert bare == []


def test_every_post_offers_an_idempotency_key(schema: Any) -> None:
    posts = {name: operation for name, operation in operations(schema).items() if name.startswith("POST")}
    assert len(posts) >= 6
    for name, operation in posts.items():
        assert "Idempotency-Key" in {parameter["name"] for parameter in operation["parameters"]}, name


def test_every_reference_leads_somewhere(schema: Any) -> None:
    for reference in set(re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(schema))):
        found = schema
        for part in reference.split("/"):
            found = found[part]


def test_answers_are_as_the_schema_says(api: APIClient, run: Any, schema: Any) -> None:
    for path, url in {
        "/api/v1/runs": "/api/v1/runs",
        "/api/v1/runs/{run_id}": f"/api/v1/runs/{run.pk}",
        "/api/v1/runs/{run_id}/charts": f"/api/v1/runs/{run.pk}/charts",
        "/api/v1/runs/{run_id}/updates": f"/api/v1/runs/{run.pk}/updates?since=0",
        "/api/v1/recipes": "/api/v1/recipes",
        "/api/v1/tokens": "/api/v1/tokens",
    }.items():
        said = schema["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        whole = {**said, "components": schema["components"]}
        Draft202012Validator(whole).validate(strict(api.get(url)))


def test_a_recipe_in_a_request_is_the_engines(schema: Any) -> None:
    new_run = schema["components"]["schemas"]["NewRun"]
    assert new_run["properties"]["recipe"]["$ref"] == "#/components/schemas/Recipe"
    stages = schema["components"]["schemas"]["Recipe"]["properties"]["stages"]["items"]
    assert stages["discriminator"]["propertyName"] == "kind"


def test_the_schema_is_served(api: APIClient, schema: Any) -> None:
    answer = api.get("/api/v1/schema")
    assert answer["Content-Type"] == "application/json"
    assert strict(answer) == schema


def test_the_docs_page_is_for_people_who_are_logged_in(client: Any, owner: User) -> None:
    assert client.get("/api/docs").status_code == 302
    client.force_login(owner)
    page = client.get("/api/docs")
    assert page.status_code == 200
    html = page.content.decode()
    assert not re.search(r"<style|<script(?![^>]* src=)| style=| on\w+=|https?://", html), html
    for path in re.findall(r'(?:src|href)="/static/([^"]+)"', html):
        assert finders.find(path), path
    (script,) = re.findall(r'src="(/api/docs[^"]*)"', html)
    served = client.get(script)
    assert served["Content-Type"] == "application/javascript"
    assert b"SwaggerUIBundle" in served.content
