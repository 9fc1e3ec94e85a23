"""The way in for Python callers: a whole sandbox in the caller's own process, or a node that runs in another one."""

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sandbox.backend.forkserver.supervisor import ForkserverBackend
from sandbox.backend.protocol import Backend
from sandbox.backend.subprocess_backend import SubprocessBackend
from sandbox.broker import Broker, MemoryBroker, Submitter
from sandbox.contract import ExecRequest, ExecResult, SandboxUnavailable
from sandbox.node import Node
from sandbox.remote import RemoteNode

PYTHON_VARIABLE = "STARLOOM_SANDBOX_PYTHON"
ALLOW_WEAK_VARIABLE = "STARLOOM_SANDBOX_ALLOW_WEAK"
_DEFAULT_PYTHON = Path(__file__).parents[1] / ".venv-sandbox/bin/python"
_log = logging.getLogger(__name__)


class SandboxClient:
    """An `Executor` on any broker. `node` is the node in this process, if there is one."""

    def __init__(self, broker: Submitter, node: Node | None = None) -> None:
        self._broker = broker
        self._node = node

    @property
    def node(self) -> Node:
        """The local node: `client.node.backend.describe()` tells the isolation. Raises `LookupError`."""
        if self._node is None:
            raise LookupError("this client's nodes run in other processes")
        return self._node

    async def execute(self, request: ExecRequest) -> ExecResult:
        """See `Executor`. Any number may run at once: what finds no free slot waits its turn."""
        return await self._broker.submit(request)


@asynccontextmanager
async def local_sandbox(*, slots: int | None = None, python: Path | None = None) -> AsyncIterator[SandboxClient]:
    """A sandbox for as long as the block lasts; on the way out everything it started is gone.

    slots: programs at once; default one per core, at least two. python: interpreter of the programs; default
    $STARLOOM_SANDBOX_PYTHON, else .venv-sandbox beside this package. Raises `SandboxUnavailable`.
    """
    interpreter = _interpreter(python)
    broker = MemoryBroker()
    node = await _started_node(broker, interpreter, slots or max(2, os.cpu_count() or 1))
    try:
        yield SandboxClient(broker, node)
    finally:
        broker.close()
        await node.close()


@asynccontextmanager
async def sandbox_at(url: str) -> AsyncIterator[SandboxClient]:
    """The node that `python -m sandbox serve --socket PATH` runs, as unix:PATH, for as long as the block lasts.

    Calls that a dying node loses raise `SandboxUnavailable`; later ones reach the next node at that place by
    themselves. Raises `SandboxUnavailable` if none answers within seconds, `ValueError` for another kind of URL.
    """
    node = RemoteNode(_socket_path(url))
    try:
        await node.connect()
        yield SandboxClient(node)
    finally:
        await node.close()


def _socket_path(url: str) -> Path:
    scheme, _, path = url.partition(":")
    if scheme != "unix" or not path.startswith("/"):
        raise ValueError(f"a sandbox's URL looks like unix:/path/to/node.sock, not like {url!r}")
    return Path(path)


def _interpreter(python: Path | None) -> Path:
    """Absolute, but with links kept: resolving them would leave the virtual environment."""
    named = python or Path(os.environ.get(PYTHON_VARIABLE) or _DEFAULT_PYTHON)
    path = Path(os.path.abspath(named))
    if not os.access(path, os.X_OK):
        raise SandboxUnavailable(
            f"there is no interpreter for programs at {path}: run `make setup`, or set {PYTHON_VARIABLE}"
        )
    return path


async def _started_node(broker: Broker, python: Path, slots: int) -> Node:
    node = Node(broker, ForkserverBackend(python, slots))
    try:
        await node.start()
    except SandboxUnavailable as error:
        if os.environ.get(ALLOW_WEAK_VARIABLE) != "1":
            raise SandboxUnavailable(
                f"this machine cannot isolate programs: {error}. "
                f"Set {ALLOW_WEAK_VARIABLE}=1 to run them WITHOUT isolation (see docs/sandbox.md)"
            ) from error
        _log.warning("running programs WITHOUT isolation, as %s=1 allows: %s", ALLOW_WEAK_VARIABLE, error)
        weak: Backend = SubprocessBackend(python, slots)
        node = Node(broker, weak)
        await node.start()
    return node
