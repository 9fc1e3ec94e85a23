"""Which Postgres, Valkey and sandbox this installation uses: its own on unix sockets, or those that the environment
names."""

import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from sandbox import places
from webapp.config.paths import Var

POSTGRES_USER = DATABASE = "starloom"


class WrongUrl(Exception):
    """A server URL that cannot be used; names the variable and what was expected."""


def database(var: Var) -> dict[str, Any]:
    """Django's settings of the database: ``$DATABASE_URL``, else the embedded server."""
    url = os.environ.get("DATABASE_URL")
    place: dict[str, Any] = (
        from_database_url(url)
        if url
        else {
            "NAME": DATABASE,
            "USER": POSTGRES_USER,
            "PASSWORD": var.secret("postgres_password"),
            "HOST": str(var.sockets),
            "PORT": "5432",
        }
    )
    options = {**place.pop("OPTIONS", {}), "pool": {"min_size": 0, "max_size": 12, "timeout": 8}}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": options,
        **place,
    }


def from_database_url(url: str) -> dict[str, Any]:
    """``postgres://user:password@host:port/name?option=value`` as Django's settings."""
    parts = urlsplit(url)
    if parts.scheme not in ("postgres", "postgresql") or not parts.path.strip("/"):
        raise WrongUrl("DATABASE_URL: expected postgres://user:password@host:port/name")
    query = dict(parse_qsl(parts.query))
    return {
        "NAME": unquote(parts.path.strip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": query.pop("host", None) or parts.hostname or "",
        "PORT": str(parts.port or ""),
        "OPTIONS": query,
    }


@dataclass(frozen=True)
class Valkey:
    """One Valkey server, as Celery and channels-redis want it written."""

    url: str

    @property
    def celery(self) -> str:
        """Kombu's spelling: ``redis+socket://`` for a unix socket."""
        if self.url.startswith("unix://"):
            return "redis+socket://" + self.url.removeprefix("unix://")
        return self.url


def valkey(var: Var) -> Valkey:
    """``$VALKEY_URL`` (``redis://host:port/0`` or ``unix://:password@/path``), else the embedded server."""
    url = os.environ.get("VALKEY_URL", "").replace("valkey://", "redis://", 1)
    if url and not url.startswith(("redis://", "rediss://", "unix://")):
        raise WrongUrl("VALKEY_URL: expected redis://host:port/0, rediss://... or unix://:password@/path")
    return Valkey(url or f"unix://:{quote(var.secret('valkey_password'), safe='')}@{var.sockets / 'valkey.sock'}")


@dataclass(frozen=True)
class Sandbox:
    """Where the programs of models run. ``token`` is for a sandbox that asks for one."""

    url: str
    token: str | None = None
    ours: bool = False
    """Whether `up` starts its node; else it is somebody else's to start and stop."""

    @property
    def shown(self) -> str:
        """The URL for people, without a password."""
        return places.shown(self.url)


def sandbox(var: Var) -> Sandbox:
    """``$STARLOOM_SANDBOX`` with ``$STARLOOM_SANDBOX_TOKEN``, else the node that `up` starts."""
    url = os.environ.get("STARLOOM_SANDBOX")
    if not url:
        return Sandbox(f"unix:{var.sockets / 'sandbox.sock'}", ours=True)
    try:
        places.check_url(url)
    except ValueError as error:
        raise WrongUrl(f"STARLOOM_SANDBOX: {error}") from error
    return Sandbox(url, os.environ.get(places.TOKEN_VARIABLE) or None)
