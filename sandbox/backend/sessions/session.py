"""One process of a session as its supervisor sees it: sends it cells, hears that they are over.

Believed of the process are its pipes, its end, and an answer that names the cell's nonce; whatever else comes over
the control socket is a breach and ends it. Which cell comes when is the business of `table`.
"""

import asyncio
import os
import socket
import time
from functools import partial

from sandbox.backend.capped_pipe import sealed_memory
from sandbox.backend.outcome import Facts, result_of
from sandbox.backend.sessions.cell_protocol import ANSWER_BYTES, INLINE_BYTES, Order, decode_answer, encode_order
from sandbox.backend.sessions.resident import Resident
from sandbox.backend.sessions.running_cell import RunningCell
from sandbox.contract import ExecRequest, ExecResult, ExecStatus

_DYING_S = 1.0  # a process that ends closes its descriptors some time before it has ended


class Session:
    """Runs cells in `resident`, one at a time. Must be closed, above all if `run` raises."""

    def __init__(self, resident: Resident) -> None:
        self._loop = asyncio.get_running_loop()
        self._resident = resident
        self._cell: RunningCell | None = None
        self._breach = ""
        self._cpu_s = partial(_cpu_s, resident.pid)
        self._loop.add_reader(resident.control, self._hear)
        resident.ended.add_done_callback(self._on_end)

    @property
    def ended(self) -> bool:
        """Its process is gone, and the variables with it."""
        return self._resident.ended.done()

    def epitaph(self) -> str:
        """What ended it between two cells. Raises `CallLost` if that was not its cells' doing."""
        code = os.waitstatus_to_exitcode(self._resident.ended.result())
        return self._breach or (f"it died of signal {-code}" if code < 0 else f"it exited with code {code}")

    async def run(self, request: ExecRequest, queued_s: float) -> ExecResult:
        """Run one cell. Raises `CallLost` if the process was lost with it, `OSError` if it cannot be given one."""
        cell = self._cell = RunningCell(self._resident, request.limits, self._cpu_s)
        try:
            self._send(cell.nonce, request)
            exit_code = await cell.over
        finally:
            self._cell = None
            cell.close()
        if oom_killed := self._resident.oom_killed():
            self._resident.arm(request.limits)
        facts = Facts(
            stdout=cell.stdout,
            stderr=cell.stderr,
            wait_status=self._resident.ended.result() if exit_code is None else exit_code << 8,
            wall_s=self._loop.time() - cell.started,
            queued_s=queued_s,
            stopped_for=cell.stopped_for,
            oom_killed=oom_killed,
            address_space_limited=self._resident.address_space_limited,
            why=cell.why,
            session_kept=exit_code is not None,
        )
        return result_of(request, facts)

    async def close(self) -> None:
        """Kill it, wait for its end, leave nothing open."""
        self._resident.kill()
        await asyncio.wait([self._resident.ended])  # and so until a cell that runs has taken its output
        self._loop.remove_reader(self._resident.control)
        await self._resident.close()

    def _send(self, nonce: bytes, request: ExecRequest) -> None:
        source = request.code.encode("utf-8", "surrogatepass")
        beside: list[int] = []
        try:
            if is_long := len(source) > INLINE_BYTES:
                beside.append(sealed_memory(source))
            if request.stdin:
                beside.append(sealed_memory(request.stdin.encode("utf-8", "surrogatepass")))
            order = Order(nonce, request.cell, b"" if is_long else source, is_long, bool(request.stdin))
            socket.send_fds(self._resident.control, [encode_order(order)], beside)
        except BrokenPipeError:
            pass  # the process is ending: its end, which is awaited next, says how
        finally:
            for fd in beside:
                os.close(fd)

    def _hear(self) -> None:
        try:
            message = self._resident.control.recv(ANSWER_BYTES + 1)
        except BlockingIOError:
            return
        except ConnectionResetError:
            message = b""
        if not message:
            self._loop.remove_reader(self._resident.control)
            self._loop.call_later(_DYING_S, self._closed_control)
            return
        try:
            nonce, exit_code = decode_answer(message)
        except ValueError:
            nonce, exit_code = b"", 0
        if self._cell and nonce == self._cell.nonce:
            self._cell.answered(exit_code)
        else:
            self._loop.remove_reader(self._resident.control)
            self._stop("it forged a message on its control socket")

    def _closed_control(self) -> None:
        if not self.ended:
            self._stop("it closed its control socket")

    def _stop(self, breach: str) -> None:
        self._breach = breach
        if self._cell:
            self._cell.stop(ExecStatus.KILLED, f"The session was stopped by the sandbox: {breach}.")
        else:
            self._resident.kill()

    def _on_end(self, ended: asyncio.Future[int]) -> None:
        ended.exception()  # seen: between two cells there is nobody to be told yet
        if self._cell:
            self._cell.process_ended()


def _cpu_s(pid: int) -> float:
    """Seconds of CPU time that a process has used, all threads, no children; infinite once it is gone."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # the clock of a process, as clock_getcpuclockid(3) names it
    except OSError:
        return float("inf")
