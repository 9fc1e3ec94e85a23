"""Whatever is wrong with a request, the answer is a problem that says what, and never a 500."""

from typing import Any

import pytest
from django.db import OperationalError
from rest_framework.test import APIClient

from tests.webapp.api.support import places, problem_of
from webapp.api.problems import pointed
from webapp.runs.models import Run

RUNS = "/api/v1/runs"


def test_an_address_that_is_not_there_is_a_problem(client: Any) -> None:
    for url in ("/api/", "/api/v1", "/api/v1/nothing", "/api/v1/runs/", "/api/v1/runs/run_x", "/api/v1/runs/%00"):
        problem_of(client.get(url), 404, "not_found")
        problem_of(client.post(url), 404, "not_found")


def test_a_request_id_comes_back_in_header_and_problem(client: Any) -> None:
    answer = client.get("/api/v1/nothing", headers={"X-Request-ID": "mine-1"})
    assert problem_of(answer, 404, "not_found")["request_id"] == "mine-1"


@pytest.mark.parametrize("query", ["search=%00", "state=%00", "%00=1", "cursor=%00", "project=a%00b"])
def test_nul_in_the_query_is_a_400(api: APIClient, query: str) -> None:
    """F019"""
    assert api.get(f"{RUNS}?{query}").status_code == 400


def test_an_unknown_parameter_is_named_with_those_that_there_are(api: APIClient) -> None:
    body = problem_of(api.get(f"{RUNS}?staet=running&limit=5"), 400, "unknown_parameter")
    assert places(body) == {"staet"}
    assert "known are: count, created_at__gte" in body["detail"]


def test_a_parameter_given_twice_is_ambiguous_but_where_many_are_meant(api: APIClient) -> None:
    assert places(problem_of(api.get(f"{RUNS}?limit=5&limit=6"), 400, "given_twice")) == {"limit"}
    assert api.get(f"{RUNS}?state=running&state=paused").status_code == 200


def test_parameters_are_strict_on_every_address(api: APIClient, run: Run) -> None:
    for part in ("", "/series", "/charts", "/updates", "/logs", "/groups", "/trajectories", "/export", "/commands"):
        assert places(problem_of(api.get(f"{RUNS}/{run.pk}{part}?x=1"), 400, "unknown_parameter")) == {"x"}
    problem_of(api.post(f"{RUNS}/{run.pk}/commands/stop?now=1"), 400, "unknown_parameter")
    run.refresh_from_db()
    assert run.state == "running"


@pytest.mark.parametrize(
    ("sent", "kind", "status", "code"),
    [
        (b'{"name": 1e400}', "application/json", 400, "parse_error"),
        (b"{", "application/json", 400, "parse_error"),
        (b'"text"', "application/json", 400, "invalid"),
        (b"null", "application/json", 400, "invalid"),
        (b"[]", "application/json", 400, "invalid"),
        (b"", "application/json", 400, "invalid"),
        (b"<xml/>", "application/xml", 415, "unsupported_media_type"),
        (b"name=x", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
        (b"x", "nonsense", 415, "unsupported_media_type"),
        (b'"' + b"x" * (2 * 1024 * 1024) + b'"', "application/json", 413, "body_too_large"),
    ],
)
def test_a_body_that_cannot_be_is_refused(api: APIClient, sent: bytes, kind: str, status: int, code: str) -> None:
    problem_of(api.generic("POST", RUNS, sent, content_type=kind), status, code)


def test_a_body_without_a_length_is_asked_for_one(api: APIClient) -> None:
    answer = api.generic("POST", RUNS, b"", content_type="application/json", HTTP_TRANSFER_ENCODING="chunked")
    problem_of(answer, 411, "length_required")


def test_a_method_that_is_not_offered_is_a_405_that_lists_those_that_are(api: APIClient, run: Run) -> None:
    for method in (api.put, api.patch, api.delete, api.options):
        answer = method(f"{RUNS}/{run.pk}")
        problem_of(answer, 405, "method_not_allowed")
        assert "GET" in answer["Allow"]
        assert "POST" not in answer["Allow"]


def test_an_answer_in_another_form_is_a_406(api: APIClient) -> None:
    problem_of(api.get(RUNS, headers={"Accept": "text/html"}), 406, "not_acceptable")


def test_a_database_that_is_away_is_a_503_with_the_time_to_wait(
    api: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*args: Any) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr("webapp.api.views.runs.run_list", away)
    answer = api.get(RUNS)
    problem_of(answer, 503, "unavailable")
    assert int(answer["Retry-After"]) > 0


def test_an_error_that_nobody_foresaw_is_logged_and_says_nothing_of_itself(
    api: APIClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr("webapp.api.views.runs.run_list", broken)
    api.raise_request_exception = False
    answer = api.get(RUNS)
    body = problem_of(answer, 500, "internal_error")
    assert "secret detail" not in str(body)
    assert "secret detail" in caplog.text


def test_nested_messages_become_pointers() -> None:
    detail = {
        "name": ["too long"],
        "stages": [{}, {"kind": ["unknown"]}],
        "recipe": {"/stages/0/steps": ["not here"]},
        "non_field_errors": ["one of them"],
    }
    found = {(each["pointer"], each["message"]) for each in pointed(detail)}
    assert found == {
        ("/name", "too long"),
        ("/stages/1/kind", "unknown"),
        ("/recipe/stages/0/steps", "not here"),
        ("", "one of them"),
    }


def test_answers_are_for_who_asked_and_for_now(api: APIClient) -> None:
    assert api.get(RUNS)["Cache-Control"] == "no-store"
