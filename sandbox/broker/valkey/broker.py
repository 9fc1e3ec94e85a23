"""`ValkeyBroker`: the clients' side and, once it was told to join, the nodes' side, over one link, with one inbox."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TypeVar

from redis.exceptions import ConnectionError as Broken

from sandbox.broker.protocol import Ticket
from sandbox.broker.valkey.calls import Calls
from sandbox.broker.valkey.inbox import Inbox
from sandbox.broker.valkey.link import LOST, MOST_CONNECTIONS, Link
from sandbox.broker.valkey.settings import Settings
from sandbox.broker.valkey.work import Work
from sandbox.contract import ExecRequest, ExecResult, NodeStatus, SandboxStatus, SandboxUnavailable

T = TypeVar("T")
_FAREWELL_S = 2.0
_log = logging.getLogger(__name__)


class ValkeyBroker:
    """See `Broker`. Belongs to one event loop, in which it has to be made; opens connections when it needs them.

    url: valkey://, valkeys:// (TLS), valkey+unix:// and the same with redis. namespace: what its keys begin with;
    clusters of different namespaces do not see each other. Raises `ValueError` for a URL that is none.
    """

    def __init__(self, url: str, namespace: str = "starloom:sandbox", settings: Settings | None = None) -> None:
        self._settings = settings or Settings()
        self._link = Link(url, namespace)
        self._name = secrets.token_hex(8)
        self._inbox = Inbox(self._link, self._settings, self._name, self._receive)
        self._calls = Calls(self._link, self._settings, self._name, self._inbox.missed)
        self._work = Work(self._link, self._settings, self._name)
        self._end_session: Callable[[str], object] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False
        self._bug: BaseException | None = None

    async def submit(self, request: ExecRequest) -> ExecResult:
        """See `Submitter.submit`. Raises `RequestRefused` for a request that is too large."""
        self._begin()
        return await self._calls.submit(request)

    async def end_session(self, session: str) -> None:
        """See `Submitter.end_session`. Where Valkey is gone the session idles until its node has enough of it."""
        try:
            await self._calls.end_session(session)
        except LOST as error:
            _log.warning("session %s was left to itself: %s", session, error)

    async def status(self) -> SandboxStatus:
        """See `Submitter.status`. Does not wait for a Valkey that is gone."""
        return await self._once(self._calls.homes.status)

    async def join(self, name: str, end_session: Callable[[str], object]) -> None:
        """See `Broker.join`. Raises `SandboxUnavailable` where no Valkey comes within `patience_s`."""
        await self._reach()
        self._end_session = end_session
        self._begin()

    async def announce(self, status: NodeStatus) -> None:
        """See `Broker.announce`. Raises `SandboxUnavailable`."""
        await self._once(partial(self._work.announce, status))

    async def fetch(self, most: int) -> Sequence[Ticket]:
        """See `Broker.fetch`. Waits for a Valkey that is gone, as long as it takes."""
        return await self._work.fetch(most)

    async def complete(self, ticket: Ticket, outcome: ExecResult | Exception) -> None:
        """See `Broker.complete`. Waits for a Valkey that is gone, as long as it takes."""
        await self._work.complete(ticket, outcome)

    async def give_back(self, tickets: Sequence[Ticket]) -> None:
        """See `Broker.give_back`. Raises `SandboxUnavailable`."""
        await self._once(partial(self._work.give_back, tickets))

    async def leave(self) -> None:
        """See `Broker.leave`. Raises `SandboxUnavailable`; the node is taken for dead before long anyway."""
        self._end_session = None
        await self._once(self._work.leave)
        await self._once(self._present)

    async def close(self) -> None:
        """See `Broker.close`."""
        if self._closed:
            return
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._work.close()
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await self._calls.close()
        except (*LOST, TimeoutError) as error:
            _log.warning("could not withdraw calls, which are forgotten before long: %s", error)
        await self._link.close()

    def _begin(self) -> None:
        if self._closed:
            raise SandboxUnavailable("the sandbox is closed")
        if self._bug:
            raise SandboxUnavailable(f"the sandbox failed: {self._bug!r}")
        if not self._tasks:
            rounds = (self._inbox.listen(self._calls.catch_up), self._calls.send(), self._look_around())
            self._tasks = [asyncio.create_task(each) for each in rounds]
            for task in self._tasks:
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A round that ends by itself ends by a bug of ours: nobody may wait for it in vain."""
        if not task.cancelled():
            self._bug = task.exception()
            _log.critical("the broker failed", exc_info=self._bug)
            self._calls.settle_all(f"the sandbox failed: {self._bug!r}")

    def _receive(self, kind: str, call: str, body: bytes) -> None:
        if kind == "cancel":
            self._work.cancel(call)
        elif kind == "end":
            if self._end_session:
                self._end_session(body.decode())
        else:
            self._calls.receive(kind, call, body)

    async def _look_around(self) -> None:
        """For ever: all that is due after some time, for us and for those who died."""
        while True:
            await asyncio.sleep(self._settings.round_s)
            self._calls.lose_patience()
            try:
                await self._work.renew()
                known = await self._present()
            except LOST:
                continue  # the link has said so, and those who wait for it try again
            await self._calls.check(known)

    async def _reach(self) -> None:
        since = asyncio.get_running_loop().time()
        for attempt in count():
            try:
                await self._inbox.missed()
                return
            except LOST as error:
                trouble = self._link.trouble
                if trouble and trouble.lasts_s(since) > self._settings.patience_s:
                    raise SandboxUnavailable(self._link.reason(trouble)) from error
                await self._link.pause(attempt)

    async def _present(self) -> int:
        settings = self._settings
        known = await self._link.run(
            "present", self._name, settings.absent_ms, self._inbox.last, settings.dead_ms, settings.lease_ms
        )
        return int(known)

    async def _once(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Does not wait for a server that is gone. One that was restarted shows by broken connections at first."""
        for _ in range(MOST_CONNECTIONS):
            with suppress(Broken):
                return await ask()
        try:
            return await ask()
        except LOST as error:
            raise SandboxUnavailable(self._link.reason(self._link.trouble)) from error
