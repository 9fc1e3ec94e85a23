"""How long each part is measured, and what to know about the machine to read its numbers."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.bench.programs import PROGRAMS


@dataclass(frozen=True)
class Pace:
    """Seconds and counts of one measurement; `load_s` and `backlog_calls` of 0 leave those parts out."""

    rounds: int
    turn_s: float
    serial_s: float
    sessions: int
    cells: int
    capacity_s: float
    load_s: float
    backlog_calls: int
    programs: tuple[str, ...] = tuple(PROGRAMS)


QUICK = Pace(rounds=2, turn_s=1.0, serial_s=1.0, sessions=100, cells=500, capacity_s=0, load_s=0, backlog_calls=0)
FULL = Pace(
    rounds=5, turn_s=4.0, serial_s=5.0, sessions=150, cells=3000, capacity_s=10, load_s=60, backlog_calls=45_000
)


def in_flight() -> int:
    """Calls at once, on our side and on the other: two for each core, at least four."""
    return max(4, 2 * (os.cpu_count() or 1))


def machine() -> dict[str, Any]:
    """The load is that of the minute before: other work on the cores makes spreads wide."""
    return {
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "cgroups": _cgroup_version(),
        "root": os.geteuid() == 0,
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


def _cgroup_version() -> str:
    """`v2`, `v1`, or `v1 and v2` where the old controllers are mounted beside the new hierarchy."""
    kinds = {line.split()[2] for line in Path("/proc/mounts").read_text().splitlines()}
    return " and ".join(name for kind, name in (("cgroup", "v1"), ("cgroup2", "v2")) if kind in kinds) or "none"
