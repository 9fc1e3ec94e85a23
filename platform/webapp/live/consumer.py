"""The WebSocket of a run: a snapshot with a cursor, then only what is newer, pulled from the database.

``/ws/v1/runs/{id}?since=CURSOR``. Messages to the browser, all JSON objects:

    snapshot  the first: the run, and what follows ``since`` (without it: nothing but the cursor)
    delta     what is newer than the message before; at most two a second
    refetch   a snapshot or delta that would be over 1 MB: the reader takes it from the API, and goes on from ``cursor``
    ping      every 15 s
    trouble   the database does not answer; the socket stays and goes on when it does

Close codes: 4400 wrong ``since``, 4401 not logged in (any more), 4404 no such run for this user, 4429 does not read.
A delta is only pulled when the one before is on its way, so a slow reader costs no memory and gets fewer, larger ones.
"""

import asyncio
import logging
from typing import Any
from urllib.parse import parse_qs

from channels.generic.websocket import AsyncWebsocketConsumer
from django.db import Error as DatabaseError

from webapp.live import access
from webapp.live.reads import Read, dumped, in_thread, shared_reads
from webapp.live.wake_ups import Signal, wake_ups
from webapp.runs.models import Run

logger = logging.getLogger(__name__)

WRONG_SINCE = 4400
DOES_NOT_READ = 4429

GAP_S = 0.5
LOOK_EVERY_S = 5.0
HEARTBEAT_S = 15.0
SEND_S = 10.0
CLOSE_S = 1.0
TROUBLE_AFTER_S = 4.0

PING = dumped({"type": "ping"})
TROUBLE = dumped({"type": "trouble", "detail": "the database does not answer; trying again"})


class _Over(Exception):
    """The socket has to be closed, with this code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"close {code}")
        self.code = code


class RunConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """One viewer of one run."""

    channel_layer_alias = "none: wake_ups listens for all viewers"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve until the client goes, or until we give up on one that does not read and so cannot be closed."""
        self._gave_up = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        serving = asyncio.create_task(super().__call__(scope, receive, send))
        giving_up = asyncio.create_task(self._gave_up.wait())
        try:
            await asyncio.wait({serving, giving_up}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
        finally:
            ours = [task for task in (serving, giving_up, self._following) if task is not None]
            for task in ours:
                task.cancel()
            await asyncio.gather(*ours, return_exceptions=True)

    async def connect(self) -> None:
        """Accept first: a close code only reaches a browser on an open socket."""
        await self.accept()
        self._run_id: str = self.scope["url_route"]["kwargs"]["run_id"]
        self._following = asyncio.create_task(self._follow_until_over())

    async def _follow_until_over(self) -> None:
        try:
            await self._follow(self._since())
        except _Over as over:
            await self._close(over.code)
        except Exception:
            logger.exception("the socket of run %s broke", self._run_id)
            await self._close(1011)

    async def _close(self, code: int) -> None:
        """Close; a client that does not read cannot be told, and is left all the same."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.close(code)
        except TimeoutError:
            self._gave_up.set()

    def _since(self) -> int | None:
        """The cursor that the client names, if it does."""
        given = parse_qs(self.scope["query_string"].decode("latin-1")).get("since")
        if given is None:
            return None
        if not (given[-1].isascii() and given[-1].isdigit() and len(given[-1]) < 19):
            raise _Over(WRONG_SINCE)
        return int(given[-1])

    async def _follow(self, cursor: int | None) -> None:
        """Look, tell, wait; for ever."""
        loop = asyncio.get_running_loop()
        await self._check_access()
        heard_at, kind = loop.time(), "snapshot"
        async with wake_ups().of(self._run_id) as signal:
            while True:
                signal.clear()
                read = await self._look(cursor, signal)
                if kind == "snapshot" or read.cursor != cursor or read.reset:
                    await self._send(read.message(kind))
                cursor, kind = read.cursor, "delta"
                if loop.time() - heard_at >= HEARTBEAT_S:
                    await self._check_access()
                    await self._send(PING)
                    heard_at = loop.time()
                await asyncio.sleep(GAP_S - loop.time() % GAP_S)  # all viewers look together, and so share a look
                await signal.wait(LOOK_EVERY_S)

    async def _look(self, cursor: int | None, signal: Signal) -> Read:
        """What is newer than the cursor. A shared look may have begun before we were called: then look once more."""
        try:
            read = await self._patiently(shared_reads().look, self._run_id, cursor)
        except Run.DoesNotExist as error:
            raise _Over(access.NOT_VISIBLE) from error
        if read.began_at < signal.rung_at:
            signal.ring()
        return read  # type: ignore[no-any-return]

    async def _check_access(self) -> None:
        session_key = self.scope["session"].session_key
        code = await self._patiently(in_thread(access.refusal), session_key, self._run_id)
        if code is not None:
            raise _Over(code)

    async def _patiently(self, ask: Any, *args: Any) -> Any:
        """Ask the database until it answers; meanwhile the client is told that it does not, and then that it does."""
        troubled = False
        while True:
            asking = asyncio.ensure_future(ask(*args))
            try:
                done, _ = await asyncio.wait({asking}, timeout=TROUBLE_AFTER_S)
                if not done:
                    troubled = True
                    await self._send(TROUBLE)
                answer = await asking
            except DatabaseError as error:
                logger.warning("the socket of run %s waits for the database: %s", self._run_id, error)
                troubled = True
                await self._send(TROUBLE)
                await asyncio.sleep(TROUBLE_AFTER_S)
            else:
                if troubled:
                    await self._send(PING)
                return answer
            finally:
                asking.cancel()

    async def _send(self, text: str) -> None:
        """Send, but not for ever: a client that reads nothing for so long is gone or does not want."""
        try:
            async with asyncio.timeout(SEND_S):
                await self.send(text)
        except TimeoutError as error:
            raise _Over(DOES_NOT_READ) from error
