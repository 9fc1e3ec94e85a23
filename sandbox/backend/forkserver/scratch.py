"""Folders for the programs of the container tier, which cannot mount a file system of their own.

One root per node below the temp folder ($TMPDIR decides where), named after its process and locked for as long as that
lives, so that what a killed node left is swept by the next one. A program's child makes its folder itself; here are
only the names and the removal. There is no quota but the size of each file: put $TMPDIR on a volume that has one.
"""

import asyncio
import fcntl
import itertools
import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "starloom-scratch-"


class ScratchRoot:
    """This node's folder of scratch folders."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls) -> "ScratchRoot":
        """Sweep what dead nodes left, then make our own. Raises `OSError`."""
        for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            if left.lstat().st_uid == os.geteuid() and (lock := _locked(left)) is not None:
                cls(left, lock)._remove()
        while True:
            path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
            if (lock := _locked(path)) is not None:
                return cls(path, lock)  # else a node that started just now took it for a dead one's

    def fresh(self) -> str:
        """Where the next program may make its folder: a path that no other program can guess."""
        return f"{self.path}/{secrets.token_hex(16)}"

    async def clear(self, path: str) -> None:
        """Remove a folder that `fresh` named, if it was made. Its program must be dead. Raises `OSError`."""
        try:
            with suppress(FileNotFoundError):
                os.rmdir(path)  # most programs leave nothing
        except OSError:
            await asyncio.to_thread(remove, Path(path))

    async def close(self) -> None:
        """Remove everything. May be called twice."""
        if self._lock >= 0:
            await asyncio.to_thread(self._remove)

    def _remove(self) -> None:
        for folder in self.path.iterdir():
            remove(folder)
        self.path.rmdir()
        os.close(self._lock)
        self._lock = -1


def _locked(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock; None if somebody else holds it, or the folder is gone."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_nlink:  # else it was removed between the two
            return fd
    except BlockingIOError:
        pass
    os.close(fd)
    return None


def remove(folder: Path) -> None:
    """Remove a folder that a hostile program filled: nested deeper than a path may be long, closed to its owner.

    Inner folders are moved out beside `folder` one level at a time, so no path grows. Raises `OSError`.
    """
    moved = (f"{folder}.{number}" for number in itertools.count())
    waiting = [str(folder)]
    while waiting:
        path = waiting.pop()
        os.chmod(path, 0o700)
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    os.chmod(entry.path, 0o700)  # a closed folder cannot be moved
                    os.rename(entry.path, beside := next(moved))
                    waiting.append(beside)
                else:
                    os.unlink(entry.path)
        os.rmdir(path)
