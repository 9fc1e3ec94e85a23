"""Connections to a Valkey server that may be gone for a while: at most three, whatever waits on them.

Leaves out what is asked of the server; whoever asks decides whether a question may be put again.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from itertools import count
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from redis.asyncio import BlockingConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError
from redis.retry import Retry

from sandbox.broker.valkey.address import address

T = TypeVar("T")
LOST = (RedisError, OSError)
"""What is raised when the server could not do what it was asked, or may have done it unheard."""
MOST_CONNECTIONS = 3
BLOCK_MS = 2000
_ANSWER_S = 10.0
_CONNECT_S = 3.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_LUA = Path(__file__).parent / "lua"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trouble:
    """What the server could not do, and since when by the loop's clock."""

    since: float
    error: Exception

    def lasts_s(self, since: float) -> float:
        """For how long, `since` at most; infinite where waiting is no use."""
        if isinstance(self.error.__cause__ or self.error, AuthenticationError):
            return inf
        return asyncio.get_running_loop().time() - max(since, self.since)

    def goes_on(self, error: Exception) -> "Trouble":
        """The same, of which `error` is the latest news."""
        return replace(self, error=error)

    def __str__(self) -> str:
        return str(self.error) or f"it did not answer within {_ANSWER_S:g} s"


class Link:
    """A server at `url`, and how long it has been gone. Raises `ValueError` for a URL that is none."""

    def __init__(self, url: str, namespace: str) -> None:
        at = address(url)
        self.shown = at.shown
        self._prefix = f"{{{namespace}}}:"  # braces: in a Valkey Cluster all of it is in one place
        self._redis = Redis.from_pool(
            BlockingConnectionPool(
                max_connections=MOST_CONNECTIONS,
                timeout=None,
                connection_class=at.connection,
                socket_connect_timeout=_CONNECT_S,
                socket_timeout=None,  # `_watched` has one; that of the library is slow and swallows cancellations
                retry=Retry(NoBackoff(), 0),
                protocol=2,
                **at.options,
            )
        )
        for command in ("XREAD", "XREADGROUP"):  # as they come, which is the shape that scripts return too
            self._redis.set_response_callback(command, lambda response, **_: response)
        common = (_LUA / "common.lua").read_text()
        self._scripts = {
            path.stem: self._redis.register_script(f"{common}\n{path.read_text()}") for path in _LUA.glob("*.lua")
        }
        self.trouble: Trouble | None = None
        """With the server as a whole; None while it answers."""

    def reason(self, trouble: Trouble | None) -> str:
        """Why the server cannot be used, for people."""
        return f"Valkey at {self.shown} cannot be used: {trouble or 'but now it answers'}"

    def key(self, name: str) -> str:
        """The full key of what the scripts call `name`."""
        return self._prefix + name

    async def run(self, script: str, *arguments: str | bytes | float) -> Any:
        """One of the scripts in `lua/`, with `ARGV`. Raises one of `LOST`."""
        return await self._watched(self._scripts[script]([self._prefix], arguments))

    async def read(self, *command: str | int) -> Any:
        """A command that blocks for `BLOCK_MS` at most. Raises one of `LOST`."""
        return await self._watched(self._redis.execute_command(*command))  # type: ignore[no-untyped-call]

    async def until_done(self, do: Callable[[], Awaitable[T]]) -> T:
        """`do`, again and again until the server can; only for what may be done twice."""
        for attempt in count():
            try:
                return await do()
            except LOST:
                await self.pause(attempt)
        raise AssertionError("a count never ends")

    async def pause(self, attempt: int) -> None:
        """Before the next attempt: longer each time, and not in step with all the others."""
        longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(attempt, 10))
        await asyncio.sleep(random.uniform(longest / 2, longest))

    async def close(self) -> None:
        """Hang up."""
        await self._redis.connection_pool.disconnect()

    async def _watched(self, asked: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(_ANSWER_S):
                answer = await asked
        except LOST as error:
            if self.trouble is None:
                self.trouble = Trouble(asyncio.get_running_loop().time(), error)
                _log.warning("%s", self.reason(self.trouble))
            self.trouble = self.trouble.goes_on(error)
            raise
        if self.trouble:
            _log.warning("Valkey at %s is back", self.shown)
            self.trouble = None
        return answer
