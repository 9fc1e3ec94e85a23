"""The file system and the namespaces that a zygote locks itself into, once, before it imports anything else.

The new root is a tmpfs that shows the interpreter and the system's libraries, read-only, under their own
paths, and nothing else of the machine. What differs from call to call is in `lockdown`.
"""

import os
import sys
from pathlib import Path

from sandbox.backend.forkserver import syscalls as sys_

SCRATCH = "/tmp"  # inside of the jail: where each call mounts a tmpfs of its own

_SYSTEM = ("/usr", "/bin", "/lib", "/lib64")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_STAGE = "/tmp"  # exists everywhere; covered in our private mount namespace only
_MOUNT_FLAGS = {
    os.ST_NOSUID: sys_.NOSUID,
    os.ST_NODEV: sys_.NODEV,
    os.ST_NOEXEC: sys_.NOEXEC,
    os.ST_NOATIME: sys_.NOATIME,
    os.ST_NODIRATIME: sys_.NODIRATIME,
    os.ST_RELATIME: sys_.RELATIME,
}


def enter_root() -> None:
    """Replace the root of this (already private) mount namespace by the jail's."""
    os.umask(0o022)  # whatever our starter's is: programs run under other user ids and must find their way
    sys_.mount("", "/", flags=sys_.REC | sys_.PRIVATE)  # nothing that we mount reaches the machine
    sources = {path: os.open(path, os.O_PATH) for path in visible_directories()}
    devices = {f"/dev/{name}": os.open(f"/dev/{name}", os.O_PATH) for name in _DEVICES}
    proc = os.open("/proc", os.O_PATH)
    sys_.mount("tmpfs", _STAGE, "tmpfs", sys_.NOSUID | sys_.NODEV, "size=4m,mode=755")
    for path, fd in sources.items():
        _show_directory(path, fd)
    for path, fd in devices.items():
        _show_device(path, fd)
    _fill_in()
    # A user namespace may mount a /proc of its own only while it sees a whole one.
    sys_.mount(f"/proc/self/fd/{proc}", f"{_STAGE}/proc", flags=sys_.BIND | sys_.REC)
    os.chdir(_STAGE)
    sys_.pivot_to_cwd()
    sys_.mount("", "/", flags=sys_.BIND | sys_.REMOUNT | sys_.RDONLY | sys_.NOSUID | sys_.NODEV)
    for fd in (*sources.values(), *devices.values(), proc):
        os.close(fd)


def mount_proc() -> None:
    """A /proc that shows the processes of our own pid namespace only."""
    sys_.mount("proc", "/proc", "proc", sys_.NOSUID | sys_.NODEV | sys_.NOEXEC)


def visible_directories() -> list[str]:
    """Real directories to show, outer before inner; links like /bin are made anew by `_fill_in`."""
    wanted = [path for path in _SYSTEM if os.path.isdir(path) and not os.path.islink(path)]
    wanted += [sys.prefix, sys.base_prefix, os.path.dirname(os.path.realpath(sys.executable))]
    chosen: list[str] = []
    for path in sorted({os.path.realpath(path) for path in wanted} | {sys.prefix}):
        if not any(Path(path).is_relative_to(outer) for outer in chosen):
            chosen.append(path)
    return chosen


def _show_directory(path: str, fd: int) -> None:
    target = _STAGE + path
    os.makedirs(target, exist_ok=True)
    # Through the descriptor: the stage may cover the path itself.
    sys_.mount(f"/proc/self/fd/{fd}", target, flags=sys_.BIND | sys_.REC)
    _remount(target, sys_.RDONLY | sys_.NOSUID | sys_.NODEV)


def _show_device(path: str, fd: int) -> None:
    target = Path(_STAGE + path)
    target.parent.mkdir(exist_ok=True)
    target.touch()
    sys_.mount(f"/proc/self/fd/{fd}", str(target), flags=sys_.BIND)
    _remount(str(target), sys_.NOSUID | sys_.NOEXEC)


def _remount(target: str, extra: int) -> None:
    """Add flags to a bind mount; those it has must be repeated, or a user namespace gets EPERM."""
    current = os.statvfs(target).f_flag
    kept = sum(flag for bit, flag in _MOUNT_FLAGS.items() if current & bit)
    sys_.mount("", target, flags=sys_.BIND | sys_.REMOUNT | kept | extra)


def _fill_in() -> None:
    """Mount points, links and the few files of /etc that libraries ask for."""
    for name in ("proc", "tmp", "etc", "dev/shm"):
        os.makedirs(f"{_STAGE}/{name}", exist_ok=True)
    for path in _SYSTEM:
        if os.path.islink(path):
            os.symlink(os.readlink(path), _STAGE + path)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"{_STAGE}/dev/{name}")
    os.symlink("/proc/self/fd", f"{_STAGE}/dev/fd")
    Path(f"{_STAGE}/etc/passwd").write_text(f"sandbox:x:65534:65534::{SCRATCH}:/bin/sh\n")
    Path(f"{_STAGE}/etc/group").write_text("sandbox:x:65534:\n")
