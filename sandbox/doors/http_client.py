"""The client's end of the HTTP door: a `Submitter` that sends each call as one request.

A call that was lost on the way raises `SandboxUnavailable`, and may be submitted again if the caller likes. A cell
raises `SessionLost`: its door ended the session with it. One that could not even be sent lost nothing. Leaves out
deadlines for programs; a machine that is gone is noticed by TCP within a minute.
"""

import asyncio
import json
import socket
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import aiohttp

from sandbox.contract import (
    ExecRequest,
    ExecResult,
    RequestRefused,
    SandboxBusy,
    SandboxStatus,
    SandboxUnavailable,
    SessionLost,
)
from sandbox.parsing import answer_in
from sandbox.places import TOKEN_VARIABLE

CONNECT_S = 5.0  # a door that was restarted is back within this
_PAUSE_S = 0.2
_MOST_CONNECTIONS = 512
_KEEPALIVE = {socket.TCP_KEEPIDLE: 20, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}
_FAILURES: dict[int, type[Exception]] = {
    HTTPStatus.GONE: SessionLost,
    HTTPStatus.TOO_MANY_REQUESTS: SandboxBusy,
}


class HttpNode:
    """A `Submitter` for the HTTP door at `url`, for as long as the `async with` block lasts."""

    def __init__(self, url: str, token: str | None = None, connect_s: float = CONNECT_S) -> None:
        self._url = url.rstrip("/")
        self._connect_s = connect_s
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=_MOST_CONNECTIONS, socket_factory=_watched_socket)
        unlimited = aiohttp.ClientTimeout(total=None, sock_connect=self._connect_s)
        self._http = aiohttp.ClientSession(connector=connector, timeout=unlimited, headers=self._headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._http.close()

    async def submit(self, request: ExecRequest) -> ExecResult:
        """See `Submitter`. Raises `RequestRefused` for what the door would not take, the token included."""
        body = json.dumps(request.model_dump()).encode()
        try:
            return answer_in(ExecResult, await self._ask("POST", "/v1/exec", body))
        except _Lost as error:
            if request.session is None:
                raise
            raise SessionLost(f"session {request.session} was lost with a cell's answer: {error}") from error

    async def end_session(self, session: str) -> None:
        """See `Submitter`."""
        await self._ask("DELETE", f"/v1/sessions/{quote(session, safe='')}")

    async def status(self) -> SandboxStatus:
        """See `Submitter`."""
        return answer_in(SandboxStatus, await self._ask("GET", "/v1/status"))

    async def _ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        """The answer's JSON. Tries to connect for `connect_s` seconds; what was sent is not sent again."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._connect_s
        while True:
            try:
                return await self._ask_once(method, path, body)
            except aiohttp.ClientConnectorError as error:
                if loop.time() + _PAUSE_S > give_up:
                    raise SandboxUnavailable(f"no sandbox answers at {self._url}: {error}") from error
            except aiohttp.ClientError as error:
                raise _Lost(f"the connection to {self._url} was lost ({error!r})") from error
            await asyncio.sleep(_PAUSE_S)

    async def _ask_once(self, method: str, path: str, body: bytes | None) -> Any:
        headers = {"Content-Type": "application/json"} if body is not None else None
        async with self._http.request(method, self._url + path, data=body, headers=headers) as response:
            return _fields(response.status, await response.read())


class _Lost(SandboxUnavailable):
    """Nobody knows whether the call ran."""


def _watched_socket(address: Any) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


def _fields(status: int, body: bytes) -> Any:
    if status == HTTPStatus.NO_CONTENT:
        return None
    try:
        fields = json.loads(body)
        if status == HTTPStatus.OK:
            return fields
        reason = str(fields["detail"])
    except (ValueError, KeyError, TypeError) as error:
        raise SandboxUnavailable(f"an answer with status {status} that is none of a sandbox: {error}") from error
    raise _failure(status, reason, fields.get("field"))


def _failure(status: int, reason: str, field: Any) -> Exception:
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return RequestRefused(f"{reason}: set {TOKEN_VARIABLE}, or pass a token")
    if status in _FAILURES:
        return _FAILURES[status](reason)
    if 400 <= status < 500:
        return RequestRefused(f"the request is wrong at {field}: {reason}" if field else reason)
    return SandboxUnavailable(reason)
