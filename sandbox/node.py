"""A node: takes as many calls from a broker as it has free slots and runs them on its backend.

It never judges a program. A call that was lost through our fault is run once more, which is safe because
calls keep no state; lost again, its submitter is told so.
"""

import asyncio

from sandbox.backend.protocol import Backend, CallLost
from sandbox.broker.protocol import Broker, Ticket
from sandbox.contract import ExecRequest, ExecResult, SandboxUnavailable


class Node:
    """One machine's share of the work, from `start` to `close`."""

    def __init__(self, broker: Broker, backend: Backend) -> None:
        self.backend = backend
        self._broker = broker
        self._serving: set[asyncio.Task[None]] = set()
        self._pulling: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the backend and begin to take calls. Raises `SandboxUnavailable`."""
        await self.backend.start()
        self._pulling = asyncio.create_task(self._pull())

    async def close(self) -> None:
        """Take no more calls, stop those that run, and close the backend."""
        tasks = [*self._serving, *([self._pulling] if self._pulling else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.backend.close()

    async def _pull(self) -> None:
        while True:
            free = self.backend.slots - len(self._serving)
            if not free:
                await asyncio.wait(self._serving, return_when=asyncio.FIRST_COMPLETED)
                continue
            for ticket in await self._broker.fetch(free):
                task = asyncio.create_task(self._serve(ticket))
                self._serving.add(task)
                task.add_done_callback(self._serving.discard)
                ticket.when_abandoned(task.cancel)

    async def _serve(self, ticket: Ticket) -> None:
        queued_s = ticket.waited_s()
        try:
            result = await self._run(ticket.request)
        except SandboxUnavailable as error:
            await self._broker.complete(ticket, error)
        except Exception as error:  # a bug of ours: tell the submitter, and go on serving the others
            await self._broker.complete(ticket, SandboxUnavailable(f"the sandbox failed: {error!r}"))
        else:
            queued_s += result.queued_s
            await self._broker.complete(ticket, result.model_copy(update={"queued_s": queued_s}))

    async def _run(self, request: ExecRequest) -> ExecResult:
        try:
            return await self.backend.run(request)
        except CallLost:
            return await self.backend.run(request)
