"""One child of a zygote as the supervisor holds it, from the order to fork it until nothing of it is left.

It is born a spare and may be given one thing to do: a program (`call`) or a session, whose `Resident` it is.
"""

import asyncio
import math
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from sandbox.backend.capped_pipe import sealed_memory
from sandbox.backend.forkserver import wire
from sandbox.backend.forkserver.berths import Berth
from sandbox.backend.forkserver.wire import Assignment
from sandbox.backend.protocol import CallLost
from sandbox.contract import Limits

_DYING_S = 10.0  # what was killed this long ago and has not ended has a zygote that hangs


class SpareGone(CallLost):
    """A child that was ready has ended before it was given anything to do."""

    def __init__(self) -> None:
        super().__init__("a spare process was killed from outside: the machine may be out of memory")


class Child:
    """`born` is done when there is a process, `ended` when it and all of its children are gone."""

    control: socket.socket
    stdout: int
    stderr: int

    def __init__(
        self,
        berth: Berth,
        scratch_mb: int,
        *,
        zygote_hangs: Callable[[], None],
        on_release: Callable[["Child"], object],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.berth, self.scratch_mb = berth, scratch_mb
        self.address_space_limited = berth.group is None
        self.born: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[int] = loop.create_future()
        self.cpu_s = 0.0  # of its whole life, known when it has ended
        self.killed = False  # by us
        self._zygote_hangs = zygote_hangs
        self._on_release = on_release
        self._pidfd = -1
        self._is_resident = False
        self.released: asyncio.Future[None] = loop.create_future()

    @property
    def pid(self) -> int:
        """Its process id here, outside of the jail; 0 once it is gone."""
        return pid_of(self._pidfd)

    def spawned(self, fds: Sequence[int]) -> None:
        """The zygote forked it: its control socket, stdout, stderr and pidfd."""
        control, self.stdout, self.stderr, self._pidfd = fds
        self.control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, control)
        for fd in fds[:3]:
            os.set_blocking(fd, False)
        if self.killed:
            self._signal()
        self.born.set_result(None)

    def run_program(self, code: str, stdin: str, limits: Limits) -> None:
        """Give it its program, also if it is not ready yet. Raises `CallLost`, among it `SpareGone`, and `OSError`."""
        source = code.encode("utf-8", "surrogatepass")
        is_inline = len(source) <= wire.INLINE_BYTES
        with ExitStack() as beside:
            fds = [] if is_inline else [_lent(source, beside)]
            if stdin:
                fds.append(_lent(stdin.encode("utf-8", "surrogatepass"), beside))
            self._assign(limits, math.ceil(limits.cpu_s), source if is_inline else None, bool(stdin), fds)

    def host_session(self, limits: Limits) -> None:
        """Have it serve cells on its control socket. Raises `CallLost`, `OSError`."""
        self._is_resident = True
        self._assign(limits, 0, b"", False, [])

    def _assign(self, limits: Limits, cpu_s: int, source: bytes | None, has_stdin: bool, fds: list[int]) -> None:
        assignment = Assignment(
            self._is_resident,
            cpu_s,
            address_space_bytes=limits.memory_mb << 20 if self.address_space_limited else 0,
            # A user of its own is what makes the kernel's count of a user's processes the program's.
            processes=limits.processes if self.address_space_limited and not self.berth.scratch else 0,
            is_inline=source is not None,
            has_stdin=has_stdin,
        )
        if self.berth.group:
            self.berth.group.limit(limits)
        try:
            socket.send_fds(self.control, [wire.encode_assignment(assignment, source or b"")], fds)
        except ConnectionError:
            raise CallLost(complaint) if (complaint := self.complaint()) else SpareGone() from None

    async def ready(self) -> None:
        """Wait until it is locked down. Raises `CallLost` that says why it will not be."""
        await self.born
        loop = asyncio.get_running_loop()
        if complaint := complaint_of(await loop.sock_recv(self.control, wire.MAX_MESSAGE)):
            raise CallLost(complaint)

    def complaint(self) -> str:
        """Once its program has ended: why that never began; empty if it did."""
        said = [self._next_word(), self._next_word()]  # a failure may come after readiness, while limits are set
        return complaint_of(said[0]) or said[1].decode("utf-8", "replace")

    def _next_word(self) -> bytes:
        try:
            return self.control.recv(wire.MAX_MESSAGE)
        except ConnectionResetError:  # it never read its assignment: told once, and before what it said
            return self._next_word()
        except OSError:  # closed, or there is no more
            return b""

    def exited(self, wait_status: int, cpu_s: float) -> None:
        """The zygote reaped it. All its processes are gone: the kernel reaps an init last."""
        self.cpu_s = cpu_s
        if self.ended.done():
            return  # counted as lost already
        if self._is_resident and self._killed_from_outside(wait_status):
            self._fail("the session was killed from outside: the machine may be out of memory")
        else:
            self.ended.set_result(wait_status)

    def _killed_from_outside(self, wait_status: int) -> bool:
        return os.waitstatus_to_exitcode(wait_status) == -signal.SIGKILL and not (self.killed or self.oom_killed())

    def lost(self, why: str) -> None:
        """The zygote refused it or died, and the process with it."""
        self.kill()  # a child that is no init of a namespace may outlive its zygote for a moment
        self._fail(why)

    def _fail(self, why: str) -> None:
        for future in (self.born, self.ended):
            if not future.done():
                future.set_exception(CallLost(why))
                future.exception()  # seen: a spare has nobody who waits for it

    def kill(self) -> None:
        """Kill it and all of its children at once. `ended` comes within seconds, if need be by the zygote's end."""
        if not (self.killed or self.ended.done()):
            overdue = asyncio.get_running_loop().call_later(_DYING_S, self._zygote_hangs)
            self.ended.add_done_callback(lambda _: overdue.cancel())
        self.killed = True
        self._signal()

    def _signal(self) -> None:
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):  # it ended by itself; the zygote will say so
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def arm(self, limits: Limits) -> None:
        """See `Resident.arm`; the ceilings stay those that it began with."""
        if self.berth.group:
            self.berth.group.arm()

    def oom_killed(self) -> bool:
        """Whether one of its processes was killed for memory since its assignment or `arm`."""
        return self.berth.group is not None and self.berth.group.oom_killed()

    async def close(self) -> None:
        """Kill it, wait for its end, release everything. May be called twice."""
        self.kill()
        await asyncio.wait([self.ended])
        self.release()

    def release(self) -> None:
        """Close what is open and give the berth back. It must have ended. May be called twice."""
        if not self.released.done():
            self._close_descriptors()
            self.released.set_result(None)
            self._on_release(self)

    def _close_descriptors(self) -> None:
        if self._pidfd >= 0:
            self.control.close()
            for fd in (self.stdout, self.stderr, self._pidfd):
                os.close(fd)
            self._pidfd = -1


def _lent(data: bytes, until: ExitStack) -> int:
    fd = sealed_memory(data)
    until.callback(os.close, fd)
    return fd


def complaint_of(first_message: bytes) -> str:
    """What a child's first message says is wrong; empty if it is locked down."""
    if first_message == wire.READY:
        return ""
    return first_message.decode("utf-8", "replace") or "a child of the zygote ended before it was locked down"


def pid_of(pidfd: int) -> int:
    """The number of its process in our own pid namespace; 0 if it is gone."""
    try:
        info = Path(f"/proc/self/fdinfo/{pidfd}").read_text()
    except FileNotFoundError:
        return 0
    return next((max(0, int(line.split()[1])) for line in info.splitlines() if line.startswith("Pid:")), 0)
