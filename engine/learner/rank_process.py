"""One learner rank as its controller sees it: a process, the connection to it, its end.

Connected by a socket pair that only the two of them hold, so the end of one is told to the other by the kernel, at
once and however it came about. Leaves out what is asked and how several ranks belong together: ``ranks.py``.
"""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from engine.learner.rank_messages import Answer, LearnerFailed, decoded

END_S = 10.0
"""Seconds that a rank may take for its way out: after it let go of the connection, or was told to close."""
_TAIL_BYTES = 4096
_TAIL_LINES = 15
_STDERR = 2

Key = tuple[int, bool]
"""A call's number, and whether its second answer (``written``) is meant."""


class RankProcess:
    """Starts ``command FD`` with its end of the connection as file descriptor FD.

    Output goes to the end of ``log_file``, to our standard error without one. Every question is a future, which fails
    with ``LearnerFailed`` when the process ends; ``on_end`` is called, on a thread of ours, just before.
    """

    def __init__(
        self,
        rank: int,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log_file: Path | None,
        on_end: Callable[["RankProcess"], None],
    ) -> None:
        self.rank = rank
        self._on_end = on_end
        self._log_file = log_file
        self._log_start = log_file.stat().st_size if log_file and log_file.exists() else 0
        self._waiting: dict[Key, Future[Any]] = {}
        self._lock = threading.Lock()  # over _waiting and _is_over
        self._is_over = False
        self._line, self._process = self._start(command, environment)
        self._reader = threading.Thread(target=self._read, name=f"learner-rank-{rank}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _start(
        self, command: Sequence[str], environment: Mapping[str, str]
    ) -> tuple[Connection, "subprocess.Popen[bytes]"]:
        """In a session of its own: a Ctrl-C in our terminal is for us, and what it starts can be ended with it."""
        ours, theirs = Pipe()
        with theirs, ExitStack() as stack:
            output: Any = _STDERR
            if self._log_file is not None:
                output = stack.enter_context(open(self._log_file, "ab", opener=_owner_only))
            process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        return ours, process

    def expect(self, number: int, *, written: bool = False) -> "Future[Any]":
        """The future of a call's answer, or of its second one. To be had before the call is sent."""
        answer: Future[Any] = Future()
        with self._lock:
            if self._is_over:
                answer.set_exception(LearnerFailed(self.last_words()))
            else:
                self._waiting[number, written] = answer
        return answer

    def send(self, data: bytes) -> None:
        """Send a call. If the process has ended, what is expected of it fails: the reader sees it too."""
        with suppress(OSError):
            self._line.send_bytes(data)

    # --- its end ---

    def kill(self) -> None:
        """End it and what it started, whatever it is doing."""
        with self._lock:
            if not self._is_over:
                self._kill_group()

    def end(self, seconds: float = END_S) -> None:
        """Wait for its end, at most so long, then end it by force. May be called again."""
        self._reader.join(seconds)
        if self._reader.is_alive():
            self.kill()
            self._reader.join()

    def last_words(self) -> str:
        """How it ended, and the last lines that it wrote."""
        status = self._process.returncode
        how = f"ended with exit status {status}" if status >= 0 else f"was ended by {signal.Signals(-status).name}"
        hint = " (a kernel without memory left does this)" if status == -signal.SIGKILL else ""
        return f"learner rank {self.rank} {how}{hint}{self.tail()}"

    def tail(self) -> str:
        """The last lines that it wrote since its start, for a message; empty where they went to our own output."""
        if self._log_file is None:
            return ""
        with self._log_file.open("rb") as log:
            log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = log.read().decode("utf-8", "replace").splitlines()
        return "\n".join([f", last lines of {self._log_file}:", *lines[-_TAIL_LINES:]])

    def _read(self) -> None:
        try:
            while True:
                self._settle(decoded(self._line.recv_bytes()))
        except (EOFError, OSError):  # the kernel's word that it is gone
            return
        finally:
            self._reap()
            self._on_end(self)
            for answer in self._waiting.values():  # nothing is added any more
                answer.set_exception(LearnerFailed(self.last_words()))

    def _settle(self, message: Answer) -> None:
        with self._lock:
            answer = self._waiting.pop((message.number, message.written))
        if message.failure is None:
            answer.set_result(message.value)
        else:
            answer.set_exception(message.failure.error(self.rank))

    def _reap(self) -> None:
        """Take along what it started, before its number is given back: until then no other group can have it."""
        deadline = threading.Timer(END_S, self.kill)
        deadline.start()
        with suppress(ChildProcessError):  # somebody else has reaped it
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        deadline.cancel()
        with self._lock:
            self._kill_group()
            self._process.wait()
            self._is_over = True
        self._line.close()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError):  # none is left, and somebody else has reaped it
            os.killpg(self._process.pid, signal.SIGKILL)


def _owner_only(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
