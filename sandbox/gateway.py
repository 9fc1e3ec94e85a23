"""A sandbox node for other processes: takes calls from a unix socket and gives them to an executor.

Any number of calls may be in flight on a connection. A client that goes away, or cancels, has its programs killed.
Every request is answered: with its result, with "we failed" (`SandboxUnavailable` at the client), or with what is
wrong with it. Leaves out who may connect, which is the socket's file rights (`sandbox.listening`): there is no other
authentication, and no network.
"""

import asyncio
import json
import logging
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sandbox.client import local_sandbox
from sandbox.contract import ExecRequest, Executor, RequestRefused, SandboxUnavailable, first_fault
from sandbox.frames import MOST_REQUEST_BYTES, STREAM_BYTES, Frame, Kind, NotAFrame, TooLarge, encode, read_frame
from sandbox.listening import listening

DRAIN_S = 5.0
_FLUSH_S = 1.0
_log = logging.getLogger(__name__)


async def serve(path: Path, *, slots: int | None, ready: Callable[[str], None], python: Path | None = None) -> None:
    """A node at `path` until SIGTERM or SIGINT; then it lets calls end for `DRAIN_S`. A second signal ends it at once.

    Tells `ready` one line once calls are taken. Raises `CannotListen`, `SandboxUnavailable`.
    """
    stop = _stop_signal()
    with listening(path) as listener:
        async with local_sandbox(slots=slots, python=python) as sandbox:
            gateway = Gateway(sandbox)
            await gateway.open(listener)
            ready(f"Sandbox ready at unix:{path}: {sandbox.node.backend.describe()}")
            await stop.wait()
            await gateway.close(DRAIN_S)


def _stop_signal() -> asyncio.Event:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)

    def told() -> None:
        stop.set()
        for number in numbers:
            loop.remove_signal_handler(number)

    for number in numbers:
        loop.add_signal_handler(number, told)
    return stop


class Gateway:
    """Serves an executor at a listening socket, from `open` to `close`."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()

    async def open(self, listener: socket.socket) -> None:
        """Begin to take connections."""
        self._server = await asyncio.start_unix_server(self._serve, sock=listener, limit=STREAM_BYTES)

    async def close(self, drain_s: float) -> None:
        """Refuse what comes, let what runs end for `drain_s` seconds, tell the rest that we failed."""
        if self._server:
            self._server.close()
        for connection in self._connections:
            connection.closing = True
        if running := [call for connection in self._connections for call in connection.calls.values()]:
            await asyncio.wait(running, timeout=drain_s)
        await asyncio.gather(*(connection.close() for connection in [*self._connections]))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(self._executor, reader, writer)
        self._connections.add(connection)
        try:
            await connection.serve()
        finally:
            self._connections.discard(connection)


class _Connection:
    """One client: its calls by its own numbers."""

    def __init__(self, executor: Executor, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._executor = executor
        self._reader = reader
        self._writer = writer
        self.calls: dict[int, asyncio.Task[None]] = {}
        self.closing = False

    async def serve(self) -> None:
        """Until the client goes away, or says what we cannot understand."""
        try:
            while await self._take_one():
                pass
        finally:
            for call in self.calls.values():
                call.cancel()
            self._writer.close()

    async def close(self) -> None:
        """Answer what still runs, so that its caller may submit it elsewhere, and hang up."""
        for number in self.calls:
            self._write(Kind.UNAVAILABLE, number, _message("the node was stopped before the call ended"))
        self._writer.close()
        with suppress(TimeoutError, ConnectionError):
            await asyncio.wait_for(self._writer.wait_closed(), _FLUSH_S)

    async def _take_one(self) -> bool:
        """Read a frame and act on it; False at the end."""
        try:
            frame = await read_frame(self._reader, MOST_REQUEST_BYTES)
            if frame:
                self._act(frame)
            return frame is not None
        except TooLarge as error:
            await self._send(Kind.REFUSED, error.call, _message(str(error)))
            return True
        except NotAFrame as error:
            await self._send(Kind.REFUSED, 0, _message(f"{error}; closing the connection"))
            return False

    def _act(self, frame: Frame) -> None:
        if frame.kind == Kind.CANCEL:
            if call := self.calls.pop(frame.call, None):
                call.cancel()
            return
        if frame.kind != Kind.RUN:
            raise NotAFrame(f"clients send frames of kind {Kind.RUN:d} and {Kind.CANCEL:d}, not {frame.kind}")
        if frame.call in self.calls:
            raise NotAFrame(f"call {frame.call} is running already")
        self.calls[frame.call] = asyncio.create_task(self._answer(frame))

    async def _answer(self, frame: Frame) -> None:
        try:
            kind, body = await self._outcome(frame)
            await self._send(kind, frame.call, body)
        finally:
            if self.calls.get(frame.call) is asyncio.current_task():  # after a cancel the number may be taken anew
                del self.calls[frame.call]

    async def _outcome(self, frame: Frame) -> tuple[Kind, Any]:
        if self.closing:
            return Kind.UNAVAILABLE, _message("the node is being stopped")
        try:
            result = await self._executor.execute(_request(frame.body))
        except RequestRefused as error:
            return Kind.REFUSED, _message(str(error))
        except SandboxUnavailable as error:
            return Kind.UNAVAILABLE, _message(str(error))
        except Exception as error:  # a bug of ours: tell the submitter, and go on serving the others
            _log.exception("a call failed")
            return Kind.UNAVAILABLE, _message(f"the sandbox failed: {error!r}")
        return Kind.RESULT, result.model_dump()

    async def _send(self, kind: Kind, call: int, body: Any) -> None:
        self._write(kind, call, body)
        with suppress(ConnectionError):  # the client is gone, and `serve` sees that too
            await self._writer.drain()

    def _write(self, kind: Kind, call: int, body: Any) -> None:
        self._writer.write(encode(kind, call, body))


def _request(body: bytes) -> ExecRequest:
    try:
        fields = json.loads(body.decode())
    except (ValueError, RecursionError) as error:
        raise RequestRefused(f"the request is no JSON: {error}") from error
    try:
        return ExecRequest.model_validate(fields, strict=True)
    except ValidationError as error:
        field, message = first_fault(error)
        raise RequestRefused(f"the request is wrong at {field or 'its top'}: {message}") from error


def _message(text: str) -> dict[str, str]:
    return {"message": text}
