"""What changes accounts: the first user, projects, API tokens. Leaves out who may see what: ``policies.py``.

An API token is ``sl_<key>_<secret>``. Of the secret only its HMAC-SHA256 is stored, made with a key that is derived
from ``SECRET_KEY``: a stolen database proves nothing, and a new ``SECRET_KEY`` ends every token.
"""

import re
import secrets
import string
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.crypto import constant_time_compare, salted_hmac

from webapp.accounts.models import ApiToken, Project, User
from webapp.accounts.scopes import SCOPES
from webapp.runs.services import Refused, WrongFields

DEFAULT_PROJECT = "Default"
DEFAULT_DAYS, MOST_DAYS = 90, 366
USE_NOTED_EVERY = timedelta(minutes=1)

_FIRST_USER_LOCK = 0x51A4_0001
_SALT = "starloom.api-token"
_LETTERS = string.ascii_letters + string.digits
_TOKEN = re.compile(r"sl_([A-Za-z0-9]{1,16})_([A-Za-z0-9]{1,100})")


def create_first_user(*, username: str, password: str) -> User:
    """The administrator of an installation that has no user yet. Raises ``Refused`` where there is one, and
    ``WrongFields`` for a name or a password that cannot be."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_FIRST_USER_LOCK])
        if User.objects.exists():
            raise Refused("this installation has a user already: log in", code="not_first")
        _refuse_wrong_login(username, password)
        user: User = User.objects.create_superuser(username, password=password)
        return user


def _refuse_wrong_login(username: str, password: str) -> None:
    wrong = {}
    user = User(username=username)
    try:
        user.clean_fields(exclude={"password"})
    except ValidationError as error:
        wrong["/username"] = " ".join(error.message_dict["username"])
    try:
        validate_password(password, user)
    except ValidationError as error:
        wrong["/password"] = " ".join(error.messages)
    if wrong:
        raise WrongFields(wrong)


def default_project(user: User) -> Project:
    """The user's first project, made when it is first needed."""
    return user.projects.first() or Project.objects.get_or_create(owner=user, name=DEFAULT_PROJECT)[0]


def create_token(
    *,
    user: User,
    name: str,
    scopes: Sequence[str],
    days: int = DEFAULT_DAYS,
    granted: Collection[str] | None = None,
) -> tuple[ApiToken, str]:
    """A token and its text, which is nowhere else and cannot be had again. ``granted``: scopes of the token that asks
    for this one, which may not get more than that. Raises ``WrongFields``."""
    name = name.strip()
    _refuse_wrong_token(name, scopes, days, SCOPES if granted is None else granted)
    key, secret = _random(10), _random(40)
    token = ApiToken.objects.create(
        user=user,
        name=name,
        key=key,
        secret_hash=_hash(secret),
        scopes=[scope for scope in SCOPES if scope in scopes],
        expires_at=timezone.now() + timedelta(days=days),
    )
    return token, f"sl_{key}_{secret}"


def _refuse_wrong_token(name: str, scopes: Sequence[str], days: int, granted: Collection[str]) -> None:
    wrong = {}
    if not 1 <= len(name) <= 80 or "\0" in name:
        wrong["/name"] = "expected 1 to 80 characters that say what the token is for"
    if not scopes:
        wrong["/scopes"] = f"expected at least one of {', '.join(SCOPES)}"
    for place, scope in enumerate(scopes):
        if scope not in SCOPES:
            wrong[f"/scopes/{place}"] = f"no such scope: {scope!r:.40}; expected some of {', '.join(SCOPES)}"
        elif scope not in granted:
            wrong[f"/scopes/{place}"] = f"{scope}: the token that asks does not have it and cannot give it"
    if not 1 <= days <= MOST_DAYS:
        wrong["/days"] = f"expected 1 to {MOST_DAYS} days, got {days}"
    if wrong:
        raise WrongFields(wrong)


def token_of(text: str) -> ApiToken | None:
    """The token with this text; None for one that is not ours, has expired or was revoked, and for one of a user who
    may not log in any more."""
    parts = _TOKEN.fullmatch(text)
    if parts is None:
        return None
    token = ApiToken.objects.select_related("user").filter(key=parts[1]).first()
    if token is None or not constant_time_compare(token.secret_hash, _hash(parts[2])):
        return None
    now = timezone.now()
    if token.revoked_at is not None or token.expires_at <= now or not token.user.is_active:
        return None
    _note_use(token, now)
    return token


def _note_use(token: ApiToken, now: datetime) -> None:
    """Once a minute: a trainer that posts ten times a second must not write ten times a second."""
    long_ago = now - USE_NOTED_EVERY
    if token.last_used_at is None or token.last_used_at <= long_ago:
        unnoted = Q(last_used_at__isnull=True) | Q(last_used_at__lte=long_ago)
        ApiToken.objects.filter(unnoted, pk=token.pk).update(last_used_at=now)
        token.last_used_at = now


def revoke_token(token: ApiToken) -> ApiToken:
    """From now on the token proves nothing. One that was revoked before keeps its time."""
    ApiToken.objects.filter(pk=token.pk, revoked_at__isnull=True).update(revoked_at=timezone.now())
    token.refresh_from_db(fields=["revoked_at"])
    return token


def _random(length: int) -> str:
    """Letters and digits only, so that a double click selects the whole token."""
    return "".join(secrets.choice(_LETTERS) for _ in range(length))


def _hash(secret: str) -> str:
    return salted_hmac(_SALT, secret, algorithm="sha256").hexdigest()
