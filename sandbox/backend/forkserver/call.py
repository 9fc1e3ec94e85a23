"""One running program as the supervisor sees it: two pipes, a pidfd, a deadline, and why it was stopped."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from sandbox.backend.capped_pipe import CappedPipe, sealed_memory
from sandbox.backend.protocol import CallLost
from sandbox.contract import ExecRequest, ExecStatus

_REPORT_BYTES = 4096


@dataclass(frozen=True)
class Ended:
    """How a call ended, before anything is concluded from it."""

    stdout: bytes
    stderr: bytes
    wait_status: int
    cpu_s: float
    wall_s: float


class Call:
    """From the order to the reaped process; afterwards nothing of it is open. `link` calls its methods."""

    def __init__(self, request: ExecRequest, give_up: Callable[[], None], grace_s: float) -> None:
        loop = asyncio.get_running_loop()
        limits = request.limits
        self.stopped_for: ExecStatus | None = None
        self.ended: asyncio.Future[Ended] = loop.create_future()
        self._pidfd = -1
        self._inputs: list[int] = []
        self._pipes: list[CappedPipe] = []
        with ExitStack() as undo:  # descriptors may run out half-way
            undo.callback(self._close_all)
            for cap in (limits.output_bytes, limits.output_bytes, _REPORT_BYTES):
                self._pipes.append(CappedPipe(cap, lambda: self.stop(ExecStatus.OUTPUT_LIMIT)))
            for text in (request.code, request.stdin):
                self._inputs.append(sealed_memory(text.encode("utf-8", "surrogatepass")))
            undo.pop_all()
        self._started = loop.time()
        self._timers = (
            loop.call_later(limits.wall_s, self.stop, ExecStatus.TIMEOUT),
            loop.call_later(limits.wall_s + grace_s, give_up),
        )

    def descriptors(self) -> list[int]:
        """What the child gets, in the order of `lockdown.Descriptors`."""
        return [*self._inputs, *(pipe.write_fd for pipe in self._pipes)]

    def handed_over(self) -> None:
        """The zygote has the descriptors: ours would keep the pipes from ending."""
        for fd in self._inputs:
            os.close(fd)
        self._inputs = []
        for pipe in self._pipes:
            pipe.close_write_end()

    def spawned(self, pidfd: int) -> None:
        self._pidfd = pidfd
        if self.stopped_for or self.ended.done():
            self._kill()

    def stop(self, reason: ExecStatus) -> None:
        """Kill the program and all its processes; the first reason given counts."""
        self.stopped_for = self.stopped_for or reason
        self._kill()

    def _kill(self) -> None:
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):  # it ended by itself; the zygote will say so
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)  # the init of its namespace: all go

    def exited(self, wait_status: int, cpu_s: float) -> None:
        """The program and all its processes are gone: the kernel reaps an init last."""
        wall_s = asyncio.get_running_loop().time() - self._started
        stdout, stderr, report = self._release()
        if report:
            self._fail(report.decode("utf-8", "replace"))
        elif not self.ended.done():
            self.ended.set_result(Ended(stdout, stderr, wait_status, cpu_s, wall_s))

    def lost(self, why: str) -> None:
        """The zygote refused it or died, and the program with it."""
        self._release()
        self._fail(why)

    def _fail(self, why: str) -> None:
        if not self.ended.done():
            self.ended.set_exception(CallLost(why))

    def _close_all(self) -> list[bytes]:
        self.handed_over()
        return [pipe.finish() for pipe in self._pipes]

    def _release(self) -> list[bytes]:
        for timer in self._timers:
            timer.cancel()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        return self._close_all()
