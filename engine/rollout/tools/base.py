"""The contract of tools: what one is given, what it answers, and what it may keep while a rollout lasts.

A tool of your own is an object with ``spec`` and ``call``, named in a recipe as ``module:attribute``. An exception
that it raises is an error of the tool, told to the policy and recorded as status ``error``; ``SandboxUnavailable`` is
our failure and spoils the attempt. ``call`` shares the event loop with every other rollout: what blocks belongs into
``asyncio.to_thread`` or into the sandbox. Leaves out the turn loop: ``engine.rollout.agent``.
"""

import asyncio
import logging
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, cast

from engine.rollout.tools.spec import ToolSpec
from sandbox.contract import ExecRequest, ExecResult, ExecStatus, Limits, SandboxStatus

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Sandbox(Protocol):
    """What the engine needs of a sandbox; ``sandbox.client.SandboxClient`` is one."""

    async def execute(self, request: ExecRequest) -> ExecResult:
        """See ``sandbox.contract.Executor``."""
        ...

    async def end_session(self, session: str) -> None:
        """Let a session's variables go. An unknown or lost session is no error."""
        ...

    async def status(self) -> SandboxStatus:
        """Queue and nodes. Raises ``SandboxUnavailable``."""
        ...


class RolloutScope:
    """What the tools of one rollout keep between its calls, closed when the rollout ends, however it ends."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, object] = {}
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()

    @property
    def keeps(self) -> bool:
        """Whether a tool has kept something: the rollout cannot go on without it."""
        return bool(self._kept)

    async def keep(self, owner: Hashable, opened: Callable[[], AbstractAsyncContextManager[_T]]) -> _T:
        """What ``owner`` (the tool, or a name) keeps in this rollout; the first call opens it."""
        async with self._opening:
            if owner not in self._kept:
                self._kept[owner] = await self._stack.enter_async_context(opened())
        return cast(_T, self._kept[owner])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._stack.aclose()
        except Exception as fault:  # the rollout is over, and what it came to does not depend on this
            _log.warning("what a tool kept for a rollout could not be closed: %s: %s", type(fault).__name__, fault)


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a call may use: the sandbox, the recipe's limits for programs, what the rollout's tools keep."""

    sandbox: Sandbox
    limits: Limits
    scope: RolloutScope


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What came of a call. ``response`` is what the policy gets back; times in seconds."""

    response: str
    status: ExecStatus = ExecStatus.OK
    error_type: str | None = None
    queued_s: float = 0.0
    wall_s: float = 0.0


class Tool(Protocol):
    """One tool. The same object serves all rollouts of a run, many at a time."""

    @property
    def spec(self) -> ToolSpec:
        """How the prompt shows it, and what a call's arguments are checked by."""
        ...

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutcome:
        """Answer one call, whose arguments have passed ``spec``."""
        ...
