"""One program in one child: two pipes, a deadline, why it was stopped, and what came of it."""

import asyncio

from sandbox.backend.capped_pipe import QUICK_S, CappedPipe
from sandbox.backend.forkserver.child import Child
from sandbox.backend.outcome import Facts, killed_from_outside, result_of
from sandbox.backend.protocol import CallLost
from sandbox.contract import ExecRequest, ExecResult, ExecStatus


async def run_in(child: Child, request: ExecRequest, queued_s: float) -> ExecResult:
    """Run a program in a child that was born.

    Raises `CallLost`, `OSError`. However it returns, the child is ending, or has ended, and still to be released.
    """
    call = _Call(request, child)
    try:
        child.run_program(request.code, request.stdin, request.limits)
        wait_status = await asyncio.shield(child.ended)
    except BaseException:
        child.kill()
        call.close()
        raise
    facts = call.facts(wait_status, queued_s)
    if facts.stopped_for is None and (complaint := child.complaint()):
        raise CallLost(complaint)
    if killed_from_outside(facts, request.limits):  # an init cannot be killed from inside
        raise CallLost("the program was killed from outside: the machine may be out of memory")
    return result_of(request, facts)


class _Call:
    """What is watched while a program runs."""

    def __init__(self, request: ExecRequest, child: Child) -> None:
        self._loop = asyncio.get_running_loop()
        self._child = child
        self._stopped_for: ExecStatus | None = None
        limits = request.limits
        self._started = self._loop.time()
        self._outputs = [
            CappedPipe(fd, limits.output_bytes, lambda: self._stop(ExecStatus.OUTPUT_LIMIT))
            for fd in (child.stdout, child.stderr)
        ]
        self._timers = (
            self._loop.call_later(QUICK_S, self._watch),
            self._loop.call_later(limits.wall_s, self._stop, ExecStatus.TIMEOUT),
        )

    def _watch(self) -> None:
        for output in self._outputs:
            output.watch()

    def _stop(self, reason: ExecStatus) -> None:
        """Kill the program and all its processes; the first reason given counts."""
        self._stopped_for = self._stopped_for or reason
        self._child.kill()

    def facts(self, wait_status: int, queued_s: float) -> Facts:
        """What was seen of it, once it has ended. Closes it."""
        wall_s = self._loop.time() - self._started
        stdout, stderr = self.close()
        return Facts(
            stdout=stdout,
            stderr=stderr,
            wait_status=wait_status,
            wall_s=wall_s,
            queued_s=queued_s,
            cpu_s=self._child.cpu_s,
            stopped_for=self._stopped_for,
            oom_killed=self._child.oom_killed(),
            address_space_limited=self._child.address_space_limited,
        )

    def close(self) -> list[bytes]:
        """Stop watching; what it wrote."""
        for timer in self._timers:
            timer.cancel()
        return [output.finish() for output in self._outputs]
