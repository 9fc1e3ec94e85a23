"""Parent of one server process that takes the whole process tree along when anything dies.

Started as ``python -I -S guard.py GRACE_S SCRATCH COMMAND...`` with a pipe from its owner on standard
input. It runs the command and ends it, and everything that the command started, when

* the pipe is closed: the owner asks for it, or is dead, however it died;
* the owner is dead though somebody else still holds the pipe's other end (it forked);
* it is sent SIGTERM, or the command ends by itself: what that left behind goes too.

Last it removes the folder SCRATCH. It is a subreaper: orphans of the tree become its children, whatever
session they moved to, so none gets away. If the guard itself is killed, the kernel kills the command with
it (PR_SET_PDEATHSIG), and its owner, or the next attempt, kills what is left (``guarded.py``).
Standard library only, since it runs outside of any environment. Leaves out starting and asking the server:
``vllm_engine.py``.
"""

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LOOK_S = 1.0
_TICK_S = 0.05
_FOLLOW_S = 1.0  # for children to follow their parent by themselves
_TRACKER = "multiprocessing.resource_tracker"

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


def _die_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait_for_an_end(command: "subprocess.Popen[bytes]", owner: int) -> None:
    """Return when the owner is gone or lets go, the command has ended, or we are asked to end."""
    wake, poke = os.pipe()
    os.set_blocking(poke, False)
    signal.set_wakeup_fd(poke)
    waiting = [sys.stdin.fileno(), wake]
    while command.poll() is None and os.getppid() == owner:
        ready, _, _ = select.select(waiting, [], [], _LOOK_S)
        if wake in ready and signal.SIGTERM in os.read(wake, 4096):
            return
        if waiting[0] in ready and not os.read(waiting[0], 4096):
            return


def _parents() -> dict[int, int]:
    """Parent of every process that there is, zombies left out."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text(errors="replace")
            except OSError:  # it ended while we looked
                continue
            state, parent = stat.rpartition(")")[2].split()[:2]
            if state != "Z":
                found[int(entry.name)] = int(parent)
    return found


def _descendants() -> set[int]:
    parents = _parents()
    tree: set[int] = {os.getpid()}
    while grown := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= grown
    return tree - {os.getpid()}


def is_tracker(pid: int) -> bool:
    """Whether it is one of Python's resource trackers: they remove the shared memory of the dead, then end."""
    try:
        return _TRACKER.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it ended while we looked
        return False


def _signal_all(pids: set[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _gone_within(seconds: float, *, kill: bool) -> bool:
    """Wait for the tree to be gone.

    With ``kill`` it is killed, all but Python's resource trackers: they delete the shared memory of those who
    died, and end by themselves.
    """
    deadline = time.monotonic() + seconds
    while alive := _descendants():
        if kill:
            _signal_all({pid for pid in alive if not is_tracker(pid)}, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(_TICK_S)
        _reap()
    return True


def _end_tree(command: "subprocess.Popen[bytes]", grace_s: float) -> None:
    """First politely, then by force, then without exception."""
    try:
        command.terminate()
        command.wait(grace_s)
    except subprocess.TimeoutExpired:
        command.kill()
    if _gone_within(_FOLLOW_S, kill=False):
        return
    if not _gone_within(grace_s, kill=True):
        _signal_all(_descendants(), signal.SIGKILL)
        _gone_within(grace_s, kill=True)


def main(arguments: list[str]) -> int:
    """Exit status of the command; 128 + N if signal N ended it."""
    grace_s, scratch, owner = float(arguments[0]), arguments[1], os.getppid()
    # Handlers, not SIG_IGN: that would be inherited by the command. All that they do is wake the wait below.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    command = subprocess.Popen(
        arguments[2:], stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent, restore_signals=True
    )
    _wait_for_an_end(command, owner)
    status = command.poll()
    _end_tree(command, grace_s)
    shutil.rmtree(scratch, ignore_errors=True)  # sockets and temporary files of the dead
    if status is None:
        return 0
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
