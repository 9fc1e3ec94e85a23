"""A session as its owner holds it: numbers the cells, runs them one after the other, lets go of the state at the end.

The rules are those of `sandbox.contract.request`. Nothing is kept or replayed here.
"""

import asyncio
import logging
from types import TracebackType
from typing import Self
from uuid import uuid4

from sandbox.broker import Submitter
from sandbox.contract import (
    ExecRequest,
    ExecResult,
    Limits,
    Priority,
    RequestRefused,
    SandboxBusy,
    SandboxUnavailable,
    SessionLost,
)

_log = logging.getLogger(__name__)


class Session:
    """An interpreter that keeps its variables from cell to cell, for as long as the `async with` block lasts."""

    def __init__(self, submitter: Submitter, limits: Limits, priority: Priority) -> None:
        self.name = uuid4().hex
        self._submitter = submitter
        self._limits = limits
        self._priority = priority
        self._turn = asyncio.Lock()
        self._cell = 0
        self._lost: str | None = None

    async def execute(self, code: str, stdin: str = "", limits: Limits | None = None) -> ExecResult:
        """Run the next cell, after those that were asked for before. limits: of this cell; default the session's.

        Raises `SessionLost` once the variables are gone through no doing of the cells, and ever after; so does a
        session whose last cell was cancelled or failed with `SandboxUnavailable`: nobody knows how far it came.
        After `SandboxBusy` and `RequestRefused`, which ran nothing, the session goes on.
        """
        async with self._turn:
            if self._lost:
                raise SessionLost(self._lost)
            request = ExecRequest(
                code=code,
                stdin=stdin,
                session=self.name,
                cell=self._cell,
                limits=limits or self._limits,
                priority=self._priority,
            )
            return await self._run(request)

    async def _run(self, request: ExecRequest) -> ExecResult:
        try:
            result = await self._submitter.submit(request)
        except (SandboxBusy, RequestRefused):
            raise
        except BaseException as error:  # cancelled too
            self._lost = f"session {self.name} was lost in cell {request.cell}: {error or type(error).__name__}"
            raise
        self._cell += 1
        return result

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lost = self._lost or f"session {self.name} was ended by its owner"
        try:
            await self._submitter.end_session(self.name)
        except SandboxUnavailable as failure:  # must not hide what the block raised
            _log.warning("session %s was not ended, it has to idle out: %s", self.name, failure)
