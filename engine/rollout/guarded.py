"""A server process that cannot outlive us, seen from its owner: start, watch, last words, close.

The other half is ``guard.py``, which is the process we really start. Leaves out what the server serves.
"""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from engine.rollout import guard
from engine.rollout.base import EngineUnavailable

_GUARD = Path(guard.__file__)
_TAIL_BYTES = 4096
_TAIL_LINES = 12
_MARK = "STARLOOM_GUARDED"
_TICK_S = 0.05


class GuardedProcess:
    """One command under a guard. Can be started again after ``close``.

    Its output is appended to ``log_file``; the folder ``scratch`` is removed when it ends, and is its name: whatever
    carries that name in its environment is ours, also when a killed guard, of this run or of an attempt before it,
    could not take it along.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log_file: Path,
        scratch: Path,
        grace_s: float = 5.0,
    ) -> None:
        self._command = command
        self._environment = environment
        self._log_file = log_file
        self._log_start = 0
        self._scratch = scratch
        self._grace_s = grace_s
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The guard's process id while it runs."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def start(self) -> None:
        if self.pid is not None:
            raise RuntimeError(f"{self._command[0]} is running already, guard {self.pid}")
        await self._end_strays()
        log = os.open(self._log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._log_start = os.fstat(log).st_size
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(_GUARD), str(self._grace_s), str(self._scratch), *self._command),
                stdin=asyncio.subprocess.PIPE,  # its end tells the guard that we let go
                stdout=log,
                stderr=log,
                env={**self._environment, _MARK: str(self._scratch)},
                cwd=self._log_file.parent,
                start_new_session=True,  # a Ctrl-C in our terminal is for us
            )
        finally:
            os.close(log)

    async def ended_within(self, seconds: float) -> bool:
        """Whether it has ended, after waiting for that at most so long."""
        if self._process is None:
            return True
        try:
            await asyncio.wait_for(self._process.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def last_words(self) -> str:
        """Exit status and the last lines that it wrote since its start."""
        status = self._process.returncode if self._process else None
        return f"exit status {status}, last lines of {self._log_file}:\n{self._tail()}"

    def _tail(self) -> str:
        with self._log_file.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, size - _TAIL_BYTES))
            lines = log.read().decode("utf-8", "replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:])

    async def close(self) -> None:
        """End the whole tree and wait for it. May be called twice."""
        if self._process is None:
            return
        if self._process.stdin:
            self._process.stdin.close()
        await self._process.wait()
        self._process = None
        await self._end_strays()
        await asyncio.to_thread(shutil.rmtree, self._scratch, ignore_errors=True)  # if the guard was killed

    async def _end_strays(self) -> None:
        """Kill what no guard is left to kill, and wait for it. Finds nothing after an ordinary end."""
        mark = f"{_MARK}={self._scratch}".encode()
        strays: list[int] = []
        try:
            async with asyncio.timeout(self._grace_s):
                while strays := await asyncio.to_thread(_carrying, mark):
                    _kill(strays)
                    await asyncio.sleep(_TICK_S)
        except TimeoutError:
            raise EngineUnavailable(f"processes {strays} of an engine do not end, kill them by hand") from None


def _kill(pids: Sequence[int]) -> None:
    """All but resource trackers, which still have the shared memory of the others to remove."""
    for pid in pids:
        if not guard.is_tracker(pid):
            with suppress(ProcessLookupError):  # it ended by itself meanwhile
                os.kill(pid, signal.SIGKILL)


def _carrying(mark: bytes) -> list[int]:
    """Our processes with ``mark`` in their environment. A zombie's environment is empty."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # it ended while we looked, or is another user's
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found
