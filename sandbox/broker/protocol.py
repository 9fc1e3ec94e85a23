"""What clients and nodes may expect of a broker. Stateless calls are given out at least once: twice is legal.

Results come exactly once: however often a call was given out, its submitter gets one answer.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from sandbox.contract import ExecRequest, ExecResult, NodeStatus, SandboxStatus


class Ticket(Protocol):
    """One call on its way to a node."""

    @property
    def request(self) -> ExecRequest:
        """The call."""
        ...

    @property
    def tries(self) -> int:
        """Times it was given to a node, this one included: above 1 after a node died with it."""
        ...

    def waited_s(self) -> float:
        """Seconds since it was submitted."""
        ...

    def when_abandoned(self, callback: Callable[[], object]) -> None:
        """Have `callback` called if nobody wants the result any more, or if it already came."""
        ...


class Submitter(Protocol):
    """The clients' side of a broker, all that a client needs: a whole broker, or the far end of a socket."""

    async def submit(self, request: ExecRequest) -> ExecResult:
        """Queue a call, wait for its result. Raises `SandboxUnavailable`; cancelling withdraws the call."""
        ...

    async def end_session(self, session: str) -> None:
        """Let a session's state go. An unknown or lost session is no error; never waits for a node."""
        ...

    async def status(self) -> SandboxStatus:
        """The queue and the living nodes. Raises `SandboxUnavailable`."""
        ...


class Broker(Submitter, Protocol):
    """Takes calls from clients, gives them to nodes, brings the results back.

    One `Broker` object serves one node at most, the one that it was told of by `join`.
    """

    async def join(self, name: str, end_session: Callable[[str], object]) -> None:
        """From now on this process is the node `name`; `end_session` is called for sessions to let go."""
        ...

    async def announce(self, status: NodeStatus) -> None:
        """Tell everyone how this node is; a node that has not done so for seconds counts as dead."""
        ...

    async def fetch(self, most: int) -> Sequence[Ticket]:
        """Wait for work; return up to `most` waiting calls, at least one. Interactive calls come before training calls;
        of either, cells of this node's sessions come before other calls, each oldest first.
        """
        ...

    async def complete(self, ticket: Ticket, outcome: ExecResult | Exception) -> None:
        """Answer a fetched call, with an exception if we failed."""
        ...

    async def give_back(self, tickets: Sequence[Ticket]) -> None:
        """Put fetched calls back for other nodes: this one is leaving. Cells of sessions become `SessionLost`."""
        ...

    async def leave(self) -> None:
        """The node is gone: no call will be given to it, its sessions count as lost."""
        ...

    async def close(self) -> None:
        """Refuse what waits and what comes with `SandboxUnavailable`; close connections. May be called twice."""
        ...
