"""Calls that come when they like: Poisson arrivals of the mix at a share of what the sandbox was just seen to hold.

A call's time runs from the moment it was due to its answer, so that a late generator hides no queue.
"""

import asyncio
import random
import statistics
from collections.abc import Iterator
from typing import Any

from sandbox.bench import closed_loop
from sandbox.bench.arms import Arm
from sandbox.bench.programs import MIX, mixed
from sandbox.bench.spread import p50_p99_ms

UTILISATION = 0.7
_CAPACITY_SEED, _ARRIVAL_SEED, _PROGRAM_SEED = 1, 2, 3


async def measure(arm: Arm, in_flight: int, capacity_s: float, load_s: float) -> dict[str, Any]:
    """Find the capacity for the mix in `capacity_s` seconds, then load it for about `load_s`."""
    capacity = await closed_loop.turn(arm, _endless_mix(), in_flight, capacity_s)
    rate = UTILISATION * capacity.calls_per_s
    due = list(_arrivals(rate, load_s))
    times = await _submit_when_due(arm, due)
    return {
        "mix": MIX,
        "capacity_calls_per_s": capacity.calls_per_s,
        "offered_calls_per_s": rate,
        "utilisation": UTILISATION,
        "seeds": {"capacity": _CAPACITY_SEED, "arrivals": _ARRIVAL_SEED, "programs": _PROGRAM_SEED},
        "mean_ms": 1000 * statistics.mean(times),
        **p50_p99_ms(times),
    }


def _endless_mix() -> Iterator[str]:
    names = mixed(100_000, _CAPACITY_SEED)
    while True:
        yield from names


def _arrivals(rate: float, seconds: float) -> Iterator[float]:
    """Seconds from the start at which calls are due."""
    gaps = random.Random(_ARRIVAL_SEED)
    due = gaps.expovariate(rate)
    while due < seconds:
        yield due
        due += gaps.expovariate(rate)


async def _submit_when_due(arm: Arm, due: list[float]) -> list[float]:
    """Seconds from when each was due to its answer."""
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def one(program: str, at: float) -> float:
        await arm.call(program)
        return loop.time() - began - at

    async with asyncio.TaskGroup() as group:
        calls = []
        for at, program in zip(due, mixed(len(due), _PROGRAM_SEED), strict=True):
            await asyncio.sleep(max(0.0, began + at - loop.time()))
            calls.append(group.create_task(one(program, at)))
    return [call.result() for call in calls]
