"""A sandbox that may be gone for seconds (its node is restarted): calls are tried again before a rollout is lost.

Calls keep no state, so running one twice is legal, and what a rollout has sampled so far stays of use. A call that
fails while others are answered is not waited for: then it is the call that the node cannot take, and its rollout is
the pool's to retry (``pool.py``).
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sandbox.contract import ExecRequest, ExecResult, Executor, SandboxUnavailable

PATIENCE_S = 30.0
"""Seconds that an outage may last before rollouts are lost to it."""

TRIES = 3
"""Times that a call is tried while the sandbox answers others."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 2.0

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


async def patiently(
    call: Callable[[], Awaitable[_T]],
    patience_s: float = PATIENCE_S,
    give_up: Callable[[int, float], bool] = lambda tries, began: False,
) -> _T:
    """What ``call`` gives, tried again while the sandbox is not there. Raises its last ``SandboxUnavailable``.

    ``give_up`` is asked after each failure, with the number of tries and the loop's time before the first.
    """
    loop = asyncio.get_running_loop()
    began, tries, pause = loop.time(), 0, _FIRST_PAUSE_S
    while True:
        try:
            return await call()
        except SandboxUnavailable:
            tries += 1
            if loop.time() + pause > began + patience_s or give_up(tries, began):
                raise
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, _LONGEST_PAUSE_S)


class PatientExecutor:
    """An ``Executor`` around another one that is given ``patience_s`` seconds to come back."""

    def __init__(self, executor: Executor, patience_s: float = PATIENCE_S) -> None:
        self._executor = executor
        self._patience_s = patience_s
        self._answered_at = 0.0
        self._away = False

    async def execute(self, request: ExecRequest) -> ExecResult:
        """See ``Executor``."""
        return await patiently(lambda: self._try(request), self._patience_s, self._is_the_call_itself)

    async def _try(self, request: ExecRequest) -> ExecResult:
        try:
            result = await self._executor.execute(request)
        except SandboxUnavailable as error:
            if not self._away:
                _log.warning("the sandbox failed, calls are tried again for %g s: %s", self._patience_s, error)
            self._away = True
            raise
        self._away, self._answered_at = False, asyncio.get_running_loop().time()
        return result

    def _is_the_call_itself(self, tries: int, began: float) -> bool:
        return tries >= TRIES and self._answered_at > began
