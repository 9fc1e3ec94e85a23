"""The nodes' side of a Valkey broker: takes calls and says again and again that they run, until they are answered.

What a node took and says no more is given to another one; so are calls whose way here was cut. Leaves out the clients.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf
from typing import Any, NamedTuple

from sandbox.broker.faults import node_left
from sandbox.broker.protocol import Ticket
from sandbox.broker.valkey.codec import decode_request, encode_outcome, encode_text
from sandbox.broker.valkey.link import BLOCK_MS, LOST, Link
from sandbox.broker.valkey.settings import Settings
from sandbox.contract import ExecRequest, ExecResult, NodeStatus, Priority, RequestRefused

_GROUP = "nodes"


class _Place(NamedTuple):
    """Where a call comes from and where it waits."""

    client: str
    call: str
    queue: str
    entry: str


class ValkeyTicket:
    """A call that this node holds."""

    def __init__(self, place: _Place, request: ExecRequest, tries: int, waited_ms: int) -> None:
        self.place = place
        self.request = request
        self.tries = tries
        self._loop = asyncio.get_running_loop()
        self._submitted = self._loop.time() - waited_ms / 1000
        self._callbacks: list[Callable[[], object]] = []

    def waited_s(self) -> float:
        """See `Ticket`."""
        return self._loop.time() - self._submitted

    def when_abandoned(self, callback: Callable[[], object]) -> None:
        """See `Ticket`."""
        self._callbacks.append(callback)

    def abandon(self) -> None:
        """Nobody wants it any more."""
        for callback in self._callbacks:
            callback()


class Work:
    """The calls that the node `node` holds. `node` is its name within Valkey, and that of its inbox."""

    def __init__(self, link: Link, settings: Settings, node: str) -> None:
        self._link = link
        self._settings = settings
        self._node = node
        self._loop = asyncio.get_running_loop()
        self._queues = [
            link.key(queue)
            for priority in (Priority.INTERACTIVE, Priority.TRAINING)
            for queue in (f"node:{node}:{priority}", f"queue:{priority}")
        ]
        self._held: dict[_Place, ValkeyTicket] = {}
        self._ahead: deque[ValkeyTicket] = deque()
        self._looked = -inf
        self._answers: list[tuple[_Place, ExecResult | Exception, asyncio.Future[None]]] = []
        self._delivering: asyncio.Task[None] | None = None

    async def announce(self, status: NodeStatus) -> None:
        """See `Broker.announce`, but raises one of `LOST`."""
        await self._link.run("announce", self._node, status.model_dump_json())

    async def fetch(self, most: int) -> Sequence[Ticket]:
        """See `Broker.fetch`."""
        attempt = 0
        while not self._ahead:
            try:
                self._ahead.extend(await self._take(most) or await self._wait())
                attempt = 0
            except LOST:
                await self._link.pause(attempt)
                attempt += 1
        return [self._ahead.popleft() for _ in range(min(most, len(self._ahead)))]

    async def complete(self, ticket: Ticket, outcome: ExecResult | Exception) -> None:
        """See `Broker.complete`. Waits for a Valkey that is gone: programs that ran meanwhile did not run in vain."""
        assert isinstance(ticket, ValkeyTicket)
        await self._answer(ticket.place, outcome)

    async def give_back(self, tickets: Sequence[Ticket]) -> None:
        """See `Broker.give_back`, but raises one of `LOST`."""
        arguments: list[str | bytes | float] = []
        for ticket in tickets:
            assert isinstance(ticket, ValkeyTicket)
            self._held.pop(ticket.place, None)
            lost = encode_text(str(node_left(ticket.request.session))) if ticket.request.session else ""
            arguments += (*ticket.place, ticket.tries, lost)
        settings = self._settings
        await self._link.run("give_back", self._node, settings.absent_ms, settings.lease_ms, *arguments)

    async def leave(self) -> None:
        """See `Broker.leave`, but raises one of `LOST`."""
        await self.give_back(self._ahead)
        self._ahead.clear()
        await self._link.run("leave", self._node, self._settings.lease_ms)

    async def renew(self) -> None:
        """Say that the calls still run; stop those that nobody wants. Raises one of `LOST`."""
        if held := [*self._held]:
            names = (name for place in held for name in place)
            unwanted = await self._link.run("renew", self._node, self._settings.dead_ms, *names)
            for at in unwanted:
                self._abandon(held[at])

    def cancel(self, call: str) -> None:
        """The client withdrew it."""
        for place in [place for place in self._held if place.call == call]:
            self._abandon(place)

    def close(self) -> None:
        """Bring no more answers home."""
        if self._delivering:
            self._delivering.cancel()

    def _abandon(self, place: _Place) -> None:
        if ticket := self._held.pop(place, None):
            ticket.abandon()

    async def _take(self, most: int) -> list[ValkeyTicket]:
        """What waits now."""
        look = self._loop.time() - self._looked > self._settings.round_s
        settings = self._settings
        rules = (settings.lease_ms, int(look), settings.most_tries, settings.absent_ms)
        taken = await self._link.run("take", self._node, most, *rules, self._poison(), *self._queues)
        if look:
            self._looked = self._loop.time()
        return self._hold(taken)

    async def _wait(self) -> list[ValkeyTicket]:
        """The next call to come; seldom those of several queues at once, of which some then wait in `_ahead`."""
        block_ms = min(BLOCK_MS, round(1000 * self._settings.round_s))
        found = await self._link.read(
            *("XREADGROUP", "GROUP", _GROUP, self._node, "COUNT", 1, "BLOCK", block_ms, "STREAMS"),
            *(*self._queues, *(">" for _ in self._queues)),
        )
        return self._hold(_new(queue, *entry) for queue, entries in found or () for entry in entries)

    def _hold(self, taken: Iterable[Sequence[Any]]) -> list[ValkeyTicket]:
        tickets = []
        for queue, entry, tries, waited_ms, client, call, request in taken:
            place = _Place(client.decode(), call.decode(), queue.decode(), entry.decode())
            try:
                ticket = ValkeyTicket(place, decode_request(request), int(tries), int(waited_ms))
            except RequestRefused as error:
                self._answer(place, error)
                continue
            if self._held.setdefault(place, ticket) is ticket:  # else it runs here already
                tickets.append(ticket)
        return tickets

    def _answer(self, place: _Place, outcome: ExecResult | Exception) -> asyncio.Future[None]:
        """Bring an answer home with those that come at the same time; done when it is there."""
        delivered: asyncio.Future[None] = self._loop.create_future()
        self._answers.append((place, outcome, delivered))
        if self._delivering is None or self._delivering.done():
            self._delivering = asyncio.create_task(self._deliver())
        return delivered

    async def _deliver(self) -> None:
        while batch := self._answers:
            self._answers = []
            arguments: list[str | bytes | float] = []
            for place, outcome, _ in batch:
                arguments += (*place, *encode_outcome(outcome))
            await self._link.until_done(partial(self._link.run, "complete", self._settings.absent_ms, *arguments))
            for place, _, delivered in batch:
                self._held.pop(place, None)
                if not delivered.done():
                    delivered.set_result(None)

    def _poison(self) -> bytes:
        tries = self._settings.most_tries
        return encode_text(f"{tries} nodes were lost while they ran this call: it is not given to another one")


def _new(queue: bytes, entry: bytes, flat: Sequence[bytes]) -> tuple[bytes | int, ...]:
    """An entry as `take.lua` would return it."""
    call = dict(zip(flat[::2], flat[1::2], strict=True))
    return queue, entry, 1, int(call[b"waited_ms"]), call[b"client"], call[b"call"], call[b"request"]
