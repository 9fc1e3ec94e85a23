"""Pages that say what went wrong, also where there is no database to ask."""

import logging
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError
from django.test import Client, RequestFactory
from django.views.defaults import permission_denied

from tests.webapp.ui.markup import Page
from webapp.ui import errors
from webapp.ui.views import health

pytestmark = [pytest.mark.django_db]


@pytest.fixture
def browser(client: Client, caplog: pytest.LogCaptureFixture) -> Client:
    """One that is shown errors instead of having them raised."""
    caplog.set_level(logging.CRITICAL, "django.request")
    client.raise_request_exception = False
    return client


def failing(error: Exception, monkeypatch: pytest.MonkeyPatch, where: str = "webapp.ui.views.runs.page") -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr(where, fail)


@pytest.mark.parametrize("error", [OperationalError("gone"), InterfaceError("closed")])
def test_a_database_that_is_gone_is_told_and_the_page_comes_back(
    error: Exception, browser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(error, monkeypatch)

    response = browser.get("/")

    page = Page(response.text)
    assert response.status_code == 503
    assert response["Retry-After"] == "5"
    assert page.one("meta", http_equiv="refresh")["content"] == "5"
    assert page.one("h1").text == "The database is not reachable"
    assert response["X-Request-ID"] in page.text
    assert page.offences() == []


def test_what_was_sent_to_a_database_that_is_gone_is_not_sent_again_by_itself(
    browser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(OperationalError("gone"), monkeypatch, "webapp.ui.views.new_run._read")

    response = browser.post("/runs/new", {"start": "1"})

    assert response.status_code == 503
    assert Page(response.text).all("meta", http_equiv="refresh") == []
    assert "Go back" in response.text


def test_the_pages_of_a_lost_database_ask_no_database(django_assert_num_queries: Any) -> None:
    request = RequestFactory().get("/")

    with django_assert_num_queries(0):
        assert errors.database_away(request).status_code == 503
        assert errors.server_error(request).status_code == 500


def test_an_error_of_ours_is_told_without_its_inside(browser: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(RuntimeError("secret detail"), monkeypatch)

    response = browser.get("/")

    assert response.status_code == 500
    assert "Something went wrong on our side" in response.text
    assert response["X-Request-ID"] in response.text
    assert "secret detail" not in response.text
    assert Page(response.text).offences() == []


@pytest.mark.parametrize(("error", "status"), [(OperationalError("gone"), 503), (RuntimeError("no"), 500)])
def test_programs_get_problems_instead_of_pages(error: Exception, status: int) -> None:
    request = RequestFactory().get("/api/v1/runs")
    try:
        raise error
    except (OperationalError, RuntimeError):
        response = errors.server_error(request)

    assert response.status_code == status
    assert response["Content-Type"] == "application/problem+json"


def test_a_request_that_cannot_be_read_is_told(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "django")
    for response in (client.post("/theme", {"theme": "pink"}), client.get("/", headers={"Host": "evil.example"})):
        assert response.status_code == 400
        assert "This request could not be read" in response.text
        assert Page(response.text).offences() == []


def test_what_is_not_allowed_says_who_allows_it(user: Any) -> None:
    request = RequestFactory().get("/")
    request.user = user

    response = permission_denied(request, PermissionError())

    page = Page(response.text)
    assert response.status_code == 403
    assert "The owner of the project or an administrator has them." in page.words
    assert page.offences() == []


def test_a_form_that_is_too_old_says_so(user: Any, project: Any) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(user)

    response = strict.post("/runs/new", {"start": "1"})

    assert response.status_code == 403
    assert "This form is too old" in response.text
    assert Page(response.text).offences() == []


def test_healthz_asks_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    response = Client().get("/healthz")
    assert (response.status_code, response.text) == (200, "ok\n")

    class Gone:
        def cursor(self) -> None:
            raise OperationalError("gone")

    monkeypatch.setattr(health, "connection", Gone())

    assert Client().get("/healthz").status_code == 503
