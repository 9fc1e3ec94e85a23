"""What clients and nodes may expect of a broker. Tickets come at least once: running one twice is legal."""

from collections.abc import Callable, Sequence
from typing import Protocol

from sandbox.contract import ExecRequest, ExecResult


class Ticket(Protocol):
    """One call on its way to a node."""

    @property
    def request(self) -> ExecRequest:
        """The call."""
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


class Broker(Submitter, Protocol):
    """Takes calls from clients, gives them to nodes, brings the results back."""

    async def fetch(self, most: int) -> Sequence[Ticket]:
        """Wait for work; return up to `most` waiting calls, at least one, oldest first."""
        ...

    async def complete(self, ticket: Ticket, outcome: ExecResult | Exception) -> None:
        """Answer a fetched call, with an exception if we failed."""
        ...
