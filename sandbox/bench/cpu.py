"""CPU seconds of a process and of all that it started, dead or alive, as one number that only grows.

The kernel keeps a living process's own time and that of the children it has waited for. A zygote waits for each of its
programs, a node for its zygotes: so the sum over the living tree counts every program once, and at a death nothing but
the place changes. Both arms of a comparison are read off this one number, between their turns. Each process is
rounded down to a clock tick (10 ms), which cancels out where as many processes wait before as after.

Leaves out what a killed process had not waited for: read before you kill.
"""

import asyncio
import os
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_LOOK_S = 0.05
_MOST_LOOKS = 200


def tree_cpu_s(root: int) -> float:
    """Seconds spent by process `root` and its descendants so far. Raises `ProcessLookupError` if it is gone."""
    return sum(_spent_ticks(root)) * _TICK_S


async def quiet_tree_cpu_s(root: int) -> float:
    """The same, once what `root` started has come to rest: work that an answer left behind counts as its own."""
    before = _spent_ticks(root)
    for _ in range(_MOST_LOOKS):
        await asyncio.sleep(_LOOK_S)
        now = _spent_ticks(root)
        if now[1] - before[1] <= 1:
            break
        before = now
    return sum(now) * _TICK_S


def _spent_ticks(root: int) -> tuple[int, int]:
    """Ticks of `root` alone, and of its descendants and all of their dead."""
    own: dict[int, int] = {}
    waited_for: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended while we looked: its parent has its time
        pid = int(stat.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        own[pid] = int(fields[11]) + int(fields[12])
        waited_for[pid] = int(fields[13]) + int(fields[14])
    if root not in own:
        raise ProcessLookupError(f"there is no process {root}")
    spent, waiting = waited_for[root], [*children.get(root, [])]
    while waiting:
        pid = waiting.pop()
        spent += own[pid] + waited_for[pid]
        waiting += children.get(pid, [])
    return own[root], spent
