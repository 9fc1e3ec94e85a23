"""Where a sandbox may be, as a URL, and how it is reached there.

    unix:/path/to/node.sock          a node on this machine: `python -m sandbox node --socket`
    http://HOST:PORT, https://...    a node's HTTP door, with a token: `python -m sandbox node --http`
    valkey://HOST:PORT/DB            a cluster: the Valkey that its nodes pull from, `python -m sandbox node --valkey`;
                                     valkeys:// with TLS, valkey+unix:///path by a socket, redis:// is the same

Each transport is imported when it is used: the others need not be installed.
"""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from sandbox.broker import Submitter

TOKEN_VARIABLE = "STARLOOM_SANDBOX_TOKEN"
FORMS = "unix:/path/to/node.sock, http(s)://HOST:PORT, valkey(s)://HOST:PORT/DB or valkey+unix:///path"
Connected = AbstractAsyncContextManager[Submitter]


def check_url(url: str) -> None:
    """Refuse what is no sandbox's URL, without connecting. Raises `ValueError` that names the forms."""
    _transport(url)


def connected(url: str, token: str | None = None) -> Connected:
    """The sandbox at a URL, reachable when the block begins. Raises what `sandbox.client.sandbox_at` does."""
    return _transport(url)(url, token)


def shown(url: str) -> str:
    """The URL without its password, for people to read."""
    return re.sub(r"://([^:@/]*):.*@", r"://\1:***@", url)


def _transport(url: str) -> Callable[[str, str | None], Connected]:
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets that are no IPv6 address
        parts = SplitResult("", "", "", "", "")
    match parts.scheme:
        case "unix" if parts.path.startswith("/") and not parts.netloc:
            return _unix
        case "http" | "https" if parts.hostname and _has_port(parts):
            return _http
        case "valkey" | "valkeys" | "redis" | "rediss" if parts.hostname and _has_port(parts):
            return _valkey
        case "valkey+unix" | "redis+unix" if parts.path.startswith("/"):
            return _valkey
    raise ValueError(f"a sandbox's URL looks like {FORMS}, not like {shown(url)!r}")


def _has_port(parts: SplitResult) -> bool:
    try:
        return parts.port != 0
    except ValueError:  # no number, or out of range
        return False


@asynccontextmanager
async def _unix(url: str, token: str | None) -> AsyncIterator[Submitter]:
    from sandbox.doors.remote import RemoteNode

    node = RemoteNode(Path(url.removeprefix("unix:")))
    try:
        await node.connect()
        yield node
    finally:
        await node.close()


@asynccontextmanager
async def _http(url: str, token: str | None) -> AsyncIterator[Submitter]:
    from sandbox.doors.http_client import HttpNode

    async with HttpNode(url, token) as node:
        await node.status()
        yield node


@asynccontextmanager
async def _valkey(url: str, token: str | None) -> AsyncIterator[Submitter]:
    from sandbox.broker.valkey import ValkeyBroker

    broker = ValkeyBroker(url)
    try:
        await broker.status()
        yield broker
    finally:
        await broker.close()
