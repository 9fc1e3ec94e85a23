"""Calls back to back: so many in flight, each lane starts its next call when its last is answered.

Arms take turns within a round and swap their order from round to round, so that a busy machine slows all alike;
ratios are taken within a round, told are their median and spread.
"""

import asyncio
import itertools
import os
import statistics
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sandbox.bench.arms import Arm
from sandbox.bench.cpu import quiet_tree_cpu_s
from sandbox.bench.spread import p50_p99_ms


@dataclass(frozen=True)
class Turn:
    """What one arm did in its turn of one round."""

    latencies_s: list[float]
    calls_per_s: float
    cpu_s: float

    @property
    def cpu_ms_per_call(self) -> float:
        return 1000 * self.cpu_s / len(self.latencies_s)


async def rounds(
    arms: Sequence[Arm], program: str, in_flight: int, seconds: float, count: int
) -> AsyncIterator[dict[str, Turn]]:
    """`count` rounds, each with a turn of about `seconds` for every arm, by its name."""
    for arm in arms:
        await asyncio.gather(*(arm.call(program) for _ in range(in_flight)))
    for number in range(count):
        order = arms if number % 2 == 0 else arms[::-1]
        yield {arm.name: await turn(arm, itertools.repeat(program), in_flight, seconds) for arm in order}


async def turn(arm: Arm, programs: Iterator[str], in_flight: int, seconds: float) -> Turn:
    """Keep `in_flight` calls going until `seconds` are over and the last is answered; at least one in each lane."""
    cpu_before = await quiet_tree_cpu_s(os.getpid())
    began = time.perf_counter()

    async def lane() -> list[float]:
        ends = [began]
        while len(ends) == 1 or ends[-1] - began < seconds:
            await arm.call(next(programs))
            ends.append(time.perf_counter())
        return [end - start for start, end in itertools.pairwise(ends)]

    lanes = await asyncio.gather(*(lane() for _ in range(in_flight)))
    # Each lane over its own time: waiting for the slowest one at the end is not the arm's doing.
    rate = sum(len(latencies) / sum(latencies) for latencies in lanes)
    cpu_s = await quiet_tree_cpu_s(os.getpid()) - cpu_before
    return Turn([latency for latencies in lanes for latency in latencies], rate, cpu_s)


def compared(found: Sequence[dict[str, Turn]], ours: str) -> dict[str, Any]:
    """The numbers of the arm `ours`, those of the others beside them, and how many times better ours is."""
    arms = {name: _numbers([turns[name] for turns in found]) for name in found[0]}
    others = {name: numbers for name, numbers in arms.items() if name != ours}
    row: dict[str, Any] = {**arms[ours], "baselines": others}
    for name in others:
        wall = [turns[ours].calls_per_s / turns[name].calls_per_s for turns in found]
        cpu = [turns[name].cpu_ms_per_call / turns[ours].cpu_ms_per_call for turns in found]
        row[f"vs_{name}_wall"] = statistics.median(wall)
        row[f"vs_{name}_wall_spread"] = [min(wall), max(wall)]
        row[f"vs_{name}_cpu"] = statistics.median(cpu)
    return row


def _numbers(turns: Sequence[Turn]) -> dict[str, float]:
    return {
        "calls_per_s": statistics.median(turn.calls_per_s for turn in turns),
        "cpu_ms_per_call": statistics.median(turn.cpu_ms_per_call for turn in turns),
        **p50_p99_ms([latency for turn in turns for latency in turn.latencies_s]),
    }
