"""The unix-socket door: takes the calls of other processes on this machine and gives them to a submitter.

Any number of calls may be in flight on a connection. A client that goes away, or cancels, has its programs killed;
the sessions that it used end with its connection. Every request is answered: with what came of it, with the exception
that its client raises, or with what is wrong with it. Leaves out who may connect, which is the socket's file rights
(`sandbox.doors.listening`): there is no other authentication, and no network.
"""

import asyncio
import logging
import socket
from contextlib import suppress
from typing import Any

from sandbox.broker import Submitter
from sandbox.contract import MOST_REQUEST_BYTES, ExecRequest, SandboxUnavailable, SessionLost
from sandbox.doors.frames import (
    FAILURES,
    STREAM_BYTES,
    Frame,
    Kind,
    NotAFrame,
    TooLarge,
    encode,
    read_frame,
)
from sandbox.doors.listening import BACKLOG
from sandbox.parsing import FieldRefused, json_in, request_in

_FLUSH_S = 1.0
_log = logging.getLogger(__name__)
Answer = tuple[Kind, Any]


class Gateway:
    """Serves a submitter at a listening socket, from `open` to `close`."""

    def __init__(self, submitter: Submitter) -> None:
        self._submitter = submitter
        self._server: asyncio.Server | None = None
        self._connections: dict[_Connection, asyncio.Task[None]] = {}

    async def open(self, listener: socket.socket) -> None:
        """Begin to take connections."""
        self._server = await asyncio.start_unix_server(self._serve, sock=listener, limit=STREAM_BYTES, backlog=BACKLOG)

    async def close(self) -> None:
        """Hang up on everybody, once what was answered is sent. Calls that run still are killed."""
        if self._server:
            self._server.close()
        connections = [*self._connections.items()]
        await asyncio.gather(*(connection.hang_up() for connection, _ in connections))
        await asyncio.gather(*(serving for _, serving in connections))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(self._submitter, reader, writer)
        serving = asyncio.current_task()
        assert serving
        self._connections[connection] = serving
        try:
            await connection.serve()
        finally:
            del self._connections[connection]


class _Connection:
    """One client: its calls by its own numbers, and the sessions that it used."""

    def __init__(self, submitter: Submitter, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._submitter = submitter
        self._reader = reader
        self._writer = writer
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._sessions: set[str] = set()

    async def serve(self) -> None:
        """Until the client goes away, or says what we cannot understand."""
        try:
            while await self._take_one():
                pass
        finally:
            for call in self._calls.values():
                call.cancel()
            self._writer.close()
            for session in [*self._sessions]:
                await self._let_go(session)

    async def hang_up(self) -> None:
        """Send what was written, then close."""
        self._writer.close()
        with suppress(TimeoutError, ConnectionError):
            await asyncio.wait_for(self._writer.wait_closed(), _FLUSH_S)

    async def _let_go(self, session: str) -> None:
        try:
            await self._submitter.end_session(session)
        except SandboxUnavailable as error:
            _log.warning("session %s of a client that went away was not ended, it has to idle out: %s", session, error)

    async def _take_one(self) -> bool:
        """Read a frame and act on it; False at the end."""
        try:
            frame = await read_frame(self._reader, MOST_REQUEST_BYTES)
            if frame:
                self._act(frame)
            return frame is not None
        except TooLarge as error:
            await self._send(Kind.REFUSED, error.call, _message(error))
            return True
        except NotAFrame as error:
            await self._send(Kind.REFUSED, 0, _message(f"{error}; closing the connection"))
            return False

    def _act(self, frame: Frame) -> None:
        if frame.kind == Kind.CANCEL:
            if call := self._calls.pop(frame.call, None):
                call.cancel()
            return
        if frame.kind not in (Kind.RUN, Kind.END_SESSION, Kind.STATUS):
            raise NotAFrame(f"clients send frames of kind 1 to 4, not {frame.kind}")
        if frame.call in self._calls:
            raise NotAFrame(f"call {frame.call} is running already")
        self._calls[frame.call] = asyncio.create_task(self._answer(frame))

    async def _answer(self, frame: Frame) -> None:
        try:
            kind, body = await self._outcome(frame)
            await self._send(kind, frame.call, body)
        finally:
            if self._calls.get(frame.call) is asyncio.current_task():  # after a cancel the number may be taken anew
                del self._calls[frame.call]

    async def _outcome(self, frame: Frame) -> Answer:
        try:
            return await self._ask(frame)
        except tuple(FAILURES.values()) as error:
            kind = next(kind for kind, failure in FAILURES.items() if isinstance(error, failure))
            return kind, _message(error)
        except Exception as error:  # a bug of ours: tell the submitter, and go on serving the others
            _log.exception("a call failed")
            return Kind.UNAVAILABLE, _message(f"the sandbox failed: {error!r}")

    async def _ask(self, frame: Frame) -> Answer:
        if frame.kind == Kind.STATUS:
            return Kind.STATE, (await self._submitter.status()).model_dump()
        if frame.kind == Kind.END_SESSION:
            session = _session(frame.body)
            self._sessions.discard(session)
            await self._submitter.end_session(session)
            return Kind.ENDED, None
        return Kind.RESULT, await self._run(request_in(json_in(frame.body)))

    async def _run(self, request: ExecRequest) -> Any:
        if request.session is not None:
            self._sessions.add(request.session)
        try:
            return (await self._submitter.submit(request)).model_dump()
        except SessionLost:
            self._sessions.discard(request.session or "")
            raise

    async def _send(self, kind: Kind, call: int, body: Any) -> None:
        self._writer.write(encode(kind, call, body))
        with suppress(ConnectionError):  # the client is gone, and `serve` sees that too
            await self._writer.drain()


def _session(body: bytes) -> str:
    match json_in(body):
        case {"session": str(session)}:
            return session
    raise FieldRefused("session", 'expected {"session": NAME}')


def _message(what: object) -> dict[str, str]:
    return {"message": str(what)}
