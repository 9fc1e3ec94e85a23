"""The zygotes of one preset: started when they are first needed, replaced when they die or wear out."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable

from sandbox.backend.forkserver.link import ZygoteLink
from sandbox.contract import SandboxUnavailable

Launch = Callable[[], Awaitable[ZygoteLink]]


class Zygotes:
    """`count` zygotes that take turns. `launch` starts one and returns when it is ready."""

    def __init__(self, launch: Launch, count: int, most_forks: int) -> None:
        self._places = [_Place(launch, most_forks) for _ in range(count)]
        self._turns = itertools.cycle(self._places)

    async def start(self) -> None:
        """Start all of them. Raises `SandboxUnavailable`."""
        await asyncio.gather(*(place.get() for place in self._places))

    def begin(self) -> None:
        """The same without waiting: what fails is tried again, and told, when it is needed."""
        for place in self._places:
            place.begin()

    def ready(self) -> ZygoteLink | None:
        """A living zygote without any wait, if there is one."""
        for _ in self._places:
            if link := next(self._turns).living():
                return link
        return None

    async def get(self) -> ZygoteLink:
        """A living zygote, started if need be. Raises `SandboxUnavailable`."""
        return self.ready() or await next(self._turns).get()

    async def close(self) -> None:
        """Start no more; those that start are given up. Ending the others is for who launched them."""
        tasks = [task for place in self._places for task in place.close()]
        await asyncio.gather(*tasks, return_exceptions=True)


class _Place:
    """One zygote after the other."""

    def __init__(self, launch: Launch, most_forks: int) -> None:
        self._launch, self._most_forks = launch, most_forks
        self._current: asyncio.Future[ZygoteLink] | None = None
        self._successor: asyncio.Future[ZygoteLink] | None = None
        self._closed = False

    def living(self) -> ZygoteLink | None:
        """Its zygote if that takes orders now. Begins to replace one that is worn."""
        if self._successor and self._successor.done():
            self._succeed(self._successor)
        link = _result(self._current)
        if link is None or not link.alive:
            return None
        if self._successor is None and link.worn(self._most_forks) and not self._closed:
            self._successor = asyncio.ensure_future(self._launch())
        return link

    def _succeed(self, successor: asyncio.Future[ZygoteLink]) -> None:
        self._successor = None
        if _result(successor) is None:
            return  # the worn one serves on, and the next call tries anew
        if worn := _result(self._current):
            worn.retire()
        self._current = successor

    def begin(self) -> asyncio.Future[ZygoteLink]:
        """See that a zygote lives or is being started."""
        if self._current is None or (self._current.done() and not self.living()):
            self._current = asyncio.ensure_future(self._launch())
            self._current.add_done_callback(_result)  # seen, also if nobody waits for it
        return self._current

    async def get(self) -> ZygoteLink:
        """Raises `SandboxUnavailable`."""
        while not (link := self.living()):
            if self._closed:
                raise SandboxUnavailable("the sandbox is closed")
            self._current = self.begin()
            await asyncio.wait([self._current])
            if self._current.cancelled():
                raise SandboxUnavailable("the sandbox is closed")
            self._current.result()
        return link

    def close(self) -> list[asyncio.Future[ZygoteLink]]:
        """The tasks that were given up."""
        self._closed = True
        tasks = [task for task in (self._current, self._successor) if task]
        for task in tasks:
            task.cancel()
        return tasks


def _result(task: asyncio.Future[ZygoteLink] | None) -> ZygoteLink | None:
    """What a task came to; None if it has not ended or has failed."""
    if task is None or not task.done() or task.cancelled() or task.exception():
        return None
    return task.result()
