"""The clients' side of a Valkey broker: sends calls in batches, waits for their answers, and survives losses.

An answer is believed only for a call that waits, so that a second one is dropped. After a connection was lost it asks
which of its calls the server knows, and submits again those that it does not: all of them after Valkey lost its data.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import count

from sandbox.broker.faults import not_started
from sandbox.broker.valkey.codec import decode_outcome, encode_request
from sandbox.broker.valkey.homes import Homes
from sandbox.broker.valkey.link import LOST, Link, Trouble
from sandbox.broker.valkey.settings import Settings
from sandbox.contract import ExecRequest, ExecResult, Priority, SandboxUnavailable, SessionLost

_BATCH_CALLS, _BATCH_BYTES = 500, 4 << 20
_PAUSE_S = 0.1


@dataclass(eq=False)
class _Call:
    name: str
    request: ExecRequest
    body: bytes
    submitted: float
    answer: asyncio.Future[ExecResult]
    sent: bool = False  # the server may know it
    queued: bool = False  # it said that it does

    def settle(self, outcome: ExecResult | Exception) -> None:
        if self.answer.done():
            return
        if isinstance(outcome, Exception):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)


class Calls:
    """The unanswered calls of the client `name`."""

    def __init__(self, link: Link, settings: Settings, name: str, missed: Callable[[], Awaitable[set[str]]]) -> None:
        self._link = link
        self._settings = settings
        self._name = name
        self._missed = missed
        self._loop = asyncio.get_running_loop()
        self._numbers = count()
        self.homes = Homes(link, settings)
        self._open: dict[str, _Call] = {}
        self._waiting = {priority: deque[_Call]() for priority in (Priority.INTERACTIVE, Priority.TRAINING)}
        self._full: set[Priority] = set()
        self._unwanted: set[str] = set()
        self._overdue: list[_Call] = []
        self._refused: Trouble | None = None  # with what we send, while the server may answer other questions
        self._work = asyncio.Event()
        self._line = asyncio.Lock()  # nothing is sent while we ask what the server knows

    async def submit(self, request: ExecRequest) -> ExecResult:
        """See `Submitter.submit`. Raises `RequestRefused` for a request that is too large."""
        body = encode_request(request)
        name = f"{self._name}-{next(self._numbers)}"
        call = _Call(name, request, body, self._loop.time(), self._loop.create_future())
        timer = self._loop.call_later(request.queue_s, self._give_up, call) if request.queue_s else None
        self._open[name] = call
        self._wait(call)
        try:
            return await call.answer
        except asyncio.CancelledError:
            self._withdraw(call)
            raise
        finally:
            del self._open[name]
            if timer:
                timer.cancel()

    def receive(self, kind: str, name: str, body: bytes) -> None:
        """An answer came, perhaps not the first one."""
        if call := self._open.get(name):
            busy = kind == "busy" and not body
            call.settle(not_started(call.request) if busy else decode_outcome(kind, body))

    async def send(self) -> None:
        """For ever: all that is to be told to the server. What comes while a batch travels is the next batch."""
        attempt = 0
        while True:
            await self._work.wait()
            self._work.clear()
            try:
                async with self._line:
                    await self._send_withdrawals()
                    for priority in self._waiting:
                        await self._send_calls(priority)
                attempt, self._refused = 0, None
            except LOST as error:
                self._refused = (self._refused or Trouble(self._loop.time(), error)).goes_on(error)
                await self._link.pause(attempt)
                attempt += 1
                await self.catch_up()

    async def catch_up(self) -> None:
        """After a loss: take the answers that came, submit again what the server does not know."""
        async with self._line:
            known = await self._link.until_done(self._missed)
            for call in self._open.values():
                if call.sent and call.name not in known and not call.answer.done():
                    self._wait(call)
            self._unwanted |= known - self._open.keys()
            self._work.set()

    async def check(self, known: int) -> None:
        """Once in a while: `known` is how many unanswered calls the server knows of us."""
        if known == 0 and any(call.sent and not call.answer.done() for call in self._open.values()):
            await self.catch_up()  # without a loss of the connection: it was emptied, or we slept for too long

    def lose_patience(self) -> None:
        """Give up the calls that waited too long for a Valkey that is gone, or does not take them."""
        for call in self._open.values():
            trouble = self._link.trouble or (None if call.queued else self._refused)
            if trouble and trouble.lasts_s(call.submitted) > self._settings.patience_s:
                call.settle(SandboxUnavailable(self._link.reason(trouble)))

    def settle_all(self, reason: str) -> None:
        """Answer everyone with `SandboxUnavailable`."""
        for call in self._open.values():
            call.settle(SandboxUnavailable(reason))

    async def end_session(self, session: str) -> None:
        """See `Submitter.end_session`."""
        self.homes.forget(session)
        await self._link.run("end_session", session, self._settings.absent_ms)

    async def close(self) -> None:
        """Answer everyone with `SandboxUnavailable`, withdraw what the server knows. Raises one of `LOST`."""
        for call in self._open.values():
            self._withdraw(call)
        self.settle_all("the sandbox was closed before the call was answered")
        await self._send_withdrawals()

    def _wait(self, call: _Call) -> None:
        call.sent = call.queued = False
        self._waiting[call.request.priority].append(call)
        self._work.set()

    def _withdraw(self, call: _Call) -> None:
        if call.sent:
            self._unwanted.add(call.name)
            self._work.set()

    def _give_up(self, call: _Call) -> None:
        """Its time to wait is over: that it was not started is certain here only before it was sent."""
        if call.sent:
            self._overdue.append(call)
            self._work.set()
        else:
            call.settle(not_started(call.request))

    async def _send_withdrawals(self) -> None:
        unwanted, overdue = self._unwanted.copy(), self._overdue.copy()
        if unwanted:
            await self._link.run("withdraw", self._name, self._settings.absent_ms, "0", *unwanted)
            self._unwanted -= unwanted
        if overdue:
            names = [call.name for call in overdue]
            withdrawn = await self._link.run("withdraw", self._name, self._settings.absent_ms, "1", *names)
            del self._overdue[: len(overdue)]
            for call, was_waiting in zip(overdue, withdrawn, strict=True):
                if was_waiting:
                    call.settle(not_started(call.request))

    async def _send_calls(self, priority: Priority) -> None:
        while priority not in self._full and (batch := self._next_batch(self._waiting[priority])):
            arguments: list[str | bytes | float] = []
            for call in batch:
                arguments += await self._fields(call)
            limits = (self._settings.absent_ms, self._settings.dead_ms, self._settings.session_ms)
            became = await self._link.run("submit", self._name, *limits, self._settings.most_queued, *arguments)
            refused = [
                call for call, (what, home) in zip(batch, became, strict=True) if not self._sent(call, what, home)
            ]
            if refused:
                self._wait_for_room(priority, refused)

    def _next_batch(self, waiting: deque[_Call]) -> list[_Call]:
        batch: list[_Call] = []
        size = 0
        while waiting and len(batch) < _BATCH_CALLS and size < _BATCH_BYTES:
            call = waiting.popleft()
            if not call.answer.done():
                call.sent = True
                batch.append(call)
                size += len(call.body)
        return batch

    async def _fields(self, call: _Call) -> Sequence[str | bytes | float]:
        request = call.request
        node, proposed = await self.homes.find(request)
        waited_ms = round(1000 * (self._loop.time() - call.submitted))
        queue_ms = round(1000 * request.queue_s) if request.queue_s else ""
        session = request.session or ""
        return call.name, request.priority, session, request.cell, node, proposed, waited_ms, queue_ms, call.body

    def _sent(self, call: _Call, fate: bytes, home: bytes) -> bool:
        """Take note of what became of a call; False if there was no room for it."""
        session = call.request.session or ""
        if fate == b"queued":
            call.queued = True
            if session:
                self.homes.remember(session, home.decode())
            return True
        call.sent = False
        if fate == b"full":
            return False
        if fate == b"nowhere":
            self._loop.call_later(_PAUSE_S, self._wait, call)
        else:
            self.homes.forget(session)
            call.settle(SessionLost(_LOST[fate].format(session)))
        return True

    def _wait_for_room(self, priority: Priority, refused: list[_Call]) -> None:
        def again() -> None:
            self._full.discard(priority)
            self._work.set()

        self._waiting[priority].extendleft(reversed(refused))
        self._full.add(priority)
        self._loop.call_later(_PAUSE_S, again)


_LOST = {
    b"lost": "session {} is lost: its node died or was stopped",
    b"unknown": "session {} is not known: it was never opened, it was ended, or it idled for too long",
}
