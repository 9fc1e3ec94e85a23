"""The kernel calls that the jail needs and Python 3.11 lacks, as thin ctypes wrappers. No policy here.

Every function raises `OSError` with the kernel's errno. Runs under the programs' interpreter.
"""

import ctypes
import os
import struct

NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
NAMESPACE_FLAGS = NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET | 0x80  # 0x80 is NEWTIME

RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT = 0x1, 0x2, 0x4, 0x8, 0x20
BIND, REC, PRIVATE, NOATIME, NODIRATIME, RELATIME = 0x1000, 0x4000, 0x40000, 0x400, 0x800, 0x200000

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 1, 4, 22, 24
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, _SECCOMP_MODE_FILTER = 38, 47, 4, 2
_SYS_CAPSET, _SYS_PIVOT_ROOT = 126, 155  # x86-64
_MADV_COLLAPSE = 25
_CAPABILITY_VERSION_3, _CAPABILITIES = 0x20080522, 64

_libc = ctypes.CDLL(None, use_errno=True)
_bare_fork = getattr(ctypes.PyDLL(None, use_errno=True), "_Fork", None)  # PyDLL: the interpreter's lock stays held


def _check(result: int, what: str) -> None:
    if result < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"{what}: {os.strerror(errno)}")


def fork() -> int:
    """fork(2) for a process of one thread, without the at-fork hooks of Python and of libraries.

    Those repair locks that other threads held, of which there are none, and dirty a hundred pages at each fork. The
    child must reseed what generates random numbers.
    """
    if _bare_fork is None:  # a libc older than 2022
        return os.fork()
    child: int = _bare_fork()
    _check(child, "fork")
    return child


def collapse(start: int, length: int) -> bool:
    """Have the kernel back this memory by huge pages; False where it will not."""
    return not _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _MADV_COLLAPSE)


def unshare(flags: int) -> None:
    """Leave the namespaces in `flags`; for NEWPID only children to come are meant."""
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def enter_namespace(fd: int, kind: int) -> None:
    """Join the namespace open on `fd`."""
    _check(_libc.setns(fd, kind), "setns")


def mount(source: str, target: str, fstype: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2); empty strings stand for NULL."""
    args = [part.encode() if part else None for part in (source, target, fstype)]
    _check(
        _libc.mount(*args, ctypes.c_ulong(flags), options.encode() or None),
        f"mount {fstype or 'bind'} {target}",
    )


def pivot_to_cwd() -> None:
    """Make the working directory the root and let the old root go (pivot_root(2), "." "." idiom)."""
    _check(_libc.syscall(_SYS_PIVOT_ROOT, b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", 2), "umount of the old root")
    os.chdir("/")


def die_with_parent() -> None:
    """Get SIGKILL when the parent goes. The kernel forgets this at every change of credentials."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0), "prctl(PDEATHSIG)")


def set_dumpable(yes: bool) -> None:
    """Let processes of the same user read this one's /proc files, or not."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, int(yes), 0, 0, 0), "prctl(DUMPABLE)")


def forbid_new_privileges() -> None:
    """No execve gives more rights from now on."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(NO_NEW_PRIVS)")


def empty_bounding_set() -> None:
    """No descendant can ever regain a capability through execve."""
    for capability in range(_CAPABILITIES):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break  # EINVAL: the kernel knows no further capability


def drop_capabilities() -> None:
    """Give up every capability, ambient ones included."""
    _check(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "prctl(CAP_AMBIENT)")
    header = struct.pack("=II", _CAPABILITY_VERSION_3, 0)
    _check(_libc.syscall(_SYS_CAPSET, header, bytes(24)), "capset")


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install_filter(program: bytes) -> None:
    """Load a seccomp program (see `seccomp.build`) for this thread and all that it starts."""
    loaded = _FilterProgram(len(program) // 8, program)
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(loaded), 0, 0), "prctl(SECCOMP)")
