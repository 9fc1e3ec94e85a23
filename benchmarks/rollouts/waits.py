"""What the tool of a comparison does while a rollout waits for it; the same work in every arm.

``sleep`` takes its seconds whatever else goes on, as a sandbox elsewhere does. ``cpu`` is pure Python in a process, at
most as many at a time as there are cores. ``none`` answers at once. Knows neither TRL nor us, so both can import it.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

SLEEP_S = 0.3
KINDS = ("sleep", "none", "cpu")
ROUNDS = 500_000
"""Of the ``cpu`` tool's loop: about 50 ms of one core."""


def busy() -> int:
    total = 0
    for number in range(ROUNDS):
        total += number & 3
    return total


@contextmanager
def workers() -> Iterator[ProcessPoolExecutor]:
    """A process a core, started and warm."""
    cores = os.cpu_count() or 1
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        for done in [pool.submit(busy) for _ in range(2 * cores)]:
            done.result()
        yield pool


def wait(kind: str, pool: ProcessPoolExecutor) -> None:
    """For whoever may block."""
    if kind == "sleep":
        time.sleep(SLEEP_S)
    elif kind == "cpu":
        pool.submit(busy).result()


async def wait_async(kind: str, pool: ProcessPoolExecutor) -> None:
    """For whoever shares an event loop."""
    if kind == "sleep":
        await asyncio.sleep(SLEEP_S)
    elif kind == "cpu":
        await asyncio.get_running_loop().run_in_executor(pool, busy)
