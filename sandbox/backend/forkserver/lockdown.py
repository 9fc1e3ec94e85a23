"""Turns a fresh fork of the zygote into a process that may run hostile code. Runs before any of that code.

The order matters: rights are used first (cgroup, mounts), given up next (ids, capabilities), and the
system-call filter, which forbids most of these steps, comes last.
"""

import os
import random
import resource
import signal
import sys
from dataclasses import dataclass

from sandbox.backend.forkserver import syscalls as sys_
from sandbox.backend.forkserver.jail import SCRATCH, mount_proc
from sandbox.backend.forkserver.wire import SpawnOrder

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": SCRATCH,
    "TMPDIR": SCRATCH,
    "LANG": "C.UTF-8",
    "MPLBACKEND": "Agg",
    # One thread each: many programs share the cores, and a zygote with threads could not fork.
    **{f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "BLIS")},
}
_OPEN_FILES = 1024


@dataclass(frozen=True)
class Descriptors:
    """What the supervisor hands over with a `SpawnOrder`, in this order."""

    code: int
    stdin: int
    stdout: int
    stderr: int
    report: int  # our failures before the program starts; closed by then, so that it cannot write there
    join: tuple[int, ...]  # membership files of the call's cgroups

    @classmethod
    def of(cls, fds: list[int]) -> "Descriptors":
        code, stdin, stdout, stderr, report, *join = fds
        return cls(code, stdin, stdout, stderr, report, tuple(join))


def lock_down(order: SpawnOrder, fds: Descriptors, seccomp_filter: bytes, mapped_bytes: int) -> tuple[bytes, int]:
    """Returns the program's source and the report descriptor, which the caller must close."""
    for fd in fds.join:
        os.write(fd, b"0")  # before anything is allocated on the program's account
    os.setsid()
    _own_mounts(order)
    source = os.pread(fds.code, os.fstat(fds.code).st_size, 0)
    report = _own_descriptors(fds)
    os.environ.clear()
    os.environ.update(ENVIRONMENT)
    _own_user(order.uid)
    _limit(order, mapped_bytes)  # after the user namespace, or all of its kind would share one count
    _reseed()
    sys_.forbid_new_privileges()
    sys_.install_filter(seccomp_filter)
    return source, report


def _own_mounts(order: SpawnOrder) -> None:
    sys_.unshare(sys_.NEWNS)
    mount_proc()
    quota = f"size={order.scratch_bytes},nr_inodes={order.scratch_inodes},mode=1777"
    sys_.mount("tmpfs", SCRATCH, "tmpfs", sys_.NOSUID | sys_.NODEV, quota)
    os.chdir(SCRATCH)


def _own_descriptors(fds: Descriptors) -> int:
    for source, target in ((fds.stdin, 0), (fds.stdout, 1), (fds.stderr, 2), (fds.report, 3)):
        os.dup2(source, target, inheritable=target < 3)  # sources lie above 2; report is the last to be needed
    sys_.close_from(4)
    return 3


def _own_user(uid: int) -> None:
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    else:
        map_own_ids(inside=1000)
        sys_.empty_bounding_set()
    sys_.drop_capabilities()
    sys_.set_dumpable(True)  # else its own /proc/self is closed to the program; no other process is in sight


def map_own_ids(inside: int) -> None:
    """Enter a user namespace in which our one id, of whatever user started us, is called `inside`."""
    uid, gid = os.geteuid(), os.getegid()
    sys_.unshare(sys_.NEWUSER)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{inside} {uid} 1"),
        ("gid_map", f"{inside} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _limit(order: SpawnOrder, mapped_bytes: int) -> None:
    def ceiling(kind: int, value: int) -> None:
        resource.setrlimit(kind, (value, value))

    ceiling(resource.RLIMIT_CORE, 1)  # unlike 0, this also keeps a core-dump handler from being called
    ceiling(resource.RLIMIT_MSGQUEUE, 0)
    ceiling(resource.RLIMIT_NOFILE, _OPEN_FILES)
    ceiling(resource.RLIMIT_FSIZE, order.scratch_bytes)
    ceiling(resource.RLIMIT_CPU, order.cpu_s)
    if order.address_space_bytes:
        ceiling(resource.RLIMIT_AS, mapped_bytes + order.address_space_bytes)
    if order.processes:
        ceiling(resource.RLIMIT_NPROC, order.processes)


def _reseed() -> None:
    """Generators made in the zygote would give every call the same numbers."""
    signal.set_wakeup_fd(-1)
    random.seed()
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()
    if sympy_random := sys.modules.get("sympy.core.random"):
        sympy_random.seed()
