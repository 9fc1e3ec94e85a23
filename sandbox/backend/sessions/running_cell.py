"""One cell while it runs: what it wrote, how long it may still run, why it was stopped."""

import asyncio
import os
from collections.abc import Callable

from sandbox.backend.capped_pipe import QUICK_S, CappedPipe
from sandbox.backend.outcome import over_cpu_limit
from sandbox.backend.sessions.cell_protocol import NONCE_BYTES
from sandbox.backend.sessions.resident import Resident
from sandbox.contract import ExecStatus, Limits

_LEAST_LOOK_S = 0.01  # between two looks at the CPU clock


class RunningCell:
    """From its order to its answer, or to the end of its process; watches `resident` until `close`.

    Most cells are over before it pays to look after their limits: that begins after `QUICK_S`.
    """

    def __init__(self, resident: Resident, limits: Limits, cpu_s: Callable[[], float]) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._resident, self._limits, self._cpu_s = resident, limits, cpu_s
        self.nonce = os.urandom(NONCE_BYTES)
        self.over: asyncio.Future[int | None] = loop.create_future()
        """The exit code that it answered with; None where its process ended."""
        self.stdout = self.stderr = b""
        self.stopped_for: ExecStatus | None = None
        self.why = ""
        self.started = loop.time()
        self._cpu_s_before = cpu_s()
        self._outputs = [
            CappedPipe(fd, limits.output_bytes, self._flooded) for fd in (resident.stdout, resident.stderr)
        ]
        self._timers = {"watch": loop.call_later(QUICK_S, self._watch)}

    def answered(self, exit_code: int) -> None:
        """The cell is over and its process lives. Too late once it was stopped: then the end decides."""
        self.close()  # it may have written too much just now
        if not self.stopped_for:
            self._conclude(exit_code)

    def process_ended(self) -> None:
        self.close()
        self._conclude(None)

    def stop(self, reason: ExecStatus, why: str = "") -> None:
        """Kill the process; the first reason given counts."""
        if not self.stopped_for:
            self.stopped_for, self.why = reason, why
        self._resident.kill()

    def close(self) -> None:
        """Watch no longer; take what it has written. May be called twice."""
        for timer in self._timers.values():
            timer.cancel()
        outputs, self._outputs = self._outputs, []
        if outputs:
            self.stdout, self.stderr = (output.finish() for output in outputs)

    def _watch(self) -> None:
        for output in self._outputs:
            output.watch()
        self._timers["wall"] = self._loop.call_at(self.started + self._limits.wall_s, self.stop, ExecStatus.TIMEOUT)
        self._timers["cpu"] = self._loop.call_at(self.started + self._limits.cpu_s, self._look_at_cpu)

    def _conclude(self, exit_code: int | None) -> None:
        if not self.over.done():  # else cancelled
            self.over.set_result(exit_code)

    def _flooded(self) -> None:
        self.stop(ExecStatus.OUTPUT_LIMIT)

    def _look_at_cpu(self) -> None:
        """Comes first when one thread can have used it all up, then again when what is left may be."""
        if self._resident.ended.done():
            return
        left_s = self._limits.cpu_s - (self._cpu_s() - self._cpu_s_before)
        if left_s <= 0:
            self.stop(ExecStatus.TIMEOUT, over_cpu_limit(self._limits))
        else:
            self._timers["cpu"] = self._loop.call_later(max(left_s, _LEAST_LOOK_S), self._look_at_cpu)
