"""The seam between sessions and backends: one process that runs cells, as its supervisor holds it.

A backend makes one by having a child of its own call `cells.serve(control)`, once it is locked down, with
stdout and stderr on pipes that last as long as it does. How it is jailed, killed and counted is not known here.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Protocol

from sandbox.contract import Limits


class Resident(Protocol):
    """One process that is ready to run cells."""

    control: socket.socket
    """Our end of a SEQPACKET pair, non-blocking."""
    stdout: int
    """Read end of its stdout, non-blocking."""
    stderr: int
    """The same for stderr."""
    address_space_limited: bool
    """No cgroup limits its memory: a MemoryError is then how the limit shows."""
    ended: asyncio.Future[int]
    """Its wait status, as of wait(2), once it and all of its children are gone. Has the exception `CallLost` where that
    was our fault or the machine's: the zygote died, or it was killed from outside. Never cancelled.
    """

    @property
    def pid(self) -> int:
        """Its number here, outside of the jail: its CPU clock is read by it, nothing is ever sent to it."""
        ...

    def kill(self) -> None:
        """Kill it and all of its children at once: `ended` comes, whatever else hangs. No error once it has."""
        ...

    def arm(self, limits: Limits) -> None:
        """Called after a cell that was told of kills for memory: those count no more. Raises `OSError`."""
        ...

    def oom_killed(self) -> bool:
        """Whether one of its processes was killed for memory since `arm`. Also asked once it has ended."""
        ...

    async def close(self) -> None:
        """Kill it, wait for its end and release everything, the descriptors above included. May be called twice."""
        ...


Start = Callable[[Limits], Awaitable[Resident]]
"""Starts a process with the `processes`, `scratch_mb` and `memory_mb` of these limits (times and output are watched
from here, so no RLIMIT_CPU). Raises `CallLost` or `SandboxUnavailable`.
"""
