"""The measurement from start to end: which parts run, on which sandbox, and the JSON that comes of it."""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from sandbox.bench import backlog, closed_loop, open_loop, sessions, settings
from sandbox.bench.arms import Arm, sandbox_arm, subprocess_arms
from sandbox.bench.musts import judge
from sandbox.bench.own_valkey import NoValkey
from sandbox.bench.settings import Pace
from sandbox.bench.spread import p50_p99_ms
from sandbox.client import SandboxClient, local_sandbox, sandbox_at
from sandbox.places import shown

Say = Callable[[str], object]


async def measure(
    python: Path, pace: Pace, at: str | None = None, token: str | None = None, say: Say = lambda _: None
) -> dict[str, Any]:
    """All parts, one after the other; `say` is told what begins.

    at: a sandbox that runs elsewhere; its CPU and memory cannot be seen from here and are null, and the queue, which
    kills its node, is left out. Raises `WrongAnswer` and what `local_sandbox` and `sandbox_at` do.
    """
    width = settings.in_flight()
    found: dict[str, Any] = {"settings": settings.machine()}
    say("starting the sandbox")
    async with _sandbox(at, token, width, python) as client:
        with ThreadPoolExecutor(width) as threads:
            arms = sandbox_arm(client), *subprocess_arms(python, threads)
            found["settings"] |= await _settings(client, arms, width, pace, at)
            for program in pace.programs:
                say(f"{program}: {width} in flight")
                found[program] = await _compared(arms, program, width, pace, here=at is None)
        found |= await _waits(client, arms[0], width, pace, say, here=at is None)
    if pace.backlog_calls and at is None:
        found["queue"] = await _queue(pace.backlog_calls, width, python, say)
    found["musts"] = judge(found)
    return found


def _sandbox(at: str | None, token: str | None, slots: int, python: Path) -> AbstractAsyncContextManager[SandboxClient]:
    return sandbox_at(at, token) if at else local_sandbox(slots=slots, python=python)


async def _settings(
    client: SandboxClient, arms: tuple[Arm, ...], width: int, pace: Pace, at: str | None
) -> dict[str, Any]:
    status = await client.status()
    return {
        "at": shown(at) if at else "a node in this process",
        "tiers": sorted({node.tier for node in status.nodes}),
        "isolation": sorted({node.isolation for node in status.nodes}),
        "slots": sum(node.slots for node in status.nodes),
        "in_flight": {arm.name: width for arm in arms},
        "openblas_num_threads": {arm.name: arm.openblas_threads for arm in arms},
        "programs": pace.programs,
        "rounds": pace.rounds,
        "turn_s": pace.turn_s,
    }


async def _compared(arms: tuple[Arm, ...], program: str, width: int, pace: Pace, here: bool) -> dict[str, Any]:
    rounds = closed_loop.rounds(arms, program, width, pace.turn_s, pace.rounds)
    row = closed_loop.compared([turns async for turns in rounds], arms[0].name)
    if not here:  # what was counted is this client's share alone
        row.update({name: None for name in row if name.endswith("_cpu")}, cpu_ms_per_call=None)
    return row


async def _waits(client: SandboxClient, arm: Arm, width: int, pace: Pace, say: Say, here: bool) -> dict[str, Any]:
    say("print: one in flight")
    serial = await closed_loop.turn(arm, itertools.repeat("print"), 1, pace.serial_s)
    say(f"{pace.sessions} sessions")
    cells = await sessions.measure(client, pace.sessions, pace.cells, here)
    found = {"serial_print": p50_p99_ms(serial.latencies_s), **cells.as_json()}
    if pace.load_s:
        say(f"open loop: {pace.capacity_s:g} s to find the capacity, {pace.load_s:g} s of load")
        found["open_loop"] = await open_loop.measure(arm, width, pace.capacity_s, pace.load_s)
    return found


async def _queue(calls: int, slots: int, python: Path, say: Say) -> dict[str, Any]:
    def tell(answered: int) -> None:
        if answered % 500 == 0:
            say(f"queue: {answered:,} of {calls:,} answered")

    say(f"queue: {calls:,} calls")
    try:
        return await backlog.measure(calls, slots, python, tell)
    except NoValkey as missing:
        return {"not_run": str(missing)}
