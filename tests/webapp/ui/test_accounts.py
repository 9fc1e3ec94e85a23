"""Set-up of the first user, log-in and log-out, API tokens."""

from typing import Any

import pytest
from django.test import Client

from tests.webapp.support import PASSWORD, make_user
from tests.webapp.ui.markup import Page
from webapp.accounts.models import ApiToken, User
from webapp.accounts.services import create_token, token_of
from webapp.machine.checks import Check
from webapp.ui.views import accounts

pytestmark = [pytest.mark.django_db]
GOOD = {"username": "ada", "password1": PASSWORD, "password2": PASSWORD}


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one thing in order and one not."""
    found = [
        Check("Postgres", True, "version 18", "start it"),
        Check("Valkey", False, "refused <b>", "python manage.py up"),
    ]
    monkeypatch.setattr(accounts, "checks", lambda: found)


def test_without_any_user_every_way_leads_to_the_setup() -> None:
    assert Client().get("/")["Location"] == "/setup"
    assert Client().get("/datasets")["Location"] == "/setup"
    assert Client().get("/login")["Location"] == "/setup"


def test_the_setup_shows_checks_in_words_and_what_mends_them() -> None:
    page = Page(Client().get("/setup").text)

    assert "ok Postgres version 18" in page.words
    assert "missing Valkey refused <b> What mends it: python manage.py up" in page.words
    assert "start it" not in page.words
    assert page.offences() == []


def test_the_first_user_is_made_and_logged_in() -> None:
    browser = Client()

    response = browser.post("/setup", GOOD)

    assert response["Location"] == "/"
    assert User.objects.get().is_superuser
    assert browser.get("/").status_code == 200


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"password2": "another one entirely"}, "id_password2"),
        ({"password1": "short", "password2": "short"}, "id_password1"),
        ({"password1": "password123", "password2": "password123"}, "id_password1"),
        ({"username": ""}, "id_username"),
        ({"username": "two words"}, "id_username"),
        ({"username": "a\x00b"}, "id_username"),
    ],
)
def test_a_first_user_that_cannot_be_is_told_at_the_field(change: dict[str, str], field: str) -> None:
    response = Client().post("/setup", GOOD | change)

    page = Page(response.text)
    assert response.status_code == 422
    assert User.objects.count() == 0
    assert page.by_id(field)["aria-invalid"] == "true"
    assert page.by_id(f"{field}_error").text.strip()
    assert [one["href"] for one in page.all("a") if one.get("href") == f"#{field}"]
    assert page.by_id("id_username").get("value") == GOOD["username"] if "username" not in change else True


def test_a_second_user_cannot_come_in_by_the_setup() -> None:
    make_user("ada")

    response = Client().post("/setup", GOOD | {"username": "eve"})

    assert response["Location"] == "/login?next=/setup"
    assert not User.objects.filter(username="eve").exists()


def test_once_there_is_a_user_the_setup_is_a_page_for_users(client: Client) -> None:
    assert Client().get("/setup")["Location"] == "/login?next=/setup"

    page = Page(client.get("/setup").text)
    assert page.one("h1").text == "Setup check"
    assert page.all("input", type="password") == []


def test_log_in_leads_back_to_where_one_wanted_to_go() -> None:
    make_user("ada")
    browser = Client()
    asked = browser.get("/datasets")["Location"]

    assert Page(browser.get(asked).text).one("input", name="next")["value"] == "/datasets"
    response = browser.post("/login", {"username": "ada", "password": PASSWORD, "next": "/datasets"})

    assert response["Location"] == "/datasets"


def test_log_in_leads_nowhere_else() -> None:
    make_user("ada")

    response = Client().post("/login", {"username": "ada", "password": PASSWORD, "next": "https://evil.example/"})

    assert response["Location"] == "/"


def test_a_wrong_password_is_told_and_the_name_kept() -> None:
    make_user("ada")

    page = Page(Client().post("/login", {"username": "ada", "password": "wrong"}).text)

    assert "correct username and password" in page.by_id("login-error").text
    assert page.by_id("id_username")["value"] == "ada"
    assert page.offences() == []


def test_log_out_is_a_post(client: Client) -> None:
    assert client.get("/logout").status_code == 405
    assert client.post("/logout")["Location"] == "/login"
    assert client.get("/")["Location"] == "/login?next=/"


def test_a_part_of_a_page_never_becomes_the_login_form(user: User) -> None:
    response = Client().get("/", headers={"HX-Request": "true"})

    assert response["HX-Redirect"] == "/login"


def test_the_text_of_a_token_is_shown_once(client: Client) -> None:
    posted = client.post("/tokens", {"name": "trainer", "scopes": ["runs:read", "runs:write"], "days": "30"})

    text = Page(posted.text).by_id("new-token").text
    token = token_of(text)
    assert token is not None
    assert (token.name, token.scopes) == ("trainer", ["runs:read", "runs:write"])
    assert posted["Cache-Control"] == "no-store"
    later = client.get("/tokens").text
    assert "trainer" in later
    assert text not in later
    assert f"sl_{token.key}_" in later


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "id_name"),
        ({"scopes": []}, "id_scopes"),
        ({"scopes": ["all"]}, "id_scopes"),
        ({"days": "9"}, "id_days"),
    ],
)
def test_a_token_that_cannot_be_is_told_at_the_field(change: dict[str, Any], field: str, client: Client) -> None:
    response = client.post("/tokens", {"name": "trainer", "scopes": ["runs:read"], "days": "30"} | change)

    page = Page(response.text)
    assert response.status_code == 422
    assert page.by_id(f"{field}_error").text.strip()
    assert page.broken_references() == []
    assert ApiToken.objects.count() == 0


def test_a_revoked_token_proves_nothing_any_more(client: Client, user: User) -> None:
    token, text = create_token(user=user, name="old", scopes=["runs:read"])

    client.post(f"/tokens/{token.pk}/revoke")

    assert token_of(text) is None
    page = Page(client.get("/tokens").text)
    assert "revoked" in page.text
    assert page.all("button", aria_label="Revoke old") == []


def test_nobody_revokes_the_tokens_of_others(client: Client) -> None:
    token, text = create_token(user=make_user("eve"), name="hers", scopes=["runs:read"])

    assert client.post(f"/tokens/{token.pk}/revoke").status_code == 404
    assert token_of(text) is not None
    assert "hers" not in client.get("/tokens").text
