"""A node: takes as many calls from a broker as it has free slots, runs them on its backend, tells how it is.

It never judges a program. A call that was lost through our fault is run once more, which is safe because calls keep
no state; lost again, its submitter is told so. Leaves out how calls travel and who notices that a node died: brokers.
"""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from sandbox.backend.protocol import Backend, CallLost
from sandbox.broker.protocol import Broker, Ticket
from sandbox.contract import ExecRequest, ExecResult, NodeStatus, RequestRefused, SandboxUnavailable

ANNOUNCE_S = 1.0
_DELIVER_S = 5.0
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)
_log = logging.getLogger(__name__)


class Node:
    """One machine's share of the work, from `start` to `close`.

    name: unique in its cluster; by default host, process id and a random part.
    announce_s: how often it tells how it is.
    """

    def __init__(
        self, broker: Broker, backend: Backend, name: str | None = None, announce_s: float = ANNOUNCE_S
    ) -> None:
        self.backend = backend
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        self._broker = broker
        self._announce_s = announce_s
        self._running: dict[Ticket, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # also those whose program has ended and whose answer travels
        self._ending: set[asyncio.Task[None]] = set()
        self._slot_free = asyncio.Event()
        self._slot_free.set()
        self._pulling: asyncio.Task[None] | None = None
        self._answered = 0
        self._draining = False

    async def start(self) -> None:
        """Start the backend, join the broker, begin to take calls. Raises `SandboxUnavailable`."""
        self._started = asyncio.get_running_loop().time()
        try:
            await self.backend.start()
            await self._broker.join(self.name, self._end_session)
            await self._broker.announce(self.status())
        except BaseException:
            await self.backend.close()
            raise
        self._pulling = asyncio.create_task(self._pull())
        self._pulling.add_done_callback(_log_bug)
        self._announcing = asyncio.create_task(self._announce(self._pulling))

    def status(self) -> NodeStatus:
        """How it is now."""
        return NodeStatus(
            name=self.name,
            host=socket.gethostname(),
            tier=self.backend.tier,
            isolation=self.backend.describe(),
            slots=self.backend.slots,
            busy=len(self._running),
            sessions=self.backend.sessions,
            answered=self._answered,
            draining=self._draining,
            uptime_s=asyncio.get_running_loop().time() - self._started,
            load_1m=os.getloadavg()[0],
            memory_mb=round(int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_MB),
        )

    async def drain(self, seconds: float) -> None:
        """Take nothing new, let calls end for `seconds`, give the rest back and leave. The backend stays open."""
        if self._pulling is None or self._draining:
            return
        self._draining = True
        await _stop(self._pulling)
        with _told_or_logged("that it is draining"):
            await self._broker.announce(self.status())
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        rest = [*self._running]
        await _stop(*self._running.values())
        with _told_or_logged("what it gives back"):
            await self._broker.give_back(rest)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_DELIVER_S)
        await _stop(*self._tasks, self._announcing)
        with _told_or_logged("that it leaves"):
            await self._broker.leave()

    async def close(self) -> None:
        """Stop and give back what runs, leave, and close the backend. May be called twice."""
        await self.drain(0)
        await self.backend.close()

    async def _pull(self) -> None:
        while True:
            await self._slot_free.wait()
            for ticket in await self._broker.fetch(self.backend.slots - len(self._running)):
                self._begin(ticket)

    def _begin(self, ticket: Ticket) -> None:
        task = self._running[ticket] = asyncio.create_task(self._serve(ticket))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        ticket.when_abandoned(partial(self._abandon, ticket))
        if len(self._running) >= self.backend.slots:
            self._slot_free.clear()

    def _abandon(self, ticket: Ticket) -> None:
        if task := self._running.get(ticket):
            task.cancel()

    async def _serve(self, ticket: Ticket) -> None:
        """Its slot is free when the program has ended; bringing the answer home may take longer."""
        waited_s = ticket.waited_s()
        try:
            outcome = await self._outcome(ticket.request)
        finally:
            del self._running[ticket]
            self._slot_free.set()
        if isinstance(outcome, ExecResult):
            queued_s = waited_s + outcome.queued_s
            outcome = outcome.model_copy(update={"queued_s": queued_s, "node": self.name})
        self._answered += 1
        await self._broker.complete(ticket, outcome)

    async def _outcome(self, request: ExecRequest) -> ExecResult | Exception:
        try:
            return await self._run(request)
        except (SandboxUnavailable, RequestRefused) as error:
            return error
        except Exception as error:  # a bug of ours: tell the submitter, and go on serving the others
            _log.exception("a call failed")
            return SandboxUnavailable(f"the sandbox failed: {error!r}")

    async def _run(self, request: ExecRequest) -> ExecResult:
        try:
            return await self.backend.run(request)
        except CallLost:
            return await self.backend.run(request)

    def _end_session(self, session: str) -> None:
        task = asyncio.create_task(self.backend.end_session(session))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _announce(self, pulling: asyncio.Task[None]) -> None:
        """As long as it takes calls or drains: a node that can do neither is better taken for dead."""
        while self._draining or not pulling.done():
            await asyncio.sleep(self._announce_s)
            with _told_or_logged("how it is"):
                await self._broker.announce(self.status())


@contextmanager
def _told_or_logged(what: str) -> Iterator[None]:
    """A broker that is not there now is no reason to stop: the others will take the node for dead meanwhile."""
    try:
        yield
    except SandboxUnavailable as error:
        _log.warning("a node could not tell %s: %s", what, error)


def _log_bug(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        _log.critical("a node takes no more calls", exc_info=task.exception())


async def _stop(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
