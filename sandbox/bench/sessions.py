"""Sessions: how long the first cell takes and the later ones, and what a session costs while it waits.

Memory is looked at twice, since each way has its blind side. What the machine has available, before and after, counts
all that the kernel keeps for a process but also what others did meanwhile. What each session reads about itself
(private dirty pages and page tables) is exact and leaves the kernel's own structures out. The larger one is judged.
"""

import asyncio
import re
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.bench.arms import LIMITS, WrongAnswer
from sandbox.bench.spread import p50_p99_ms
from sandbox.client import SandboxClient
from sandbox.contract import ExecStatus
from sandbox.session import Session

_FIRST_CELL = "import numpy as np\na = np.ones((200, 200))\nprint((a @ a).sum())"
_LATER_CELL = "print(1+1)"
_READ_MEMORY = """
for name in ("smaps_rollup", "status"):
    print(open(f"/proc/self/{name}").read())
"""
_COUNTED = re.compile(r"^(?:Private_Dirty|VmPTE):\s+(\d+) kB$", re.MULTILINE)
_REST_S = 1.0


@dataclass(frozen=True)
class Found:
    """Times of first and later cells, MiB a session by both ways; None where a session cannot read its own."""

    first_s: list[float]
    later_s: list[float]
    available_mb: float | None
    own_mb: float | None

    def as_json(self) -> dict[str, Any]:
        looks = [mb for mb in (self.available_mb, self.own_mb) if mb is not None]
        return {
            "session_first_cell": p50_p99_ms(self.first_s),
            "session_later_cell": p50_p99_ms(self.later_s),
            "session_idle_mb": max(looks) if looks else None,
            "session_idle_mb_by": {"memory_available": self.available_mb, "private_dirty_and_tables": self.own_mb},
            "sessions": len(self.first_s),
        }


async def measure(client: SandboxClient, sessions: int, cells: int, here: bool) -> Found:
    """Open `sessions`, all of them alive at once; then `cells` later cells, one after the other, over all of them.

    here: the programs run on this machine, so that its memory tells of them.
    """
    async with client.session(limits=LIMITS) as session:
        await session.execute(_FIRST_CELL)  # a zygote may be started by the first one that needs it
    async with AsyncExitStack() as open_sessions:
        before = _available_mb()
        alive = [await open_sessions.enter_async_context(client.session(limits=LIMITS)) for _ in range(sessions)]
        first_s = [await _timed(session, _FIRST_CELL, "8000000.0\n") for session in alive]
        await asyncio.sleep(_REST_S)  # what the last answer left behind comes to rest
        taken = (before - _available_mb()) / sessions if here else None
        own = [await _own_mb(session) for session in alive]
        later_s = [await _timed(alive[number % sessions], _LATER_CELL, "2\n") for number in range(cells)]
    known = [mb for mb in own if mb is not None]
    return Found(first_s, later_s, taken, sum(known) / len(known) if known else None)


async def _timed(session: Session, code: str, answer: str) -> float:
    began = time.perf_counter()
    result = await session.execute(code)
    if result.status is not ExecStatus.OK or result.stdout != answer:
        raise WrongAnswer(f"{code!r} in a session: {result.status}, {result.stdout!r}, {result.stderr!r}")
    return time.perf_counter() - began


async def _own_mb(session: Session) -> float | None:
    """None in a tier that shows programs no /proc."""
    result = await session.execute(_READ_MEMORY)
    kib = [int(number) for number in _COUNTED.findall(result.stdout)]
    return sum(kib) / 1024 if result.status is ExecStatus.OK else None


def _available_mb() -> float:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 1024
    raise LookupError("/proc/meminfo has no MemAvailable")
