"""A sandbox that may be gone for seconds (its node is restarted): calls are tried again before a rollout is lost.

A call may be tried again since running it twice is legal: programs that run alone keep no state, and a session's cell
is known by its number. So what a rollout has sampled so far stays of use. Three failures are told apart:

* A call that fails while others are answered is not waited for: then it is the call that the node cannot take, and its
  rollout is the pool's to retry (``pool.py``).
* A sandbox that is busy is no failure: a call waits for as long as others are answered.
* A session that is lost is lost: its rollout begins anew.

Opening one waits in the same way.
"""

import asyncio
import logging
import math
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

from engine.rollout.tools.base import Sandbox
from sandbox.client import local_sandbox, sandbox_at
from sandbox.contract import ExecRequest, ExecResult, SandboxBusy, SandboxStatus, SandboxUnavailable, SessionLost
from sandbox.places import TOKEN_VARIABLE

PATIENCE_S = 30.0
"""Seconds that an outage may last before rollouts are lost to it."""

TRIES = 3
"""Times that a call is tried while the sandbox answers others."""

AT_ONCE = -math.inf

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 2.0

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

Deadline = Callable[[SandboxUnavailable, int, float], float]
"""A failure, how many there were, the loop's time before the first try -> the loop's time at which it is given up."""


async def patiently(call: Callable[[], Awaitable[_T]], deadline: Deadline | None = None) -> _T:
    """What ``call`` gives, tried again while the sandbox is not there. Raises its last ``SandboxUnavailable``."""
    loop = asyncio.get_running_loop()
    began, failures, pause = loop.time(), 0, _FIRST_PAUSE_S
    while True:
        try:
            return await call()
        except SandboxUnavailable as error:
            failures += 1
            until = deadline(error, failures, began) if deadline else began + PATIENCE_S
            if loop.time() + pause > until:
                raise
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, _LONGEST_PAUSE_S)


class PatientExecutor:
    """A ``Sandbox`` around another one that is given ``patience_s`` seconds to come back."""

    def __init__(self, sandbox: Sandbox, patience_s: float = PATIENCE_S) -> None:
        self._sandbox = sandbox
        self._patience_s = patience_s
        self._answered_at = AT_ONCE
        self._away = False

    async def execute(self, request: ExecRequest) -> ExecResult:
        """See ``Sandbox``."""
        return await patiently(lambda: self._try(request), self._deadline)

    async def end_session(self, session: str) -> None:
        """See ``Sandbox``. Not tried again: a session that nobody ends is let go when it idles."""
        await self._sandbox.end_session(session)

    async def status(self) -> SandboxStatus:
        """See ``Sandbox``. Not tried again: it would be of another moment."""
        return await self._sandbox.status()

    async def _try(self, request: ExecRequest) -> ExecResult:
        try:
            result = await self._sandbox.execute(request)
        except (SandboxBusy, SessionLost):
            raise
        except SandboxUnavailable as error:
            if not self._away:
                _log.warning("the sandbox failed, calls are tried again for %g s: %s", self._patience_s, error)
            self._away = True
            raise
        self._away, self._answered_at = False, asyncio.get_running_loop().time()
        return result

    def _deadline(self, error: SandboxUnavailable, failures: int, began: float) -> float:
        if isinstance(error, SessionLost):
            return AT_ONCE
        if isinstance(error, SandboxBusy):
            return max(began, self._answered_at) + self._patience_s
        others_are_answered = self._answered_at > began
        return AT_ONCE if failures >= TRIES and others_are_answered else began + self._patience_s


@asynccontextmanager
async def open_sandbox(url: str | None, *, slots: int, patience_s: float = PATIENCE_S) -> AsyncIterator[Sandbox]:
    """The sandbox at a URL, or a private node of so many slots; calls outlast a node that is restarted."""
    async with AsyncExitStack() as stack:
        if url is None:
            client = await stack.enter_async_context(local_sandbox(slots=slots))
        else:
            token = os.environ.get(TOKEN_VARIABLE)
            client = await patiently(
                lambda: stack.enter_async_context(sandbox_at(url, token)),
                lambda error, failures, began: began + patience_s,
            )
        yield PatientExecutor(client, patience_s)
