"""Users, projects and API tokens: what is accepted, what is refused and why, and what is stored."""

import re
import threading
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from tests.webapp.support import make_user
from webapp.accounts import services
from webapp.accounts.models import ApiToken, Project, User
from webapp.accounts.scopes import SCOPES
from webapp.runs.services import Refused, WrongFields

pytestmark = pytest.mark.django_db
GOOD = "correct horse battery"


def make_token(user: User | None = None, **changes: object) -> tuple[ApiToken, str]:
    fields: dict[str, object] = {"name": "laptop", "scopes": ["runs:read"], "days": 30}
    return services.create_token(user=user or make_user(), **(fields | changes))  # type: ignore[arg-type]


def wrong_fields(**changes: object) -> dict[str, str]:
    with pytest.raises(WrongFields) as caught:
        make_token(**changes)  # type: ignore[arg-type]
    return caught.value.errors


# --- the first user


def test_the_first_user_is_an_administrator_who_can_log_in() -> None:
    user = services.create_first_user(username="ada", password=GOOD)
    assert user.is_superuser
    assert user.check_password(GOOD)


def test_there_is_no_second_first_user() -> None:
    make_user()
    with pytest.raises(Refused, match="has a user already"):
        services.create_first_user(username="eve", password=GOOD)


@pytest.mark.parametrize(
    ("username", "password", "places"),
    [
        ("", GOOD, {"/username"}),
        ("a b", GOOD, {"/username"}),
        ("a\0b", GOOD, {"/username"}),
        ("x" * 151, GOOD, {"/username"}),
        ("ada", "short", {"/password"}),
        ("ada", "password123", {"/password"}),
        ("a b", "", {"/username", "/password"}),
    ],
)
def test_a_wrong_login_is_told_field_by_field(username: str, password: str, places: set[str]) -> None:
    with pytest.raises(WrongFields) as caught:
        services.create_first_user(username=username, password=password)
    assert caught.value.errors.keys() == places
    assert not User.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_of_two_who_come_at_once_one_is_first() -> None:
    both, outcomes = threading.Barrier(2), []

    def come(username: str) -> None:
        try:
            both.wait()
            services.create_first_user(username=username, password=GOOD)
            outcomes.append("made")
        except Refused as refused:
            outcomes.append(refused.code)
        finally:
            connection.close()

    threads = [threading.Thread(target=come, args=(name,)) for name in ("ada", "eve")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["made", "not_first"]
    assert User.objects.count() == 1


# --- projects


def test_the_default_project_is_made_once() -> None:
    user = make_user()
    project = services.default_project(user)
    assert project.owner == user
    assert services.default_project(user) == project


def test_the_oldest_project_is_the_default_one() -> None:
    user = make_user()
    first = Project.objects.create(owner=user, name="thesis")
    Project.objects.create(owner=user, name="another")
    assert services.default_project(user) == first
    assert services.default_project(make_user()) != first


# --- API tokens


def test_a_token_leads_to_its_user_and_scopes() -> None:
    user = make_user()
    token, text = make_token(user, scopes=["runs:write", "runs:read", "runs:read"])
    found = services.token_of(text)
    assert found == token
    assert found.user == user
    assert found.scopes == ["runs:read", "runs:write"]


def test_the_text_is_one_word_and_its_secret_is_not_stored() -> None:
    token, text = make_token()
    assert re.fullmatch(r"sl_[A-Za-z0-9]{10}_[A-Za-z0-9]{40}", text)
    token.refresh_from_db()
    secret = text.rpartition("_")[2]
    assert not any(secret in str(value) for value in vars(token).values())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[:-1] + ("a" if text[-1] != "a" else "b"),
        lambda text: text + "a",
        lambda text: text.upper(),
        lambda text: text.rpartition("_")[0] + "_",
        lambda text: text.replace("sl_", "slr_"),
        lambda text: "sl_" + "a" * 10 + "_" + text.rpartition("_")[2],
        lambda text: text + "\n",
        lambda text: text[:5] + "\0" + text[6:],
        lambda text: "",
        lambda text: "sl_" + "a" * 1_000_000,
    ],
)
def test_any_other_text_is_nobodys(spoil: object) -> None:
    _, text = make_token()
    assert services.token_of(spoil(text)) is None  # type: ignore[operator]


def test_an_expired_token_proves_nothing() -> None:
    token, text = make_token(days=1)
    ApiToken.objects.filter(pk=token.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert services.token_of(text) is None


def test_a_revoked_token_proves_nothing_and_keeps_the_time_of_its_end() -> None:
    token, text = make_token()
    ended = services.revoke_token(token).revoked_at
    assert ended is not None
    assert services.token_of(text) is None
    assert services.revoke_token(ApiToken.objects.get(pk=token.pk)).revoked_at == ended


def test_a_token_of_somebody_who_was_shut_out_proves_nothing() -> None:
    user = make_user()
    _, text = make_token(user)
    user.is_active = False
    user.save()
    assert services.token_of(text) is None


def test_another_secret_key_ends_every_token(settings: object) -> None:
    _, text = make_token()
    settings.SECRET_KEY = "another"  # type: ignore[attr-defined]
    assert services.token_of(text) is None


def test_use_is_noted_at_most_once_a_minute(django_assert_num_queries: object) -> None:
    token, text = make_token()
    services.token_of(text)
    token.refresh_from_db()
    first = token.last_used_at
    assert first is not None
    with django_assert_num_queries(1):  # type: ignore[operator]
        services.token_of(text)
    ApiToken.objects.filter(pk=token.pk).update(last_used_at=first - timedelta(minutes=2))
    services.token_of(text)
    token.refresh_from_db()
    assert token.last_used_at >= first


@pytest.mark.parametrize(
    ("changes", "place", "said"),
    [
        ({"name": "  "}, "/name", "expected 1 to 80 characters"),
        ({"name": "x" * 81}, "/name", "expected 1 to 80 characters"),
        ({"name": "a\0"}, "/name", "expected 1 to 80 characters"),
        ({"scopes": []}, "/scopes", "expected at least one of runs:read"),
        ({"scopes": ["runs:read", "everything"]}, "/scopes/1", "no such scope: 'everything'"),
        ({"days": 0}, "/days", "expected 1 to 366 days, got 0"),
        ({"days": 10**9}, "/days", "expected 1 to 366 days"),
    ],
)
def test_a_wrong_token_names_its_field(changes: dict[str, object], place: str, said: str) -> None:
    errors = wrong_fields(**changes)
    assert list(errors) == [place]
    assert said in errors[place]


def test_a_token_cannot_make_one_that_may_more() -> None:
    errors = wrong_fields(scopes=list(SCOPES), granted=["tokens:manage"])
    assert errors.keys() == {f"/scopes/{place}" for place, scope in enumerate(SCOPES) if scope != "tokens:manage"}
    assert make_token(scopes=["tokens:manage"], granted=["tokens:manage"])
