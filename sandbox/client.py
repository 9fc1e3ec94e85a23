"""The way in for Python callers: a whole sandbox in the caller's own process, or one that runs somewhere else."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sandbox.broker import MemoryBroker, Submitter
from sandbox.contract import ExecRequest, ExecResult, Limits, Priority, SandboxStatus, Tier
from sandbox.node import Node
from sandbox.places import connected
from sandbox.session import Session
from sandbox.starting import started_node


class SandboxClient:
    """An `Executor` on any broker. `node` is the node in this process, if there is one."""

    def __init__(self, submitter: Submitter, node: Node | None = None) -> None:
        self.submitter = submitter
        self._node = node

    @property
    def node(self) -> Node:
        """The local node: `client.node.backend.describe()` tells the isolation. Raises `LookupError`."""
        if self._node is None:
            raise LookupError("this client's nodes run in other processes")
        return self._node

    async def execute(self, request: ExecRequest) -> ExecResult:
        """See `Executor`. Any number may run at once: what finds no free slot waits its turn."""
        return await self.submitter.submit(request)

    def session(self, *, limits: Limits | None = None, priority: Priority = Priority.TRAINING) -> Session:
        """A new session: `async with client.session() as session: await session.execute("x = 1")`.

        limits: of its cells, where they bring none of their own; processes, scratch_mb and memory_mb hold for all.
        """
        return Session(self.submitter, limits or Limits(), priority)

    async def end_session(self, session: str) -> None:
        """Let go of a session by its name, for callers that number cells themselves; an unknown one is no error."""
        await self.submitter.end_session(session)

    async def status(self) -> SandboxStatus:
        """The queue and the living nodes. Raises `SandboxUnavailable`."""
        return await self.submitter.status()


@asynccontextmanager
async def local_sandbox(
    *, slots: int | None = None, python: Path | None = None, tier: Tier | None = None
) -> AsyncIterator[SandboxClient]:
    """A sandbox for as long as the block lasts; on the way out everything it started is gone.

    slots: programs at once; default one per core, at least two. python: interpreter of the programs; default
    $STARLOOM_SANDBOX_PYTHON, else .venv-sandbox beside this package. tier: isolation that is asked for; default the
    strongest that this machine allows. Raises `SandboxUnavailable`.
    """
    broker = MemoryBroker()
    node = await started_node(broker, slots=slots, python=python, tier=tier)
    try:
        yield SandboxClient(broker, node)
    finally:
        await node.close()
        await broker.close()


@asynccontextmanager
async def sandbox_at(url: str, token: str | None = None) -> AsyncIterator[SandboxClient]:
    """A sandbox that runs elsewhere, for as long as the block lasts; `sandbox.places` lists the URLs.

    token: for http and https. Calls that a dying node loses raise `SandboxUnavailable`, cells `SessionLost`; later
    calls reach the next node at that place by themselves. Raises `SandboxUnavailable` if none answers within seconds,
    `RequestRefused` for a token that is not taken, `ValueError` for another kind of URL.
    """
    async with connected(url, token) as submitter:
        yield SandboxClient(submitter)
