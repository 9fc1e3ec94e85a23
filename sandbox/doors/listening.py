"""A unix socket that only its owner reaches, and that one server at a time listens on.

File rights are the whole access control: the socket is 0600, in a folder that nobody else can enter or change.
"""

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LONGEST_PATH = 107  # bytes: what the kernel's sockaddr_un holds
BACKLOG = 4096  # thousands of clients may come at once; beyond it the kernel turns them away


class CannotListen(Exception):
    """The socket cannot be used; the message names it and what mends it."""


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A listening socket at `path`, removed in the end; takes the place of a dead server's. Raises `CannotListen`."""
    path = Path(os.path.abspath(path))
    _require_usable(path)
    with _alone(path):
        _make_room(path)
        listener = _bind(path)
        ours = _identity(path)
    try:
        yield listener
    finally:
        listener.close()
        with suppress(FileNotFoundError):
            if _identity(path) == ours:  # while ours refused calls, the next server may have taken its place
                path.unlink()


def _identity(path: Path) -> tuple[int, int]:
    seen = path.lstat()
    return seen.st_ino, seen.st_ctime_ns  # inode numbers alone are given out again at once


def _require_usable(path: Path) -> None:
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise CannotListen(f"{path} is too long for a socket, {_LONGEST_PATH} bytes at most: use a folder nearer to /")
    try:
        folder = path.parent.stat()
    except OSError as error:
        raise CannotListen(
            f"the folder of {path} cannot be used: {error.strerror}: mkdir -m 700 {path.parent}"
        ) from error
    if folder.st_uid != os.geteuid() or folder.st_mode & 0o077:
        raise CannotListen(
            f"{path.parent} is open to others (owner {folder.st_uid}, mode {stat.S_IMODE(folder.st_mode):04o}): "
            f"use a folder of your own with mode 0700"
        )


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Two servers that start at once must not both find the old socket dead. The file stays: removing it would race."""
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _make_room(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise CannotListen(f"{path} exists and is no socket: name another path")
    if _answers(path):
        raise CannotListen(f"another server listens on {path}: stop it first, or name another path")
    path.unlink()


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a server that is alive but does not accept is alive all the same
        return probe.connect_ex(os.fsencode(path)) != errno.ECONNREFUSED


def _bind(path: Path) -> socket.socket:
    """Listens at once: whoever looks now must not take the socket for a dead server's."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(os.fsencode(path))  # nobody else gets through the folder before the next line
        path.chmod(0o600)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener
