"""Finds out what this machine lets a process do to itself, by doing it in throw-away children.

`tiers` runs it under the programs' interpreter. Prints one JSON object: finding -> "" if it works, else what the kernel
said. Standard library only; what the findings mean is said in `tiers`.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from typing import NoReturn

from sandbox.backend.forkserver import container, jail, landlock, lockdown, seccomp
from sandbox.backend.forkserver import syscalls as sys_

_AS_ROOT = os.geteuid() == 0
_NAMESPACES = {
    "mount namespace": sys_.NEWNS,
    "pid namespace": sys_.NEWPID,
    "network namespace": sys_.NEWNET,
    "ipc namespace": sys_.NEWIPC,
    "uts namespace": sys_.NEWUTS,
}


def main() -> None:
    """Print the findings."""
    trials: dict[str, Callable[[], object]] = {
        "user namespace": lambda: sys_.unshare(sys_.NEWUSER),
        **{name: _namespace(kind) for name, kind in _NAMESPACES.items()},
        "read-only root": _root,
        "private /proc": _proc,
        "scratch with a quota": _quota,
        "system-call filter": _filter,
        "landlock": _landlock,
        "files of its own": _files,
    }
    json.dump({name: _try(trial) for name, trial in trials.items()}, sys.stdout)


def _try(trial: Callable[[], object]) -> str:
    """Run `trial` in a child; what went wrong, or nothing."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        _be_child(trial, write)
    os.close(write)
    with open(read) as pipe:
        complaint = pipe.read()
    _, status = os.waitpid(child, 0)
    return complaint or (f"ended with {os.waitstatus_to_exitcode(status)}" if status else "")


def _be_child(trial: Callable[[], object], report: int) -> NoReturn:
    try:
        trial()
    except BaseException as error:  # whatever it was, it is the finding
        os.write(report, str(error).encode())
    os._exit(0)


def _with_rights() -> None:
    if not _AS_ROOT:
        lockdown.map_own_ids(inside=0)


def _namespace(kind: int) -> Callable[[], None]:
    def trial() -> None:
        _with_rights()
        sys_.unshare(kind)

    return trial


def _root() -> None:
    _with_rights()
    sys_.unshare(sys_.NEWNS)
    jail.enter_root()


def _proc() -> None:
    _root()
    if _AS_ROOT:
        sys_.unshare(sys_.NEWUSER)  # where it is mounted in earnest, and where a runtime that masks /proc shows
    sys_.unshare(sys_.NEWPID | sys_.NEWNS)
    if complaint := _try(jail.mount_proc):
        raise OSError(complaint)


def _quota() -> None:
    _with_rights()
    sys_.unshare(sys_.NEWNS)
    sys_.mount("", "/", flags=sys_.REC | sys_.PRIVATE)
    sys_.mount("tmpfs", "/tmp", "tmpfs", sys_.NOSUID | sys_.NODEV, "size=65536,nr_inodes=8")


def _filter() -> None:
    sys_.forbid_new_privileges()
    sys_.install_filter(seccomp.shipped())


def _landlock() -> None:
    if (version := landlock.abi()) < container.LEAST_ABI:
        raise OSError(f"version {version}, at least {container.LEAST_ABI} is needed")


def _files() -> None:
    """A child that gave up everything can use its folder and nothing beside it."""
    with tempfile.TemporaryDirectory() as folder:
        if complaint := _try(lambda: _confined(folder)):
            raise OSError(complaint)


def _confined(folder: str) -> None:
    container.confine(folder, seccomp.shipped())
    with open(f"{folder}/file", "w") as file:
        file.write("x")
    try:
        os.listdir("/etc")
    except PermissionError:
        return
    raise OSError("Landlock is there and keeps nothing away")
