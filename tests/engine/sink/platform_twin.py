"""The platform's end of shipping, in memory and honest: a real HTTP server that holds to ``engine.contract.delivery``.

It takes event ``seq`` only behind ``seq - 1``, skips what it has, answers a gap with its cursor, an older launch with
``superseded``, and sends a command until its answer is told. Faults happen as a test asks. Leaves out rows and pages.
"""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import zstandard

from engine.contract.commands import Command
from engine.contract.delivery import Answer, Batch, ShippedTrajectory
from engine.contract.events import CommandApplied, CommandRejected, EvalFinished, Event, StepFinished

TOKEN = "slr_secret"

Fault = Callable[[int, Batch | None], str | tuple[int, dict[str, Any]] | None]
"""Number of the request and its batch (None for GET) -> what goes wrong: ``drop`` it unseen; take it in and then
``lose`` the answer; ``late``: answer after ``lateness``; or a status and a problem document."""


class PlatformTwin:
    """State of one run. Tests read it under ``lock`` or when shipping is over."""

    def __init__(self, run_id: str = "run-1") -> None:
        self.path = f"/api/v1/runs/{run_id}/events"
        self.lock = threading.Condition()
        self.events: list[Event] = []
        self.trajectories: dict[tuple[str, int], ShippedTrajectory] = {}
        self.there_with: dict[str, int] = {}
        self.cursor: dict[int, int] = {}
        self.waiting: list[Command] = []
        self.batches: list[Batch] = []
        self.requests = 0
        self.doubled_events = 0
        self.superseded = False
        self.fault: Fault = lambda number, batch: None
        self.lateness = 0.0
        self.leaving = threading.Event()  # nobody waits for a late answer when the test is over
        self.url = ""

    def forget(self, cursor: dict[int, int]) -> None:
        """As a database that was restored from a backup."""
        with self.lock:
            self.cursor = dict(cursor)
            self.events = [event for event in self.events if event.seq <= cursor.get(event.attempt, 0)]

    def command(self, *commands: Command) -> None:
        with self.lock:
            self.waiting += commands

    def until(self, true: Callable[["PlatformTwin"], object], seconds: float = 10.0) -> None:
        """Wait for a request after which it is true."""
        with self.lock:
            if not self.lock.wait_for(lambda: true(self), seconds):
                raise AssertionError(f"did not happen within {seconds} s; cursor {self.cursor}")

    def take_in(self, batch: Batch) -> Answer | tuple[int, dict[str, Any]]:
        if self.superseded:
            return 409, {"code": "superseded", "detail": "launch 2 has taken over"}
        self.batches.append(batch)
        has = self.cursor.get(batch.attempt, 0)
        if batch.events and batch.events[0].seq > has + 1:
            return 409, {"code": "gap", "cursor": self.cursor}
        for trajectory in batch.trajectories:
            self.trajectories.setdefault((trajectory.file, trajectory.row), trajectory)
        for event in batch.events:
            if event.seq > has:
                self._fold(event)
            else:
                self.doubled_events += 1
        return self.answer()

    def _fold(self, event: Event) -> None:
        self.events.append(event)
        self.cursor[event.attempt] = event.seq
        match event.body:
            case CommandApplied() | CommandRejected() as body:
                self.waiting = [each for each in self.waiting if each.id != body.command.id]
            case StepFinished(trajectories=str(file)) | EvalFinished(trajectories=str(file)):
                self.there_with[file] = sum(name == file for name, _ in self.trajectories)

    def answer(self) -> Answer:
        return Answer(cursor=self.cursor, commands=tuple(self.waiting))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    twin: PlatformTwin

    def do_GET(self) -> None:
        self._serve(None)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["Content-Encoding"] == "zstd"
        self._serve(Batch.model_validate_json(zstandard.ZstdDecompressor().decompress(body)))

    def _serve(self, batch: Batch | None) -> None:
        twin = self.twin
        with twin.lock:
            twin.requests += 1
            twin.lock.notify_all()  # whoever waits gets the lock when this request is dealt with
            fault = twin.fault(twin.requests, batch)
            if fault == "drop":
                return self._hang_up()
            if isinstance(fault, tuple):
                return self._say(*fault)
            if self.path != twin.path or self.headers["Authorization"] != f"Bearer {TOKEN}":
                return self._say(401, {"code": "not_authenticated"})
            answer = twin.take_in(batch) if batch else twin.answer()
            if batch is None and twin.superseded:
                answer = 409, {"code": "superseded"}
        if fault == "lose":
            return self._hang_up()
        if fault == "late":
            twin.leaving.wait(twin.lateness)  # longer than the client waits
        if isinstance(answer, tuple):
            return self._say(*answer)
        return self._say(200, answer.model_dump(mode="json"))

    def _hang_up(self) -> None:
        self.close_connection = True

    def _say(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        for name, value in document.pop("headers", {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json" if status == 200 else "application/problem+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Quiet."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.connections: list[socket.socket] = []

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self.connections.append(connection)
        return connection, address

    def hang_up(self) -> None:
        """As when the process dies: connections that were kept alive end too."""
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is what some tests are about."""


@contextmanager
def serving(twin: PlatformTwin, port: int = 0) -> Iterator[str]:
    """Serve it at the URL that is given; can be repeated at the same port, as after a restart."""
    handler = type("Handler", (_Handler,), {"twin": twin})
    server = _Server(("127.0.0.1", port), handler)
    twin.leaving.clear()
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01), daemon=True)
    thread.start()
    twin.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield twin.url
    finally:
        twin.leaving.set()
        server.shutdown()
        server.server_close()
        server.hang_up()
        thread.join()
