"""Turns a fresh fork of the zygote into a process that may run hostile code. Runs before any of that code.

The order matters: rights are used first (cgroup, mounts), given up next (ids, capabilities), and the
system-call filter, which forbids most of these steps, comes last. All of it is one table of system calls, by their
numbers on x86-64, that only has to be filled in for each child. What depends on the program's request is set when that
has come, by `limit`: ceilings can be lowered without any right.
"""

import ctypes
import os
import random
import resource
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandbox.backend.forkserver import syscalls as sys_
from sandbox.backend.forkserver.jail import SCRATCH
from sandbox.backend.forkserver.syscall_table import Step, Table
from sandbox.backend.forkserver.wire import Assignment, SpawnOrder

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": SCRATCH,
    "TMPDIR": SCRATCH,
    "LANG": "C.UTF-8",
    "MPLBACKEND": "Agg",
    # One thread each: many programs share the cores, and a zygote with threads could not fork.
    **{f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "BLIS")},
}
CONTROL = 3  # where a locked-down child finds its control socket
_OPEN_FILES = 1024


@dataclass(frozen=True)
class Descriptors:
    """What a child is born with."""

    control: int  # its assignment comes here; closed before a program runs, so that none can write there
    stdin: int
    stdout: int
    stderr: int
    join: tuple[int, ...]  # membership files of its cgroups


def _rlimit(kind: int, value: int) -> tuple[int | bytes, ...]:
    return 0, kind, struct.pack("=QQ", value, value), 0


_WRITE, _GETPID = 1, 39
_JOIN = ("join the first cgroup", "join the second cgroup")
_MOUNTS = (
    Step("start a session of processes", 112),
    Step("make a mount namespace", 272, (sys_.NEWNS,)),
    Step("mount a private /proc", 165, (b"proc", b"/proc", b"proc", sys_.NOSUID | sys_.NODEV | sys_.NOEXEC, 0)),
)
_ENTER_SCRATCH = Step("enter the scratch folder", 80, (SCRATCH.encode(),))
_DESCRIPTORS = (
    Step("move stdin", 33, (-1, 0)),
    Step("move stdout", 33, (-1, 1)),
    Step("move stderr", 33, (-1, 2)),
    Step("move the control socket", 292, (-1, CONTROL, os.O_CLOEXEC)),
    Step("close all other descriptors", 436, (CONTROL + 1, 0x7FFFFFFF, 0)),
)
_USER = (
    Step("drop groups", 116, (0, 0)),
    Step("change the group id", 119),
    Step("change the user id", 117),
)
_CAPABILITIES = (
    Step("drop ambient capabilities", 157, (47, 4, 0, 0, 0)),
    Step("drop capabilities", 126, (struct.pack("=II", 0x20080522, 0), bytes(24))),
    # Else its own /proc/self is closed to the program; no other process is in sight.
    Step("be dumpable", 157, (4, 1, 0, 0, 0)),
)
_LIMITS = (
    Step("limit core dumps", 302, _rlimit(resource.RLIMIT_CORE, 1)),  # unlike 0, this also keeps handlers away
    Step("limit message queues", 302, _rlimit(resource.RLIMIT_MSGQUEUE, 0)),
    Step("limit open files", 302, _rlimit(resource.RLIMIT_NOFILE, _OPEN_FILES)),
)


class LockDown:
    """Makes children safe to run hostile code; one for each zygote.

    Afterwards the standard streams are on 0 to 2, the control socket on 3, and nothing else is open.
    """

    def __init__(self, seccomp_filter: bytes, mapped_ids: bool) -> None:
        self._mapped_ids = mapped_ids
        self._quota = ctypes.create_string_buffer(100)
        self._file_size = (ctypes.c_uint64 * 2)()
        self._myself = ctypes.create_string_buffer(b"0")  # how a process calls itself when it joins a cgroup
        self._filter = ctypes.create_string_buffer(seccomp_filter, len(seccomp_filter))
        scratch = (b"tmpfs", SCRATCH.encode(), b"tmpfs", sys_.NOSUID | sys_.NODEV, ctypes.addressof(self._quota))
        program = struct.pack("=HxxxxxxQ", len(seccomp_filter) // 8, ctypes.addressof(self._filter))
        self._table = Table(
            [
                *(Step(name, _GETPID) for name in _JOIN),  # before anything is allocated on the program's account
                *_MOUNTS,
                Step("mount the scratch folder", 165, scratch),
                _ENTER_SCRATCH,
                *_DESCRIPTORS,
                *(_USER if mapped_ids else _user_namespace(inside=1000)),
                *_CAPABILITIES,
                *_LIMITS,  # in a user namespace, or all of its kind would share one count
                Step("limit the size of files", 302, (0, resource.RLIMIT_FSIZE, ctypes.addressof(self._file_size), 0)),
                Step("forbid new privileges", 157, (38, 1, 0, 0, 0)),
                Step("filter system calls", 157, (22, 2, program, 0, 0)),
            ]
        )

    def plan(self, order: SpawnOrder, fds: Descriptors) -> Callable[[], None]:
        """What the child that is forked next has to do: see `spare.Plan`. Called before the fork."""
        table = self._table
        for name, fd in zip(_JOIN, fds.join, strict=False):
            table.replace(name, _WRITE, fd, ctypes.addressof(self._myself), 1)
        for step, fd in zip(_DESCRIPTORS, (fds.stdin, fds.stdout, fds.stderr, fds.control), strict=False):
            table.set(step.name, fd)
        self._quota.value = b"size=%d,nr_inodes=%d,mode=1777" % (order.scratch_bytes, order.scratch_inodes)
        self._file_size[:] = [order.scratch_bytes, order.scratch_bytes]
        if self._mapped_ids:
            table.set("change the group id", order.uid, order.uid, order.uid)
            table.set("change the user id", order.uid, order.uid, order.uid)
        return self._lock_down

    def _lock_down(self) -> None:
        self._table.run()
        reseed()


def _user_namespace(inside: int) -> list[Step]:
    """A user namespace in which our one id, of whatever user started us, is called `inside`."""
    steps = [Step("make a user namespace", 272, (sys_.NEWUSER,))]
    for path, text in _id_maps(inside):
        steps += [
            Step(f"open {path}", 2, (path.encode(), os.O_WRONLY)),
            Step(f"write {path}", _WRITE, (CONTROL + 1, text.encode(), len(text))),  # the lowest free descriptor
            Step(f"close {path}", 3, (CONTROL + 1,)),
        ]
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    return [*steps, *(Step(f"forbid capability {each}", 157, (24, each, 0, 0, 0)) for each in range(last + 1))]


def map_own_ids(inside: int) -> None:
    """Enter a user namespace in which our one id, of whatever user started us, is called `inside`."""
    maps = _id_maps(inside)  # before the change: after it we are nobody
    sys_.unshare(sys_.NEWUSER)
    for path, text in maps:
        Path(path).write_text(text)


def _id_maps(inside: int) -> tuple[tuple[str, str], ...]:
    return (
        ("/proc/self/setgroups", "deny"),
        ("/proc/self/uid_map", f"{inside} {os.geteuid()} 1"),
        ("/proc/self/gid_map", f"{inside} {os.getegid()} 1"),
    )


def own_descriptors(fds: Descriptors) -> None:
    """Move the streams and the control socket, which lie above them, to their places; close all else."""
    table = Table(_DESCRIPTORS)
    for step, fd in zip(_DESCRIPTORS, (fds.stdin, fds.stdout, fds.stderr, fds.control), strict=False):
        table.set(step.name, fd)
    table.run()


def fixed_limits(scratch_bytes: int) -> None:
    """Set the ceilings that are the same for every request that this child may get."""
    Table([*_LIMITS, Step("limit the size of files", 302, _rlimit(resource.RLIMIT_FSIZE, scratch_bytes))]).run()


def limit(assignment: Assignment, mapped_bytes: int) -> None:
    """Set the ceilings of one request."""
    if assignment.cpu_s:
        _lower(resource.RLIMIT_CPU, assignment.cpu_s)
    if assignment.address_space_bytes:
        _lower(resource.RLIMIT_AS, mapped_bytes + assignment.address_space_bytes)
    if assignment.processes:
        _lower(resource.RLIMIT_NPROC, assignment.processes)


def _lower(kind: int, value: int) -> None:
    resource.setrlimit(kind, (value, value))


def reseed() -> None:
    """Generators made in the zygote would give every call the same numbers."""
    random.seed()
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()
    if sympy_random := sys.modules.get("sympy.core.random"):
        sympy_random.seed()
