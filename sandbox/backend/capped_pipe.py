"""Reading a program's output without ever waiting for it, and handing it data. Knows nothing of processes."""

import asyncio
import fcntl
import os
from collections.abc import Callable

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_CHUNK = 65536  # a pipe's capacity


class CappedPipe:
    """Collects what arrives on a new pipe, up to `cap` bytes; more than that calls `overflow`.

    `write_fd` is the end for the program; `close_write_end` as soon as it has been handed over.
    """

    def __init__(self, cap: int, overflow: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._cap, self._overflow = cap, overflow
        self._data = bytearray()
        self._read_fd, self.write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        self._loop.add_reader(self._read_fd, self._take)

    def close_write_end(self) -> None:
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def finish(self) -> bytes:
        """Take what is still in the pipe, close both ends, and return everything."""
        self.close_write_end()
        while self._read_fd >= 0 and self._take():
            pass
        self._close()
        return bytes(self._data)

    def _take(self) -> bool:
        """True if there may be more. One read at a time, so that a flood cannot hold up the event loop."""
        try:
            chunk = os.read(self._read_fd, _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._close()
            return False
        room = self._cap - len(self._data)
        self._data += chunk[:room]
        if len(chunk) > room:
            self._close()  # the program gets EPIPE until it is killed
            self._overflow()
        return self._read_fd >= 0

    def _close(self) -> None:
        if self._read_fd >= 0:
            self._loop.remove_reader(self._read_fd)
            os.close(self._read_fd)
            self._read_fd = -1


def sealed_memory(data: bytes) -> int:
    """A descriptor that reads `data`, then end of file, and that nobody can write to."""
    fd = os.memfd_create("starloom", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with os.fdopen(fd, "wb", closefd=False) as file:
            file.write(data)
        os.lseek(fd, 0, os.SEEK_SET)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd
