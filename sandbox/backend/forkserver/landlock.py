"""Landlock, the kernel's file rules that a process without any rights may put on itself: three thin system calls.

What may be touched is decided in `container`; format: linux/landlock.h. Runs under the programs' interpreter.
"""

import ctypes
import os
import struct

READ_FILE, READ_DIR = 1 << 2, 1 << 3
WRITE_FILE, TRUNCATE = 1 << 1, 1 << 14
_EXECUTE, _IOCTL_OF_DEVICES = 1 << 0, 1 << 15
_MAKE_CHARACTER_DEVICE, _MAKE_SOCKET, _MAKE_BLOCK_DEVICE = 1 << 6, 1 << 9, 1 << 11
_FILE_RIGHTS = READ_FILE | WRITE_FILE | TRUNCATE | _EXECUTE  # the others make sense on folders only
_SCOPES = 0b11  # abstract unix sockets, signals
_SCOPES_SINCE = 6
# ABI -> (number of file rights that it knows, bytes of struct landlock_ruleset_attr)
_SHAPES = {1: (13, 8), 2: (14, 8), 3: (15, 8), 4: (15, 16), 5: (16, 16), 6: (16, 24)}

_SYS_CREATE_RULESET, _SYS_ADD_RULE, _SYS_RESTRICT_SELF = 444, 445, 446
_ASK_VERSION, _RULE_BELOW_PATH = 1, 1

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"{what}: {os.strerror(errno)}")
    return result


def abi() -> int:
    """Version that the kernel offers; 0: none, or switched off at boot."""
    return max(0, int(_libc.syscall(_SYS_CREATE_RULESET, None, 0, _ASK_VERSION)))


def everything(version: int) -> int:
    """All file rights that version `version` can take away."""
    rights, _ = _shape(version)
    return (1 << rights) - 1


def own_folder(version: int) -> int:
    """Everything that makes sense in a scratch folder: not running programs, nor device and socket files."""
    no = _EXECUTE | _MAKE_CHARACTER_DEVICE | _MAKE_BLOCK_DEVICE | _MAKE_SOCKET | _IOCTL_OF_DEVICES
    return everything(version) & ~no


def restrict(allowed: dict[str, int], version: int) -> None:
    """From now on, and for all that this process starts: of the file system only `allowed`, path -> rights below it.

    From ABI 6 on, signals and abstract unix sockets no longer reach processes outside either. A path that does not
    exist is left out. Needs `syscalls.forbid_new_privileges` first. Raises `OSError`.
    """
    _, size = _shape(version)
    attributes = struct.pack("=QQQ", everything(version), 0, _SCOPES if version >= _SCOPES_SINCE else 0)
    ruleset = _check(_libc.syscall(_SYS_CREATE_RULESET, attributes, size, 0), "landlock_create_ruleset")
    try:
        for path, rights in allowed.items():
            _allow(ruleset, path, rights)
        _check(_libc.syscall(_SYS_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    finally:
        os.close(ruleset)


def _shape(version: int) -> tuple[int, int]:
    return _SHAPES[min(version, max(_SHAPES))]


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        rule = struct.pack("=Qi", rights if os.path.isdir(path) else rights & _FILE_RIGHTS, fd)
        _check(_libc.syscall(_SYS_ADD_RULE, ruleset, _RULE_BELOW_PATH, rule, 0), f"landlock_add_rule {path}")
    finally:
        os.close(fd)
