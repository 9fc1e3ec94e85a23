"""Processes of this machine: who is who (a process id alone is reused), last words, ends that leave nothing.

Leaves out what the processes are: servers, parts of the platform, engines.
"""

import os
import signal
import socket
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from webapp.machine import tether

_TAIL_BYTES = 8192


def tethered(command: Sequence[str], at_our_death: signal.Signals = signal.SIGTERM) -> list[str]:
    """``command``, told by a signal when this process dies. To be started by a thread that lives as long as we do."""
    return [sys.executable, "-I", "-S", tether.__file__, str(int(at_our_death)), str(os.getpid()), *command]


def started_at(pid: int) -> int | None:
    """When the process was started, in clock ticks since boot: with the id, its identity. None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def tail(log: Path, *, since: int = 0, lines: int = 12) -> str:
    """The last lines that were written to ``log`` after byte ``since``; empty when there are none."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(since if since <= size else 0, size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def in_folder(name: str, folder: Path) -> list[psutil.Process]:
    """Processes called ``name`` whose working folder is ``folder``: how a server is known by its data."""
    found = []
    for process in psutil.process_iter(["name"]):
        with suppress(psutil.Error):  # it ended while we looked, or is another user's
            if process.info["name"] == name and process.cwd() == str(folder):
                found.append(process)
    return found


def end(processes: Iterable[psutil.Process], how: signal.Signals, seconds: float) -> None:
    """Ask each to end by a signal, wait for all, kill those that are left."""
    asked = list(processes)
    for process in asked:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(how)
    _, alive = psutil.wait_procs(asked, timeout=seconds)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=5)


def answers(path: Path) -> bool:
    """Whether somebody listens at a unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(1)
        return connection.connect_ex(str(path)) == 0
