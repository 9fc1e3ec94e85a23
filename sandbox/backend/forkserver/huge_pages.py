"""Makes a zygote cheap to fork: its heap on huge pages, so that there are few page-table entries to copy and to free.

A child that writes to such a page gets a copy of 4 KiB of it and no more. Where the kernel has no huge pages, or none
to spare, forks are slower and all else is the same.
"""

from collections.abc import Iterator

from sandbox.backend.forkserver import syscalls as sys_

_HUGE = 2 << 20


def collapse_heap() -> None:
    """Back all private anonymous memory by huge pages, as far as it is aligned."""
    for start, end in _heap():
        first, last = -(-start // _HUGE) * _HUGE, end // _HUGE * _HUGE
        for address in range(first, last, _HUGE):  # one by one: a hole must not end the others
            sys_.collapse(address, _HUGE)


def _heap() -> Iterator[tuple[int, int]]:
    with open("/proc/self/maps") as maps:
        lines = maps.read().splitlines()
    for line in lines:
        addresses, mode, _, _, inode, *name = line.split()
        if mode == "rw-p" and inode == "0" and name in ([], ["[heap]"]):
            start, end = addresses.split("-")
            yield int(start, 16), int(end, 16)
