"""``Idempotency-Key``: the same POST again is the same answer, and the work is done once."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.utils import timezone
from rest_framework.test import APIClient

from tests.webapp.api.conftest import ClientOf
from tests.webapp.api.support import problem_of, strict
from tests.webapp.support import RECIPE, make_project, make_user
from webapp.accounts.models import ApiToken, User
from webapp.api.models import IdempotencyRecord
from webapp.datasets.models import Dataset
from webapp.runs import services
from webapp.runs.models import Command, Run

RUNS = "/api/v1/runs"


def post(api: APIClient, url: str, body: Any, key: str) -> Any:
    return api.post(url, body, format="json", headers={"Idempotency-Key": key})


def test_the_same_request_again_gets_the_same_answer(api: APIClient, project: Any) -> None:
    first, again = (post(api, RUNS, {"toml": RECIPE, "name": "a"}, "one") for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 201)
    assert strict(again) == strict(first)
    assert again["Location"] == first["Location"]
    assert again["Idempotency-Replayed"] == "true"
    assert "Idempotency-Replayed" not in first
    assert Run.objects.count() == 1


def test_the_order_of_members_does_not_make_another_request(api: APIClient) -> None:
    post(api, RUNS, {"toml": RECIPE, "name": "a"}, "one")
    assert post(api, RUNS, {"name": "a", "toml": RECIPE}, "one")["Idempotency-Replayed"] == "true"


def test_a_key_of_another_request_is_refused(api: APIClient, run: Run) -> None:
    post(api, RUNS, {"toml": RECIPE, "name": "a"}, "one")
    problem_of(post(api, RUNS, {"toml": RECIPE, "name": "b"}, "one"), 422, "idempotency_key_reused")
    problem_of(post(api, f"{RUNS}/{run.pk}/commands/stop", {}, "one"), 422, "idempotency_key_reused")
    assert not Command.objects.exists()


def test_keys_of_two_people_are_two_keys(api: APIClient, stranger: User, client_of: ClientOf) -> None:
    first = strict(post(api, RUNS, {"toml": RECIPE}, "one"))
    second = strict(post(client_of(stranger), RUNS, {"toml": RECIPE}, "one"))
    assert first["id"] != second["id"]


def test_a_refused_request_may_be_mended_under_its_key(api: APIClient) -> None:
    problem_of(post(api, RUNS, {"toml": "nonsense"}, "one"), 400, "invalid")
    assert not IdempotencyRecord.objects.exists()
    assert post(api, RUNS, {"toml": RECIPE}, "one").status_code == 201


def test_a_command_is_sent_once(api: APIClient, run: Run) -> None:
    url = f"{RUNS}/{run.pk}/commands/checkpoint"
    first = strict(post(api, url, {}, "one"))
    Command.objects.update(status="applied")
    assert strict(post(api, url, {}, "one"))["id"] == first["id"]
    assert strict(post(api, url, {}, "two"))["id"] != first["id"]


def test_a_key_is_forgotten_after_a_day(api: APIClient) -> None:
    first = strict(post(api, RUNS, {"toml": RECIPE}, "one"))
    IdempotencyRecord.objects.update(created_at=timezone.now() - timedelta(hours=24, seconds=1))
    assert strict(post(api, RUNS, {"toml": RECIPE}, "one"))["id"] != first["id"]
    assert IdempotencyRecord.objects.count() == 1


@pytest.mark.parametrize("key", ["", "two words", "x" * 256, "tab\t"])
def test_a_key_that_cannot_be_is_refused(api: APIClient, key: str) -> None:
    problem_of(post(api, RUNS, {"toml": RECIPE}, key), 400, "wrong_idempotency_key")
    assert not Run.objects.exists()


def test_a_secret_is_shown_once_and_not_kept(api: APIClient) -> None:
    body = {"name": "ci", "scopes": ["runs:read"]}
    first, again = (strict(post(api, "/api/v1/tokens", body, "one")) for _ in range(2))
    assert first["token"].startswith("sl_")
    assert again == {**first, "token": None}
    assert ApiToken.objects.filter(name="ci").count() == 1
    secret = first["token"].split("_")[2]
    assert secret not in str(list(IdempotencyRecord.objects.values()))


def test_files_count_by_their_contents(api: APIClient) -> None:
    def upload(line: bytes) -> Any:
        file = SimpleUploadedFile("any.jsonl", line)
        headers = {"Idempotency-Key": "one"}
        return api.post("/api/v1/datasets", {"name": "d", "file": file}, format="multipart", headers=headers)

    line = b'{"problem": "1+1?", "answer": "2"}\n'
    assert upload(line).status_code == 201
    assert upload(line)["Idempotency-Replayed"] == "true"
    problem_of(upload(line * 2), 422, "idempotency_key_reused")
    assert Dataset.objects.get().count == 1


@pytest.mark.django_db(transaction=True)
def test_of_two_at_the_same_time_one_works_and_the_other_is_told_so(
    client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = make_user()
    make_project(owner)
    began, may_go_on = Event(), Event()
    create_run = services.create_run

    def slow(**asked: Any) -> Run:
        began.set()
        assert may_go_on.wait(20)
        return create_run(**asked)

    monkeypatch.setattr(services, "create_run", slow)
    first, second = client_of(owner), client_of(owner)

    def ask() -> Any:
        try:
            return post(first, RUNS, {"toml": RECIPE}, "one")
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask)
        try:
            assert began.wait(20)
            refused = post(second, RUNS, {"toml": RECIPE}, "one")
        finally:
            may_go_on.set()
        made = strict(answer.result(20))
    problem_of(refused, 409, "in_flight")
    assert refused["Retry-After"] == "1"
    assert strict(post(second, RUNS, {"toml": RECIPE}, "one")) == made
    assert Run.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_work_that_fails_half_way_leaves_neither_itself_nor_an_answer(
    client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = client_of(make_user())

    def broken(*args: Any) -> None:
        raise ConnectionError("the database went away")

    with monkeypatch.context() as patched:
        patched.setattr("webapp.api.idempotency.keep", broken)
        problem_of(post(api, RUNS, {"toml": RECIPE}, "one"), 503, "unavailable")
    assert not Run.objects.exists()
    assert "Idempotency-Replayed" not in post(api, RUNS, {"toml": RECIPE}, "one")
    assert Run.objects.count() == 1
