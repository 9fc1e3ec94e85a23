"""The broker of a single process: a queue in memory, for local sandboxes and tests; nothing is kept."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from sandbox.broker.protocol import Ticket
from sandbox.contract import ExecRequest, ExecResult, SandboxUnavailable


class MemoryTicket:
    """A call with the future that its submitter waits for."""

    def __init__(self, request: ExecRequest) -> None:
        self.request = request
        self._loop = asyncio.get_running_loop()
        self._submitted = self._loop.time()
        self.answer: asyncio.Future[ExecResult] = self._loop.create_future()

    def waited_s(self) -> float:
        """See `Ticket`."""
        return self._loop.time() - self._submitted

    def when_abandoned(self, callback: Callable[[], object]) -> None:
        """See `Ticket`."""
        self.answer.add_done_callback(lambda _: callback())


class MemoryBroker:
    """See `Broker`. Belongs to one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[MemoryTicket] = deque()
        self._work = asyncio.Event()
        self._open: set[MemoryTicket] = set()
        self._closed = False

    async def submit(self, request: ExecRequest) -> ExecResult:
        """See `Broker.submit`."""
        if self._closed:
            raise SandboxUnavailable("the sandbox is closed")
        ticket = MemoryTicket(request)
        self._open.add(ticket)
        self._waiting.append(ticket)
        self._work.set()
        try:
            return await ticket.answer
        finally:
            self._open.discard(ticket)

    async def fetch(self, most: int) -> Sequence[Ticket]:
        """See `Broker.fetch`."""
        while True:
            taken: list[MemoryTicket] = []
            while self._waiting and len(taken) < most:
                ticket = self._waiting.popleft()
                if not ticket.answer.done():  # else its submitter was cancelled
                    taken.append(ticket)
            if taken:
                return taken
            self._work.clear()
            await self._work.wait()

    async def complete(self, ticket: Ticket, outcome: ExecResult | Exception) -> None:
        """See `Broker.complete`. An answer that nobody waits for is dropped."""
        assert isinstance(ticket, MemoryTicket)
        if ticket.answer.done():
            return
        if isinstance(outcome, Exception):
            ticket.answer.set_exception(outcome)
        else:
            ticket.answer.set_result(outcome)

    def close(self) -> None:
        """Refuse what waits and what comes: nobody would answer it any more."""
        self._closed = True
        for ticket in self._open:
            if not ticket.answer.done():
                ticket.answer.set_exception(SandboxUnavailable("the sandbox was closed before the call was answered"))
