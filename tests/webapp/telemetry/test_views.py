"""``/api/v1/runs/{id}/events`` as an engine sees it: encodings, tokens, and refusals that say what to do."""

import gzip
import json
from typing import Any

import psycopg_pool
import pytest
import zstandard
from django.db import DataError, OperationalError
from django.http import HttpResponse
from django.test import Client

from engine.contract.delivery import Answer, Batch
from tests.webapp.support import make_run
from tests.webapp.telemetry.rows import shown
from tests.webapp.telemetry.telling import Attempt, stage_started, started, step
from webapp.runs import services, tokens
from webapp.runs.models import Run
from webapp.telemetry import ingest, views

pytestmark = pytest.mark.django_db


def address(run: Run) -> str:
    return f"/api/v1/runs/{run.pk}/events"


def post(run: Run, body: bytes | Batch, *, token: str | None = None, **headers: str) -> HttpResponse:
    """Without cookies and without a CSRF token, as an engine does it."""
    sent = body if isinstance(body, bytes) else body.model_dump_json().encode()
    shown = {"Authorization": f"Bearer {token or tokens.make(run.pk, 1)}", **headers}
    client = Client(enforce_csrf_checks=True, headers=shown)
    return client.post(address(run), data=sent, content_type="application/json")


def problem_of(response: HttpResponse, status: int) -> dict[str, Any]:
    assert (response.status_code, response["Content-Type"]) == (status, "application/problem+json")
    found: dict[str, Any] = json.loads(response.content)
    assert {"type", "title", "status", "detail", "code", "instance"} <= found.keys()
    assert found["status"] == status
    return found


PACK = {
    "identity": lambda body: body,
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor(level=3).compress,
}


@pytest.mark.parametrize("encoding", PACK)
def test_a_batch_is_taken_in_however_it_is_packed(run: Run, encoding: str) -> None:
    batch = Attempt().tell(started(), stage_started(), step(1, loss=0.5))
    packed = PACK[encoding](batch.model_dump_json().encode())
    response = post(run, packed, **{"Content-Encoding": encoding})
    assert response.status_code == 200
    assert Answer.model_validate_json(response.content).cursor == {1: 3}
    assert shown(run, "loss") == [(5, 0.5)]


def test_a_batch_larger_than_a_form_may_be_is_taken_in(run: Run) -> None:
    """Django's limit for forms (2.5 MB) is none for batches."""
    body = Attempt().tell(started()).model_dump_json().encode() + b" " * 3_000_000
    assert post(run, body).status_code == 200


def test_get_says_where_the_run_stands_and_what_waits(run: Run) -> None:
    post(run, Attempt().tell(started(), stage_started()))
    asked = services.send_command(run.pk, "pause", by="ada")
    response = Client(headers={"Authorization": f"Bearer {tokens.make(run.pk, 1)}"}).get(address(run))
    found = Answer.model_validate_json(response.content)
    assert (found.cursor, [command.id for command in found.commands]) == ({1: 2}, [asked.pk])
    assert response["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "shown", [None, "", "Bearer", "Bearer slr_", "Bearer slr_abc:def", "Basic slr_x", "Bearer sl_abc_def"]
)
def test_without_a_run_token_nothing_is_told(run: Run, shown: str | None) -> None:
    client = Client(headers={} if shown is None else {"Authorization": shown})
    for response in (client.get(address(run)), client.post(address(run), b"{}", content_type="application/json")):
        found = problem_of(response, 401)
        assert found["code"] == "not_authenticated"
        assert response["WWW-Authenticate"].startswith("Bearer")


def test_the_token_of_another_run_is_refused(run: Run) -> None:
    other = make_run(state="starting")
    response = post(run, Attempt().tell(started()), token=tokens.make(other.pk, 1))
    assert problem_of(response, 403)["code"] == "permission_denied"
    assert Run.objects.get(pk=run.pk).attempt == 0


def test_a_run_that_is_gone_is_not_found(run: Run) -> None:
    token = tokens.make(run.pk, 1)
    Run.objects.filter(pk=run.pk).delete()
    assert problem_of(post(run, Attempt().tell(started()), token=token), 404)["code"] == "not_found"


def test_a_gap_answers_with_the_cursor(run: Run) -> None:
    attempt = Attempt()
    post(run, attempt.tell(started()))
    attempt.tell(stage_started())
    found = problem_of(post(run, attempt.tell(step(1))), 409)
    assert (found["code"], found["cursor"]) == ("gap", {"1": 1})


def test_an_engine_that_was_replaced_is_told_to_end(run: Run) -> None:
    Run.objects.filter(pk=run.pk).update(launches=2)
    for response in (
        post(run, Attempt().tell(started())),
        Client(headers={"Authorization": f"Bearer {tokens.make(run.pk, 1)}"}).get(address(run)),
    ):
        assert problem_of(response, 409)["code"] == "superseded"


def test_wrong_fields_are_named(run: Run) -> None:
    body = {"attempt": 1, "events": [{"attempt": 1, "seq": 1, "at": 1.0, "body": {"type": "run.stopped", "why": 1}}]}
    found = problem_of(post(run, json.dumps(body).encode()), 400)
    assert {error["pointer"] for error in found["errors"]} == {"/events/0/body/reason", "/events/0/body/why"}
    assert "/events/0/body/reason" in found["detail"]


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (b"not gzip", "gzip"),
        (b"not zstd", "zstd"),
        (gzip.compress(b"{}" * 1000)[:-9], "gzip"),
        (zstandard.compress(b"[1]" * 1000)[:-3], "zstd"),
        (b"", "zstd"),
        (b"\xff\xfe", "identity"),
    ],
)
def test_damaged_bodies_are_refused(run: Run, body: bytes, encoding: str) -> None:
    assert problem_of(post(run, body, **{"Content-Encoding": encoding}), 400)["errors"][0]["pointer"] == ""


def test_an_unknown_encoding_is_named_with_those_that_are_known(run: Run) -> None:
    found = problem_of(post(run, b"{}", **{"Content-Encoding": "br"}), 415)
    assert "identity, gzip, zstd" in found["detail"]


@pytest.mark.parametrize("encoding", PACK)
def test_a_body_that_unpacks_to_too_much_is_given_up_before_it_is_whole(
    run: Run, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = 0
    whole = views._UNPACK[encoding]

    def counting(pieces: Any) -> Any:
        nonlocal taken
        for piece in whole(pieces):
            taken += len(piece)
            yield piece

    monkeypatch.setitem(views._UNPACK, encoding, counting)
    monkeypatch.setattr(views, "MOST_BYTES", 1_000_000)
    bomb = PACK[encoding](b" " * 20_000_000)
    assert problem_of(post(run, bomb, **{"Content-Encoding": encoding}), 413)["code"] == "body_too_large"
    assert 1_000_000 < taken < 1_200_000


@pytest.mark.parametrize("error", [OperationalError("gone"), psycopg_pool.PoolTimeout("none free")])
def test_a_database_that_is_away_is_said_to_come_back(
    run: Run, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr(ingest, "take_in", away)
    response = post(run, Attempt().tell(started()))
    assert problem_of(response, 503)["code"] == "unavailable"
    assert int(response["Retry-After"]) > 0


def test_what_only_the_database_notices_is_the_senders_fault(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise an engine would send it again for ever."""

    def too_long(*args: Any, **kwargs: Any) -> None:
        raise DataError("value too long for type character varying(50)")

    monkeypatch.setattr(ingest, "take_in", too_long)
    assert "too long" in problem_of(post(run, Attempt().tell(started())), 400)["detail"]


def test_other_methods_are_refused(run: Run) -> None:
    headers = {"Authorization": f"Bearer {tokens.make(run.pk, 1)}"}
    assert problem_of(Client(headers=headers).delete(address(run)), 405)["code"] == "method_not_allowed"
