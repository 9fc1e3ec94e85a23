"""One engine's HTTP server, seen from its client: ask, read, and say plainly what went wrong.

* Only a 200 whose text can be read is an answer. Everything else is ``EngineUnavailable`` with what was expected: a
  lost or half-closed connection, an error page, a time-out, a redirect, an answer without end.
* 4xx that say that the request itself is wrong are ``Refused``: whoever asked knows whether that was a mistake of
  ours (a turn) or of the server's (weights that it cannot load).
* A busy server (429, or 503 with ``Retry-After``) is asked again, within the time of the request.
* A connection for each request: a kept one that the server closes in that moment looks like a dead server.
* The key comes from an environment variable when the client opens, and is blacked out in whatever a server says.

Leaves out what is asked (one file for each kind of engine) and how its answers are read (``answers.py``).
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp

from engine.rollout.answers import UNREADABLE
from engine.rollout.base import EngineUnavailable

AnswerT = TypeVar("AnswerT")

OUR_MISTAKE = frozenset({400, 401, 403, 404, 405, 413, 415, 422})
"""What a server answers to a request that it will refuse next time, too."""

LONGEST_ANSWER = 256 << 20
"""Bytes. A turn of 100,000 tokens with its log-probabilities has a tenth of it."""

QUICK_S = 10.0
"""Seconds that a server may take to say how it is."""

_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.1, 1.0
_BUSY_S = 1.0  # to wait where a busy server does not say how long
_QUOTED = 500


class Refused(EngineUnavailable):
    """The server finds the request itself wrong; the message has its words."""


class ServerClient:
    """Asks one server. ``where`` ends each failure's message: where to read more."""

    def __init__(
        self,
        name: str,
        url: str,
        *,
        socket: str | None = None,
        key_variable: str | None = None,
        request_timeout_s: float = 600.0,
        where: str = "",
    ) -> None:
        self._name = name
        self._url = url.rstrip("/")
        self._socket = socket
        self._key_variable = key_variable
        self._request_timeout_s = request_timeout_s
        self._where = where
        self._key = ""
        self._trouble = ""
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Be able to ask; nothing is sent yet."""
        self._key = self._read_key()
        connector: aiohttp.BaseConnector
        if self._socket:
            connector = aiohttp.UnixConnector(self._socket, limit=0, force_close=True)
        else:
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._session = aiohttp.ClientSession(connector=connector, headers=headers)

    def _read_key(self) -> str:
        if self._key_variable is None:
            return ""
        key = os.environ.get(self._key_variable, "").strip()
        if not key:
            raise self.failure(f"the environment has no {self._key_variable}, which rollout.key_variable names")
        return key

    async def close(self) -> None:
        """May be called twice."""
        session, self._session = self._session, None
        if session:
            await session.close()

    @asynccontextmanager
    async def starting(self, limit_s: float) -> AsyncIterator[None]:
        """Open for what makes the server ready; closed again if that fails or takes longer than ``limit_s``."""
        self.open()
        try:
            async with asyncio.timeout(limit_s):
                yield
        except TimeoutError as error:
            await self.close()
            raise self.failure(f"not ready after {limit_s:g} s: {self._trouble or 'no answer'}") from error
        except ValueError as error:  # here a refusal says what the server is, not what a turn was
            await self.close()
            raise EngineUnavailable(str(error)) from error
        except BaseException:
            await self.close()
            raise

    async def until_healthy(self, path: str, *, pause: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Return when ``path`` answers, if only that it does not like to be asked.

        ``pause`` waits so many seconds, and raises if waiting has become vain.
        """
        look_s = _FIRST_LOOK_S
        while not await self._answers(path):
            await pause(look_s)
            look_s = min(2 * look_s, _LONGEST_LOOK_S)

    async def _answers(self, path: str) -> bool:
        try:
            await self.ask("GET", path, timeout_s=QUICK_S)
        except Refused:  # it is there; what it has against us, the next request shows
            return True
        except EngineUnavailable as error:  # not yet; whoever waits watches the clock and tells this then
            self._trouble = str(error)
            return False
        return True

    async def turn(self, path: str, body: dict[str, Any], reader: Callable[[str], AnswerT]) -> AnswerT:
        """The answer to a request to sample. One that the server finds wrong is our mistake: ``ValueError``."""
        try:
            return await self.read("POST", path, reader, json=body)
        except Refused as error:
            raise ValueError(str(error)) from error

    async def read(
        self,
        method: str,
        path: str,
        reader: Callable[[str], AnswerT],
        *,
        json: Any = None,
        timeout_s: float | None = None,
    ) -> AnswerT:
        """What ``reader`` makes of an answer. Its errors say what it expected."""
        text = await self.ask(method, path, json=json, timeout_s=timeout_s)
        try:
            return reader(text)
        except UNREADABLE as error:
            raise self.failure(f"{path}: unreadable answer ({error!r}): {text[:200]}") from error

    async def ask(self, method: str, path: str, *, json: Any = None, timeout_s: float | None = None) -> str:
        """Text of a 200 answer."""
        limit_s = timeout_s or self._request_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                while (answer := await self._once(method, path, json)) is None:
                    pass
                return answer
        except TimeoutError as error:
            raise self.failure(f"{path} took more than {limit_s:g} s") from error

    async def _once(self, method: str, path: str, json: Any) -> str | None:
        """Text of a 200 answer; None, after waiting, from a server that is busy."""
        if self._session is None:
            raise EngineUnavailable(f"engine {self._name} is not running")
        try:
            async with self._session.request(
                method, self._url + path, json=json, allow_redirects=False, timeout=aiohttp.ClientTimeout(total=None)
            ) as answer:
                text = await _text(answer)
        except ValueError as error:
            raise self.failure(f"{path}: {error}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise self.failure(f"{path}: {error!r}") from error
        if answer.status == 200:
            return text
        wait_s = _busy_for(answer)
        if wait_s is None:
            kind = Refused if answer.status in OUR_MISTAKE else EngineUnavailable
            raise self.failure(f"{path} answered {answer.status}: {text[:_QUOTED]}", kind)
        await asyncio.sleep(wait_s)
        return None

    def failure(self, what: str, kind: type[EngineUnavailable] = EngineUnavailable) -> EngineUnavailable:
        """What happened to which engine, without the key."""
        shown = what.replace(self._key, "***") if self._key else what
        return kind(f"engine {self._name}: {shown}{self._where}")


async def _text(answer: aiohttp.ClientResponse) -> str:
    """The body as UTF-8. ``ValueError`` if it is none, or has no end."""
    body = bytearray()
    async for part in answer.content.iter_any():
        body += part
        if len(body) > LONGEST_ANSWER:
            raise ValueError(f"the answer has more than {LONGEST_ANSWER >> 20} MiB")
    return body.decode()


def _busy_for(answer: aiohttp.ClientResponse) -> float | None:
    """Seconds that a busy server asks to wait; None from one that has another trouble. A date counts as no number."""
    after = answer.headers.get("Retry-After", "")
    if answer.status == 429 or (answer.status == 503 and after):
        return float(after) if after.isdecimal() else _BUSY_S
    return None
