"""The client's end of a gateway's socket: submits calls, and connects anew by itself when the node was restarted.

Calls keep no state: one that was lost with its connection raises `SandboxUnavailable` and may be submitted again,
which is the caller's to decide. Leaves out deadlines: a node that is stopped (SIGSTOP) lets its callers wait.
"""

import asyncio
import json
from contextlib import suppress
from itertools import count
from pathlib import Path

from sandbox.contract import ExecRequest, ExecResult, RequestRefused, SandboxUnavailable
from sandbox.frames import MOST_REQUEST_BYTES, STREAM_BYTES, Frame, Kind, NotAFrame, encode, read_frame

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
        return await connection.call(request)

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
                self._connection = _Connection(*await asyncio.open_unix_connection(self._path, limit=STREAM_BYTES))
                return self._connection
            except _NOBODY_LISTENS as error:
                if loop.time() + pause > give_up:
                    raise SandboxUnavailable(
                        f"no sandbox node answers at unix:{self._path} ({error}): "
                        f"start one with `python -m sandbox serve --socket {self._path}`"
                    ) from error
            except OSError as error:
                raise SandboxUnavailable(f"cannot reach the sandbox node at unix:{self._path}: {error}") from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)


class _Connection:
    """One stream to the node and the calls that wait on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[ExecResult]] = {}
        self._reading = asyncio.create_task(self._read())
        self.lost = False

    async def call(self, request: ExecRequest) -> ExecResult:
        """Send one call and wait for its answer; cancelling it kills the program."""
        if self.lost:
            raise SandboxUnavailable(_LOST)
        number = next(self._numbers)
        frame = encode(Kind.RUN, number, request.model_dump())
        if len(frame) > MOST_REQUEST_BYTES:
            raise RequestRefused(f"the request has {len(frame)} bytes, {MOST_REQUEST_BYTES} are allowed")
        answer: asyncio.Future[ExecResult] = asyncio.get_running_loop().create_future()
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
                    answer.set_exception(SandboxUnavailable(_LOST))

    def _settle(self, frame: Frame) -> None:
        answer = self._waiting.get(frame.call)
        if answer is None or answer.done():  # its caller was cancelled
            return
        try:
            answer.set_result(_result(frame))
        except (SandboxUnavailable, RequestRefused) as error:
            answer.set_exception(error)


_LOST = "the connection to the sandbox node was lost; calls keep no state, so this one may be submitted again"


def _result(frame: Frame) -> ExecResult:
    try:
        fields = json.loads(frame.body)
        if frame.kind == Kind.RESULT:
            return ExecResult.model_validate(fields)
        message = str(fields["message"])
    except (ValueError, KeyError, TypeError) as error:  # pydantic's refusals are ValueErrors
        raise SandboxUnavailable(f"the sandbox node sent an answer that is none: {error}") from error
    raise RequestRefused(message) if frame.kind == Kind.REFUSED else SandboxUnavailable(message)
