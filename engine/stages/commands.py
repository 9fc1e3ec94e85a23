"""Commands waiting for a run: how they are handed over, where they take hold, how each one is answered.

A command takes hold where everything finished is durable: at the end of a step, and before a stage (so before and
after an evaluation, which a pause never cuts short). ``obey`` is called there, and holds a paused run. A stop also
cancels at once what can be done again (an evaluation, preparations: ``Inbox.unless_stopped``). What still waits when
the run ends is answered by ``settle``, so that every command is told as applied or rejected exactly once. Leaves out
how commands arrive: signals (``engine.cli``), the platform (``engine.sink.shipper``).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from engine.contract.commands import Command, CommandKind
from engine.contract.events import CommandApplied, CommandRejected
from engine.sink.event_log import EventLog

T = TypeVar("T")


class StopRequested(Exception):
    """The run was asked to stop and everything finished so far is safe; the message says by whom."""


class Superseded(Exception):
    """This engine may not go on: another launch of the run has taken over, or the platform dismissed it."""


class Inbox:
    """Commands waiting for the run, oldest first. Belongs to the event loop that it is used in."""

    def __init__(self) -> None:
        self._waiting: deque[Command] = deque()
        self._known: set[str] = set()
        self._arrived = asyncio.Event()
        self._stop = asyncio.Event()
        self._superseded = asyncio.Event()
        self._why = ""

    def put(self, command: Command) -> None:
        """Take a command in; one with an id comes once, however often it is sent."""
        if command.id in self._known:
            return
        if command.id:
            self._known.add(command.id)
        self._waiting.append(command)
        self._arrived.set()
        if command.kind is CommandKind.stop:
            self._stop.set()

    def take(self) -> Command | None:
        """The oldest command, for the taker to answer; None if none waits."""
        return self._waiting.popleft() if self._waiting else None

    @property
    def waiting(self) -> bool:
        """Whether a command waits."""
        return bool(self._waiting)

    async def arrival(self) -> None:
        """Return when a command waits."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()

    def supersede(self, why: str) -> None:
        """Have the run end at once and without a last word."""
        self._why = why
        self._superseded.set()

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work that can be done again; a stop cancels it at once and raises ``StopRequested``.

        The commands stay in the inbox, for ``settle``.
        """
        return await _unless(self._stop, work, lambda: StopRequested(self._who_stops()))

    async def unless_superseded(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work until another launch takes over, which cancels it and raises ``Superseded``."""
        return await _unless(self._superseded, work, lambda: Superseded(self._why))

    def _who_stops(self) -> str:
        return ", ".join(command.by for command in self._waiting if command.kind is CommandKind.stop)


async def _unless(event: asyncio.Event, work: Coroutine[Any, Any, T], error: Callable[[], Exception]) -> T:
    """The result of ``work``, or ``error()`` raised once ``event`` is set. Leaves nothing running."""
    task, wait = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({task, wait}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise error()
    finally:
        for each in (task, wait):
            each.cancel()
        await asyncio.gather(task, wait, return_exceptions=True)


async def obey(inbox: Inbox, log: EventLog) -> None:
    """Do what the waiting commands ask; a paused run is held in here until it is resumed.

    Called where everything finished is durable. Raises ``StopRequested``.
    """
    paused = False
    while True:
        while (command := inbox.take()) is not None:
            paused = _answer(command, log, paused=paused)
        if not paused:
            return
        await inbox.arrival()


def _answer(command: Command, log: EventLog, *, paused: bool) -> bool:
    """Tell what becomes of a command; whether the run is paused after it."""
    match command.kind:
        case CommandKind.pause if paused:
            log.append(CommandRejected(command=command, reason="the run is paused already"))
        case CommandKind.resume if not paused:
            log.append(CommandRejected(command=command, reason="the run is not paused"))
        case CommandKind.stop:
            log.append(CommandApplied(command=command))
            raise StopRequested(command.by)
        case _:
            log.append(CommandApplied(command=command))
    return {CommandKind.pause: True, CommandKind.resume: False}.get(command.kind, paused)


def settle(inbox: Inbox, log: EventLog, ended: str) -> None:
    """Answer what still waits when the run has ``stopped``, ``finished`` or ``failed``."""
    while (command := inbox.take()) is not None:
        if command.kind is CommandKind.stop and ended == "stopped":
            log.append(CommandApplied(command=command))
        else:
            log.append(CommandRejected(command=command, reason=f"the run has {ended}"))
