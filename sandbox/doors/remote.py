"""The client's end of a gateway's socket: submits calls, and connects anew by itself when the node was restarted.

A call that was lost with its connection raises `SandboxUnavailable`, and may be submitted again if the caller likes.
A cell raises `SessionLost`: sessions end with the connection that used them, and nobody runs a cell twice. Leaves out
deadlines: a node that is stopped (SIGSTOP) lets its callers wait.
"""

import asyncio
import json
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from sandbox.contract import (
    MOST_REQUEST_BYTES,
    ExecRequest,
    ExecResult,
    RequestRefused,
    SandboxStatus,
    SandboxUnavailable,
    SessionLost,
)
from sandbox.doors.frames import FAILURES, STREAM_BYTES, Frame, Kind, NotAFrame, encode, read_frame
from sandbox.parsing import answer_in

CONNECT_S = 5.0  # a node that was restarted is back within this
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 0.5
_NOBODY_LISTENS = (FileNotFoundError, ConnectionError)


class RemoteNode:
    """A `Submitter` for the node behind the socket at `path`. Belongs to one event loop."""

    def __init__(self, path: Path, connect_s: float = CONNECT_S) -> None:
        self._path = path
        self._connect_s = connect_s
        self._connection: _Connection | None = None
        self._opening: asyncio.Task[_Connection] | None = None
        self._closed = False

    async def submit(self, request: ExecRequest) -> ExecResult:
        """See `Submitter`. Raises `RequestRefused` for a request that the node would not take."""
        connection = await self.connect()
        try:
            return answer_in(ExecResult, await connection.ask(Kind.RUN, request.model_dump()))
        except _ConnectionLost as error:
            if request.session is None:
                raise
            raise SessionLost(f"session {request.session} ended with the connection to its node") from error

    async def end_session(self, session: str) -> None:
        """See `Submitter`. A lost connection took its sessions with it."""
        if self._connection and not self._connection.lost:
            with suppress(_ConnectionLost):
                await self._connection.ask(Kind.END_SESSION, {"session": session})

    async def status(self) -> SandboxStatus:
        """See `Submitter`."""
        connection = await self.connect()
        return answer_in(SandboxStatus, await connection.ask(Kind.STATUS))

    async def connect(self) -> "_Connection":
        """The living connection; callers that need a new one wait for the same attempt. Raises `SandboxUnavailable`."""
        if self._closed:
            raise SandboxUnavailable("the sandbox is closed")
        if self._connection is None or self._connection.lost:
            if self._opening is None or self._opening.done():
                self._opening = asyncio.create_task(self._open())
            return await asyncio.shield(self._opening)
        return self._connection

    async def close(self) -> None:
        """Hang up: the node kills what still runs for us."""
        self._closed = True
        if self._opening:
            self._opening.cancel()
            with suppress(asyncio.CancelledError, SandboxUnavailable):
                await self._opening
        if self._connection:
            await self._connection.close()

    async def _open(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        give_up, pause = loop.time() + self._connect_s, _FIRST_PAUSE_S
        while True:
            try:
                self._connection = _Connection(*await _streams(self._path))
                return self._connection
            except _NOBODY_LISTENS as error:
                if loop.time() + pause > give_up:
                    raise SandboxUnavailable(
                        f"no sandbox node answers at unix:{self._path} ({error}): "
                        f"start one with `python -m sandbox node --socket {self._path}`"
                    ) from error
            except OSError as error:
                raise SandboxUnavailable(f"cannot reach the sandbox node at unix:{self._path}: {error}") from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)


async def _streams(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_unix_connection(path, limit=STREAM_BYTES)
    if writer.get_extra_info("peername") is None:  # asyncio takes the EAGAIN of a full queue for "connected"
        writer.transport.abort()
        raise ConnectionRefusedError("too many others connect")
    return reader, writer


class _ConnectionLost(SandboxUnavailable):
    def __init__(self) -> None:
        super().__init__("the connection to the sandbox node was lost; a call without a session may be submitted again")


class _Connection:
    """One stream to the node and the questions that wait on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._reading = asyncio.create_task(self._read())
        self.lost = False

    async def ask(self, kind: Kind, body: Any = None) -> Any:
        """Send a question, wait for its answer's JSON; cancelling it kills the program that it runs."""
        if self.lost:
            raise _ConnectionLost
        number = next(self._numbers)
        frame = encode(kind, number, body)
        if len(frame) > MOST_REQUEST_BYTES:
            raise RequestRefused(f"the request has {len(frame)} bytes, {MOST_REQUEST_BYTES} are allowed")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._writer.write(frame)
            with suppress(ConnectionError):  # `_read` sees the loss too, and tells every call
                await self._writer.drain()
            return await answer
        except asyncio.CancelledError:
            if not self.lost:
                self._writer.write(encode(Kind.CANCEL, number))
            raise
        finally:
            del self._waiting[number]

    async def close(self) -> None:
        """Hang up; calls that wait raise `SandboxUnavailable`."""
        self._writer.close()
        await self._reading

    async def _read(self) -> None:
        try:
            with suppress(NotAFrame):  # then it is no node of ours: as good as gone
                while frame := await read_frame(self._reader):
                    self._settle(frame)
        finally:
            self.lost = True
            self._writer.close()
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(_ConnectionLost())

    def _settle(self, frame: Frame) -> None:
        answer = self._waiting.get(frame.call)
        if answer is None or answer.done():  # its caller was cancelled
            return
        try:
            answer.set_result(_answer(frame))
        except (SandboxUnavailable, RequestRefused) as error:
            answer.set_exception(error)


def _answer(frame: Frame) -> Any:
    try:
        fields: Any = json.loads(frame.body) if frame.body else None
        failure = FAILURES.get(Kind(frame.kind))
        message = str(fields["message"]) if failure else ""
    except (ValueError, KeyError, TypeError) as error:
        raise SandboxUnavailable(f"the sandbox node sent an answer that is none: {error}") from error
    if failure:
        raise failure(message)
    return fields
