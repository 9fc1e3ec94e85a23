"""A Valkey server's URL, read and checked. Passwords are never shown."""

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from redis.asyncio import Connection, SSLConnection, UnixDomainSocketConnection

_TCP = {"valkey": False, "redis": False, "valkeys": True, "rediss": True}  # whether with TLS
_UNIX = ("valkey+unix", "redis+unix", "redis+socket", "unix")
_EXAMPLES = "valkey://host:6379/0, valkeys://host:6379/0 or valkey+unix:///path/to/valkey.sock?db=0"


@dataclass(frozen=True)
class Address:
    """Where a server is and how to connect to it."""

    shown: str
    """The URL without user and password, for people."""
    connection: type[Any]
    options: dict[str, Any] = field(repr=False)


def address(url: str) -> Address:
    """What `url` means. Raises `ValueError` that says what is wrong with it."""
    try:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        if parts.scheme in _UNIX:
            connection, options = UnixDomainSocketConnection, _unix(parts, query)
        elif parts.scheme in _TCP:
            connection, options = _tcp(parts, query, tls=_TCP[parts.scheme])
        else:
            raise ValueError(f"its scheme is {parts.scheme!r}")
        if query:
            raise ValueError(f"it has the unknown parameter {min(query)!r}")
    except ValueError as error:
        raise ValueError(f"a Valkey URL looks like {_EXAMPLES}; this one does not: {error}") from None
    options |= {name: unquote(value) for name in ("username", "password") if (value := getattr(parts, name))}
    return Address(_shown(parts), connection, options)


def _unix(parts: SplitResult, query: dict[str, str]) -> dict[str, Any]:
    if not parts.path.startswith("/"):
        raise ValueError("it has no absolute path")
    options: dict[str, Any] = {"path": unquote(parts.path), "db": _database(query.pop("db", ""), "db")}
    if "password" in query:
        options["password"] = query.pop("password")
    return options


def _tcp(parts: SplitResult, query: dict[str, str], *, tls: bool) -> tuple[type[Any], dict[str, Any]]:
    if not parts.hostname:
        raise ValueError("it has no host")
    options: dict[str, Any] = {
        "host": parts.hostname,
        "port": parts.port or 6379,  # raises ValueError for a wrong one
        "db": _database(parts.path.removeprefix("/"), "path"),
        "socket_keepalive": True,
    }
    if tls and "ca" in query:
        options["ssl_ca_certs"] = query.pop("ca")
    return (SSLConnection if tls else Connection), options


def _database(text: str, where: str) -> int:
    if text and not text.isdecimal():
        raise ValueError(f"its {where} should be the number of a database, not {text!r}")
    return int(text or 0)


def _shown(parts: SplitResult) -> str:
    place = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{place}{parts.path}"
