"""The desk behind a process' doors: takes their calls to the broker, and ends those that run when the process stops.

Whichever door a call came through, it is answered: with what came of it, or with the reason why not. Leaves out
protocols and who may come in, which are the doors'.
"""

import asyncio

from sandbox.broker import Submitter
from sandbox.contract import ExecRequest, ExecResult, SandboxStatus, SandboxUnavailable, SessionLost


class Desk:
    """A `Submitter` that can be closed while calls run. Belongs to one event loop."""

    def __init__(self, submitter: Submitter) -> None:
        self._submitter = submitter
        self._running: set[asyncio.Timeout] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.closing = False

    async def submit(self, request: ExecRequest) -> ExecResult:
        """See `Submitter`. A cell that the closing desk ends raises `SessionLost`: its session ended with it."""
        if self.closing:
            raise SandboxUnavailable("the sandbox is being stopped: submit the call again when the next one is there")
        try:
            async with asyncio.timeout(None) as scope:
                self._enter(scope)
                return await self._submitter.submit(request)
        except TimeoutError:
            if not scope.expired():
                raise
            raise _stopped(request) from None
        finally:
            self._leave(scope)

    async def end_session(self, session: str) -> None:
        """See `Submitter`."""
        await self._submitter.end_session(session)

    async def status(self) -> SandboxStatus:
        """See `Submitter`."""
        return await self._submitter.status()

    async def close(self, drain_s: float) -> None:
        """Refuse what comes, let what runs end for `drain_s` seconds, end the rest."""
        self.closing = True
        try:
            await asyncio.wait_for(self._idle.wait(), drain_s)
        except TimeoutError:
            for scope in self._running:
                scope.reschedule(0)  # long ago
            await self._idle.wait()

    def _enter(self, scope: asyncio.Timeout) -> None:
        self._running.add(scope)
        self._idle.clear()

    def _leave(self, scope: asyncio.Timeout) -> None:
        self._running.discard(scope)
        if not self._running:
            self._idle.set()


def _stopped(request: ExecRequest) -> SandboxUnavailable:
    stopped = "the sandbox was stopped before the call ended"
    if request.session is None:
        return SandboxUnavailable(f"{stopped}; it may be submitted again")
    return SessionLost(f"{stopped}, and session {request.session} with it")
