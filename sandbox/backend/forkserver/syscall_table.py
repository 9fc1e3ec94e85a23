"""Makes many system calls in a row without running Python between them. x86-64 only.

A child of a zygote shares its parent's memory until it writes to it, and every line of Python that it runs writes to
some more pages, for reference counts alone. Locking down by a table of system calls, which twelve instructions of
machine code work through, takes half of the time that the same calls take from Python.
"""

import ctypes
import mmap
import os
from collections.abc import Sequence
from typing import NamedTuple

_CELLS = 7  # of one call: its number, six arguments; the number is replaced by the result
# for (row = table; row < end && result >= 0; row += 7) result = row[0] = syscall(row[0], ... row[6]); return result
_RUNNER = bytes.fromhex(
    "53 55 4889fb 4889f5"  # push rbx; push rbp; rbx = row = first argument; rbp = end = second argument
    "4839eb 7329"  # again: if rbx >= rbp goto out
    "488b03 488b7b08 488b7310 488b5318"  # rax, rdi, rsi, rdx = row[0], row[1], row[2], row[3]
    "4c8b5320 4c8b4328 4c8b4b30 0f05"  # r10, r8, r9 = row[4], row[5], row[6]; syscall
    "488903 4883c338 4885c0 79d2"  # row[0] = rax; rbx += 56; if rax >= 0 goto again
    "5d 5b c3"  # out: pop rbp; pop rbx; return rax
)


class Step(NamedTuple):
    """One system call. `bytes` as an argument stands for a pointer to them."""

    name: str  # unique in its table; for the one who reads the error
    number: int
    arguments: tuple[int | bytes, ...] = ()


class Table:
    """System calls ready to be made."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._rows = {step.name: row for row, step in enumerate(steps)}
        cells = (ctypes.c_int64 * (_CELLS * len(steps)))()
        self._start = ctypes.addressof(cells)
        self._end = self._start + ctypes.sizeof(cells)
        self._cells = memoryview(cells).cast("B").cast("q")  # written to with less ado than through ctypes
        self._pointed_to: list[object] = []
        for step in steps:
            self._cells[_CELLS * self._rows[step.name]] = step.number
            self.set(step.name, *(self._pointer(each) if isinstance(each, bytes) else each for each in step.arguments))

    def _pointer(self, data: bytes) -> int:
        self._pointed_to.append(copy := ctypes.create_string_buffer(data))
        return ctypes.addressof(copy)

    def set(self, name: str, *arguments: int) -> None:
        """Change the first arguments of a step."""
        for cell, argument in enumerate(arguments, _CELLS * self._rows[name] + 1):
            self._cells[cell] = argument

    def replace(self, name: str, number: int, *arguments: int) -> None:
        """Make a step another system call."""
        self._cells[_CELLS * self._rows[name]] = number
        self.set(name, *arguments)

    def run(self) -> None:
        """Make the calls; once, since their numbers are overwritten by their results.

        Raises `OSError` that names the first that fails; those after it were not made.
        """
        if (result := _run(self._start, self._end)) < 0:
            name = next(name for name, row in self._rows.items() if self._cells[_CELLS * row] == result)
            raise OSError(-result, f"{name}: {os.strerror(-result)}")


def _load() -> "ctypes._CFunctionType":
    page = mmap.mmap(-1, mmap.PAGESIZE)
    page.write(_RUNNER)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))  # keeps the page from being unmapped
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "cannot make the table runner executable")
    _kept.append(page)
    # PYFUNCTYPE keeps the interpreter's lock: giving it up and taking it again would cost more than the calls.
    return ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)(address)


_kept: list[object] = []
_run = _load()
