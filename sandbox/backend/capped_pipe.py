"""Reading a program's output without ever waiting for it, and handing it data. Knows nothing of processes."""

import asyncio
import fcntl
import os
import sys
import termios
from collections.abc import Callable

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_CHUNK = 65536  # a pipe's capacity
_INT = bytes(4)
QUICK_S = 0.002
"""Most programs are over sooner and wrote less than a pipe holds: until then `watch` is not worth its cost."""


class CappedPipe:
    """Collects what arrives on the pipe `fd` from now until `finish`, up to `cap` bytes; more calls `overflow`.

    What lies in the pipe already was written before, by a thread of an earlier cell say: it is nobody's, and dropped.
    The pipe is left to fill until `watch`.
    """

    def __init__(self, fd: int, cap: int, overflow: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd, self._cap, self._overflow = fd, cap, overflow
        self._data = bytearray()
        self._watched = False
        if waiting := _waiting(fd):
            os.read(fd, waiting)

    def watch(self) -> None:
        """Read whatever comes, as it comes. To be called after `QUICK_S` at the latest."""
        self._watched = True
        self._loop.add_reader(self._fd, self._take, _CHUNK)

    def finish(self) -> bytes:
        """Everything that was written until now."""
        if waiting := _waiting(self._fd):  # no more than that: a thread may go on writing as fast as we read
            self._take(waiting)
        if self._watched:
            self._loop.remove_reader(self._fd)
        return bytes(self._data)

    def _take(self, most: int) -> None:
        chunk = os.read(self._fd, most)
        room = self._cap - len(self._data)
        self._data += chunk[:room]
        if len(chunk) > room:
            self._overflow()
        if self._watched and (len(chunk) > room or not chunk):
            self._loop.remove_reader(self._fd)  # it ended, or will be killed: the pipe fills and it waits


def _waiting(fd: int) -> int:
    """Bytes in the pipe."""
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, _INT), sys.byteorder)


def open_pipe() -> tuple[int, int]:
    """A read end for a `CappedPipe`, and the write end for a program."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    return read_end, write_end


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
