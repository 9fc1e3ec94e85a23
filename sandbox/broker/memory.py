"""The broker of a single process: queues in memory, for local sandboxes and tests; nothing is kept."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import chain

from sandbox.broker.faults import MOST_QUEUED, node_left, not_started
from sandbox.broker.protocol import Ticket
from sandbox.contract import ExecRequest, ExecResult, NodeStatus, Priority, SandboxStatus, SandboxUnavailable


class MemoryTicket:
    """A call with the future that its submitter waits for."""

    tries = 1  # this queue does not outlive its node

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

    def settle(self, outcome: ExecResult | Exception) -> None:
        """Answer it; an answer that nobody waits for is dropped."""
        if self.answer.done():
            return
        if isinstance(outcome, Exception):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)


class _Queue:
    """The calls of one priority: those that wait, cells of sessions before others, and room for a bounded number."""

    def __init__(self, most: int) -> None:
        self.room = asyncio.Semaphore(most)
        self.cells: OrderedDict[MemoryTicket, None] = OrderedDict()
        self.calls: OrderedDict[MemoryTicket, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.cells) + len(self.calls)

    def lane(self, request: ExecRequest) -> OrderedDict[MemoryTicket, None]:
        """Where such a call waits; the oldest comes first."""
        return self.calls if request.session is None else self.cells

    def pop(self) -> MemoryTicket:
        """The next one. Raises `KeyError` where none waits."""
        return (self.cells or self.calls).popitem(last=False)[0]


class MemoryBroker:
    """See `Broker`. Belongs to one event loop.

    most_queued: calls of one priority that may be unanswered at once; `submit` waits while there are as many.
    """

    def __init__(self, most_queued: int = MOST_QUEUED) -> None:
        self._queues = {priority: _Queue(most_queued) for priority in (Priority.INTERACTIVE, Priority.TRAINING)}
        self._work = asyncio.Event()
        self._open: set[MemoryTicket] = set()
        self._closed = False
        self._end_session: Callable[[str], object] | None = None
        self._announced: tuple[NodeStatus, float] | None = None

    async def submit(self, request: ExecRequest) -> ExecResult:
        """See `Submitter.submit`."""
        ticket = MemoryTicket(request)
        queue = self._queues[request.priority]
        if queue.room.locked():
            await self._room(ticket, queue)
        else:
            await queue.room.acquire()  # without any wait
        try:
            return await self._answer(ticket, queue)
        finally:
            queue.room.release()

    async def _room(self, ticket: MemoryTicket, queue: _Queue) -> None:
        try:
            async with asyncio.timeout(ticket.request.queue_s):
                await queue.room.acquire()
        except TimeoutError:
            raise not_started(ticket.request) from None

    async def _answer(self, ticket: MemoryTicket, queue: _Queue) -> ExecResult:
        if self._closed:
            raise SandboxUnavailable("the sandbox is closed")
        lane = queue.lane(ticket.request)
        lane[ticket] = None
        self._open.add(ticket)
        self._work.set()
        timer = self._start_timer(ticket, lane)
        try:
            return await ticket.answer
        finally:
            lane.pop(ticket, None)
            self._open.discard(ticket)
            if timer:
                timer.cancel()

    def _start_timer(self, ticket: MemoryTicket, lane: OrderedDict[MemoryTicket, None]) -> asyncio.TimerHandle | None:
        """Gives up a call that still waits when the time it has for that is over."""
        if ticket.request.queue_s is None:
            return None

        def over() -> None:
            if ticket in lane:
                ticket.settle(not_started(ticket.request))

        left_s = ticket.request.queue_s - ticket.waited_s()
        return asyncio.get_running_loop().call_later(left_s, over)

    async def end_session(self, session: str) -> None:
        """See `Submitter.end_session`."""
        if self._end_session:
            self._end_session(session)

    async def status(self) -> SandboxStatus:
        """See `Submitter.status`."""
        nodes: tuple[NodeStatus, ...] = ()
        if self._announced:
            status, at = self._announced
            nodes = (status.model_copy(update={"seen_s": asyncio.get_running_loop().time() - at}),)
        return SandboxStatus(
            nodes=nodes,
            queued_interactive=len(self._queues[Priority.INTERACTIVE]),
            queued_training=len(self._queues[Priority.TRAINING]),
        )

    async def join(self, name: str, end_session: Callable[[str], object]) -> None:
        """See `Broker.join`."""
        self._end_session = end_session

    async def announce(self, status: NodeStatus) -> None:
        """See `Broker.announce`."""
        self._announced = status, asyncio.get_running_loop().time()

    async def fetch(self, most: int) -> Sequence[Ticket]:
        """See `Broker.fetch`."""
        while not (taken := self._take(most)):
            self._work.clear()
            await self._work.wait()
        return taken

    def _take(self, most: int) -> list[MemoryTicket]:
        taken: list[MemoryTicket] = []
        for queue in self._queues.values():
            while queue and len(taken) < most:
                ticket = queue.pop()
                if not ticket.answer.done():  # else its submitter is about to hear that it waited for too long
                    taken.append(ticket)
        return taken

    async def complete(self, ticket: Ticket, outcome: ExecResult | Exception) -> None:
        """See `Broker.complete`."""
        assert isinstance(ticket, MemoryTicket)
        ticket.settle(outcome)

    async def give_back(self, tickets: Sequence[Ticket]) -> None:
        """See `Broker.give_back`. They go to the front of their queues."""
        for ticket in reversed(tickets):
            assert isinstance(ticket, MemoryTicket)
            if ticket.request.session is not None:
                ticket.settle(node_left(ticket.request.session))
            elif not ticket.answer.done():
                lane = self._queues[ticket.request.priority].lane(ticket.request)
                lane[ticket] = None
                lane.move_to_end(ticket, last=False)
                self._work.set()

    async def leave(self) -> None:
        """See `Broker.leave`. Calls without a session wait for the next node, or for `close`."""
        self._end_session = None
        self._announced = None
        for ticket in chain.from_iterable(queue.cells for queue in self._queues.values()):
            assert ticket.request.session is not None
            ticket.settle(node_left(ticket.request.session))

    async def close(self) -> None:
        """See `Broker.close`."""
        self._closed = True
        for ticket in self._open:
            ticket.settle(SandboxUnavailable("the sandbox was closed before the call was answered"))
