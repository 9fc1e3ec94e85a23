"""Asking the sandbox from code that is not asynchronous: does it run programs, and how is it?

Every answer comes within seconds, whatever hangs. Leaves out starting a node (``parts.py``) and where the sandbox is
(``config.servers``).
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from sandbox.client import SandboxClient, sandbox_at
from sandbox.contract import ExecRequest, Priority, RequestRefused, SandboxStatus, SandboxUnavailable
from webapp.config.servers import Sandbox
from webapp.machine.processes import answers

T = TypeVar("T")
WITHIN_S = 2.0
_PROGRAM = ExecRequest(code="print(6 * 7)", priority=Priority.INTERACTIVE)


def status(place: Sandbox) -> SandboxStatus:
    """Its queue and its nodes, within ``WITHIN_S``. Raises ``SandboxUnavailable``."""
    return _asked(place, SandboxClient.status)


def run_a_program(place: Sandbox) -> None:
    """Have a small program run, within ``WITHIN_S``. Raises ``SandboxUnavailable``, also when it ran wrongly."""
    result = _asked(place, lambda client: client.execute(_PROGRAM))
    if result.stdout != "42\n":
        raise SandboxUnavailable(f"a program ended with {result.status}: {result.detail or result.stderr}")


def _asked(place: Sandbox, ask: Callable[[SandboxClient], Awaitable[T]]) -> T:
    async def answer() -> T:
        async with asyncio.timeout(WITHIN_S), sandbox_at(place.url, place.token) as client:
            return await ask(client)

    if place.ours and not answers(Path(place.url.removeprefix("unix:"))):
        raise SandboxUnavailable(f"no node listens at {place.shown}")
    try:
        return asyncio.run(answer())
    except TimeoutError as error:
        raise SandboxUnavailable(f"{place.shown} did not answer within {WITHIN_S:.0f} seconds") from error
    except RequestRefused as error:  # such as a token that it does not take
        raise SandboxUnavailable(f"{place.shown} refused to answer: {error}") from error
