"""A plain interpreter per call, without any isolation: the reference that says what a program should do.

Not for hostile code: programs see the machine's files, network and processes, and may leave processes
behind that left their process group. It limits time, output and (per process) address space only. Sessions are
plain interpreters too, which run the same loop as the jailed ones.
"""

import asyncio
import math
import os
import signal
import tempfile
from contextlib import suppress
from pathlib import Path

from sandbox.backend.capped_pipe import CappedPipe, open_pipe, sealed_memory
from sandbox.backend.forkserver.lockdown import ENVIRONMENT
from sandbox.backend.outcome import Facts, result_of
from sandbox.backend.sessions.plain import PlainResident
from sandbox.backend.sessions.resident import Resident
from sandbox.backend.sessions.table import SessionTable
from sandbox.contract import ExecRequest, ExecResult, ExecStatus, Limits, SandboxUnavailable, Tier

# The shell sets what only the program itself may be held to, then becomes the program.
_ENCODING = "utf-8:backslashreplace"
_START = 'ulimit -c 0; ulimit -v "$1"; ulimit -S -t "$2"; shift 2; exec "$@"'
_MOST_SESSIONS, _SESSION_IDLE_S = 64, 600.0


class SubprocessBackend:
    """Starts `python main.py` in an empty directory for each call, an interpreter that stays for each session."""

    tier: Tier = "none"

    def __init__(
        self, python: Path, slots: int, *, most_sessions: int = _MOST_SESSIONS, session_idle_s: float = _SESSION_IDLE_S
    ) -> None:
        self.slots = slots
        self._python = python
        self._free = asyncio.Semaphore(slots)
        self._table = SessionTable(self._start_session, most_sessions, session_idle_s)

    @property
    def sessions(self) -> int:
        """See `Backend.sessions`."""
        return self._table.count

    async def start(self) -> None:
        """Raises `SandboxUnavailable` if there is no such interpreter."""
        if not os.access(self._python, os.X_OK):
            raise SandboxUnavailable(f"{self._python} is not an interpreter that we may start")

    async def run(self, request: ExecRequest) -> ExecResult:
        """See `Backend.run`."""
        loop = asyncio.get_running_loop()
        waiting_since = loop.time()
        async with self._free:
            queued_s = loop.time() - waiting_since
            if request.session is not None:
                return await self._table.run(request, queued_s)
            with tempfile.TemporaryDirectory(prefix="starloom-") as folder:
                _write_program(folder, request)
                return result_of(request, await self._facts(request, folder, queued_s))

    async def end_session(self, session: str) -> None:
        """See `Backend.end_session`."""
        await self._table.end(session)

    async def close(self) -> None:
        """End the sessions; every other call cleans up after itself."""
        await self._table.close()

    def describe(self) -> str:
        """One line for people."""
        return f"NO ISOLATION: plain subprocesses, time and memory limits only; {self.slots} slots"

    async def _start_session(self, limits: Limits) -> Resident:
        return PlainResident(self._python, limits)

    async def _facts(self, request: ExecRequest, folder: str, queued_s: float) -> Facts:
        loop = asyncio.get_running_loop()
        run = _Run(request.limits.output_bytes)
        started = loop.time()
        try:
            process = await self._spawn(request, folder, run)
            run.group = process.pid
            timer = loop.call_later(request.limits.wall_s, run.stop, ExecStatus.TIMEOUT)
            try:
                code = await process.wait()
            finally:
                timer.cancel()
                run.kill()
        finally:
            stdout, stderr = run.close()
        return Facts(
            stdout=stdout,
            stderr=stderr,
            wait_status=-code if code < 0 else code << 8,
            wall_s=loop.time() - started,
            queued_s=queued_s,
            stopped_for=run.stopped_for,
            address_space_limited=True,
        )

    async def _spawn(self, request: ExecRequest, folder: str, run: "_Run") -> asyncio.subprocess.Process:
        limits = (str(request.limits.memory_mb << 10), str(math.ceil(request.limits.cpu_s)))
        stdin = sealed_memory(request.stdin.encode("utf-8", "surrogatepass"))
        try:
            return await asyncio.create_subprocess_exec(
                *("/bin/sh", "-c", _START, "sh", *limits, self._python, "-u", "main.py"),
                stdin=stdin,
                stdout=run.stdout,
                stderr=run.stderr,
                cwd=folder,
                env=ENVIRONMENT | {"HOME": folder, "TMPDIR": folder, "PYTHONIOENCODING": _ENCODING},
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxUnavailable(f"cannot start {self._python}: {error}") from error
        finally:
            os.close(stdin)
            os.close(run.stdout)
            os.close(run.stderr)


_NUL_IN_SOURCE = "raise SyntaxError('source code cannot contain null bytes')"
"""CPython before 3.11.4 cut a source file at its first NUL and ran what stood before (cpython gh-96670)."""


def _write_program(folder: str, request: ExecRequest) -> None:
    code = _NUL_IN_SOURCE if "\0" in request.code else request.code
    Path(folder, "main.py").write_bytes(code.encode("utf-8", "surrogatepass"))


class _Run:
    """The pipes of one process (`stdout` and `stderr` are its ends) and why it was stopped."""

    def __init__(self, output_bytes: int) -> None:
        (stdout, self.stdout), (stderr, self.stderr) = open_pipe(), open_pipe()
        self._ends = (stdout, stderr)
        self._pipes = [CappedPipe(fd, output_bytes, lambda: self.stop(ExecStatus.OUTPUT_LIMIT)) for fd in self._ends]
        for pipe in self._pipes:
            pipe.watch()
        self.stopped_for: ExecStatus | None = None
        self.group = 0

    def stop(self, reason: ExecStatus) -> None:
        self.stopped_for = self.stopped_for or reason
        self.kill()

    def kill(self) -> None:
        if self.group:
            with suppress(ProcessLookupError):  # the whole group ended by itself
                os.killpg(self.group, signal.SIGKILL)

    def close(self) -> tuple[bytes, bytes]:
        """What it wrote to stdout and stderr."""
        stdout, stderr = (pipe.finish() for pipe in self._pipes)
        for fd in self._ends:
            os.close(fd)
        return stdout, stderr
