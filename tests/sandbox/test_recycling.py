"""Zygotes are replaced before they wear out, and nothing of a backend grows with the number of its calls."""

import asyncio
import os

import pytest

from sandbox.backend.forkserver.presets import PRESETS
from sandbox.backend.forkserver.supervisor import ForkserverBackend
from sandbox.contract import ExecRequest
from tests.sandbox.support import PYTHON, offspring, until

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio]


async def test_a_worn_zygote_is_replaced_while_calls_go_on() -> None:
    backend = ForkserverBackend(PYTHON, slots=2, spares=1, zygotes=1, most_forks=5)
    await backend.start()
    try:
        first = backend.zygote_pids()["light"]
        results = []
        while backend.zygote_pids()["light"] == first:
            results.append(await backend.run(ExecRequest(code="print(1)")))
        results.append(await backend.run(ExecRequest(code="print(1)")))  # uses its last spare
        assert {result.stdout for result in results} == {"1\n"}
        await until(lambda: first not in offspring(os.getpid()))  # it went with its last child
    finally:
        await backend.close()


@pytest.mark.long  # starts several heavy zygotes
async def test_a_session_keeps_its_worn_zygote_alive() -> None:
    backend = ForkserverBackend(PYTHON, slots=2, spares=0, zygotes=1, most_forks=2)
    await backend.start()
    try:
        await backend.run(ExecRequest(code="x = 1", session="s"))
        first = backend.zygote_pids()["heavy"]
        while backend.zygote_pids()["heavy"] == first:
            await backend.run(ExecRequest(code="import scipy"))
        assert first in offspring(os.getpid())
        assert (await backend.run(ExecRequest(code="x + 1", session="s", cell=1))).stdout == "2\n"
        await backend.end_session("s")
        await until(lambda: first not in offspring(os.getpid()))
    finally:
        await backend.close()


async def test_descriptors_and_processes_stay_the_same_over_many_calls() -> None:
    backend = ForkserverBackend(PYTHON, slots=2, spares=2, zygotes=1)
    await backend.start()

    async def work(calls: int) -> None:
        await asyncio.gather(*(backend.run(ExecRequest(code="print(1)")) for _ in range(calls)))

    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(offspring(backend.zygote_pids()["light"]))

    try:
        await until(lambda: len(backend.zygote_pids()) == len(PRESETS))  # those that come up later hold some too
        await work(30)
        await until(lambda: held()[1] == 2)
        before = held()
        await work(100)
        await until(lambda: held() == before)
    finally:
        await backend.close()
