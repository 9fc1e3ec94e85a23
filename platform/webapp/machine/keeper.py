"""Keeps one part running: starts it, sees when it answers, starts it again when it dies, stops it.

Leaves out which parts there are (``parts.py``).
"""

import asyncio
import logging
import os
import shutil
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from webapp.config.paths import ROOT, UnsafeFolder
from webapp.machine.parts import Part, Say
from webapp.machine.postgres import ServerFailed
from webapp.machine.processes import tail, tethered

SHORT_LIFE_S = 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
LOG_BYTES = 20_000_000
_LOOP_AT = 3  # short lives in a row until it is called a loop


_log = logging.getLogger(__name__)


class PartFailed(Exception):
    """A part that does not come up; the message has its last words."""


class Keeper:
    """One part. ``ready`` is set while it answers, ``looping`` while it only ends and ends again."""

    def __init__(self, part: Part, log: Path, say: Say) -> None:
        self.part = part
        self.ready = asyncio.Event()
        self.looping = asyncio.Event()
        self._log = log
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._stopping = False
        self._failures = 0  # short lives in a row
        self._death_told = False
        self._loop_told = True  # whoever starts it waits for it and is told by ``PartFailed``
        self._how = "it does not answer"
        self._log_start = 0

    def start(self) -> None:
        """Begin to keep it; ``until_ready`` has to follow."""
        self._keeping = asyncio.create_task(self._keep(), name=self.part.name)

    async def until_ready(self) -> None:
        """Raises ``PartFailed`` when it does not answer in time, or ends again and again."""
        waiting = [asyncio.create_task(self.ready.wait()), asyncio.create_task(self.looping.wait())]
        try:
            await asyncio.wait(waiting, timeout=self.part.ready_within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
        if not self.ready.is_set():
            raise PartFailed(f"{self.part.title} does not come up ({self._how}). {self._last_words()}")

    async def _keep(self) -> None:
        while True:
            begun = time.monotonic()
            try:
                self._how = await self._live()
                self._failures = self._failures + 1 if time.monotonic() - begun < SHORT_LIFE_S else 1
            except (ServerFailed, UnsafeFolder, OSError) as error:  # said in full: more tries at once change nothing
                self._how = str(error)
                self._failures = max(_LOOP_AT, self._failures + 1)
            except Exception as error:  # a mistake of ours is no reason to leave the part dead
                _log.exception("keeping %s failed", self.part.name)
                self._how = f"{type(error).__name__}: {error}"
                self._failures += 1
            if self._stopping:
                return
            self._tell_of_death()
            await asyncio.sleep(min(FIRST_PAUSE_S * 2 ** min(self._failures - 1, 10), LONGEST_PAUSE_S))

    async def _live(self) -> str:
        """One life of the part, from its start to its end, in words."""
        await asyncio.to_thread(self.part.prepare, self._say)
        self._log_start = trim(self._log)
        self._process = self._spawn()
        ended, probing = end_of(self._process), asyncio.create_task(self._probe())
        try:
            first: list[asyncio.Future[Any]] = [ended, probing]
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if probing.done():
                probing.result()
            code = await ended
        finally:
            probing.cancel()
            self.ready.clear()
            await self._end()
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    def _spawn(self) -> "subprocess.Popen[bytes]":
        """Not by asyncio, whose processes are killed when they are let go; by this thread, whose end is our end."""
        command = self.part.command if self.part.outlives_us else tethered(self.part.command, self.part.stop_signal)
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            return subprocess.Popen(
                command,
                cwd=ROOT,
                env=dict(self.part.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=self.part.inherits,
                start_new_session=True,  # Ctrl-C in our terminal is for us
            )
        finally:
            os.close(log)

    async def _probe(self) -> None:
        """Until it answers."""
        while not await asyncio.to_thread(self.part.is_ready):  # noqa: ASYNC110 - another process has no event
            await asyncio.sleep(0.1)
        self.ready.set()
        if self._death_told:
            self._say(f"{self.part.title}: runs again")
        self._death_told = self._loop_told = False
        self.looping.clear()

    def _tell_of_death(self) -> None:
        """Each death in a line; a loop of them once, with the last words, then nothing until it runs again."""
        if self._failures < _LOOP_AT:
            self._say(f"{self.part.title}: ended ({self._how}), starting it again")
        else:
            self.looping.set()
            if not self._loop_told:
                self._say(f"{self.part.title}: keeps ending ({self._how}), trying on. {self._last_words()}")
            self._loop_told = True
        self._death_told = True

    def _last_words(self) -> str:
        words = tail(self._log, since=self._log_start)
        return f"Last lines of {self._log}:\n{words}" if words else f"Nothing in {self._log}"

    async def stop(self) -> None:
        """Ask it to end, wait, kill it if it does not."""
        self._stopping = True
        await self._end()
        await self._stop_keeping()

    async def let_go(self) -> None:
        """Leave the process running without us."""
        self._stopping = True
        self._process = None
        await self._stop_keeping()

    async def _stop_keeping(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()  # it may be pausing before the next start
            await asyncio.wait([self._keeping])

    async def _end(self) -> None:
        """The process, and what it left of its process group, such as the children of a killed Celery worker."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            ended = end_of(process)
            process.send_signal(self.part.stop_signal)
            await asyncio.wait([ended], timeout=self.part.stop_within_s)
            if not ended.done():
                self._say(f"{self.part.title}: does not end, killing it")
                process.kill()
                await ended
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        self._process = None


def end_of(process: "subprocess.Popen[bytes]") -> "asyncio.Future[int]":
    """The exit code that it will have. Waited for by a thread that nobody waits for."""
    loop = asyncio.get_running_loop()
    end: asyncio.Future[int] = loop.create_future()

    def tell(code: int) -> None:
        if not end.done():
            end.set_result(code)

    def wait() -> None:
        code = process.wait()
        with suppress(RuntimeError):  # the loop is closed: nobody asks any more
            loop.call_soon_threadsafe(tell, code)

    threading.Thread(target=wait, name=f"end of {process.pid}", daemon=True).start()
    return end


def trim(log: Path) -> int:
    """Keep a log from filling the disk: beyond a size its text goes to ``<log>.1``. It is written in append mode, so
    its writer goes on at the new end. Returns the size that it has then."""
    size = log.stat().st_size if log.exists() else 0
    if size > LOG_BYTES:
        shutil.copyfile(log, log.with_name(log.name + ".1"))
        os.truncate(log, 0)
        return 0
    return size
