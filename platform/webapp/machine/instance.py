"""One `up` for one ``var/``: a lock that the kernel drops when its holder dies, and the holder's process id in it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from webapp.config.paths import Var, ensure_private


class AlreadyRunning(Exception):
    """Another `up` holds this ``var/``; the message names it."""


@contextmanager
def the_only_one(var: Var) -> Iterator[None]:
    """Hold the lock for as long as the block lasts. Raises ``AlreadyRunning`` and ``UnsafeFolder``."""
    ensure_private(var.path)
    descriptor = os.open(var.path / "up.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not _take(descriptor, fcntl.LOCK_EX):
            raise AlreadyRunning(
                f"Starloom already runs on {var.path}, process {_pid(descriptor)}: `make stop` ends it, "
                "another STARLOOM_VAR makes a second one"
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
        yield
    finally:
        os.close(descriptor)


def holder(var: Var) -> int | None:
    """Process id of the `up` that runs on this ``var/``."""
    try:
        descriptor = os.open(var.path / "up.lock", os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return None if _take(descriptor, fcntl.LOCK_SH) else _pid(descriptor)
    finally:
        os.close(descriptor)


def _take(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pid(descriptor: int) -> int | None:
    text = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
    return int(text) if text.isdigit() else None
