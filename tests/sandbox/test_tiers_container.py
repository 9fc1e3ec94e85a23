"""What is particular to the container tier: one process, no quota, and death by the parent alone."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sandbox.backend.forkserver.supervisor import ForkserverBackend
from sandbox.backend.leftovers import at_rest, leftovers
from sandbox.backend.protocol import CallLost
from sandbox.contract import ExecRequest, ExecResult, ExecStatus, Limits
from tests.sandbox.support import PYTHON, cases, eventually, offspring

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]
# Rows of the hostile table that come out otherwise than in the full tier, and how.
OTHERWISE: dict[str, dict[str, Any]] = {
    "fork_bomb": {"status": "ok", "stdout": "blocked after 0 Operation not permitted\n"},
    "disk_fill": {"status": "ok", "stdout": "blocked 32 MB File too large\n"},
    "daemon_keeps_stdout": {"status": "error", "stdout": ""},
    "memory_bomb": {"status": "memory", "stdout": ""},
    "zombies": {"status": "error", "stdout": ""},
    "abort": {"status": "error", "exit_code": -signal.SIGABRT},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend() -> AsyncIterator[ForkserverBackend]:
    backend = ForkserverBackend(PYTHON, slots=2, tier="container")
    await backend.start()
    for code in ("1", "import numpy"):  # now both kinds of zygotes keep their spares
        await run(backend, code)
    yield backend
    await backend.close()


async def run(backend: ForkserverBackend, code: str, **limits: float) -> ExecResult:
    return await backend.run(ExecRequest(code=code, limits=Limits.model_validate(limits)))


async def test_it_says_what_it_is(backend: ForkserverBackend) -> None:
    assert backend.tier == "container"
    assert "container isolation" in backend.describe()


async def test_hostile_rows_that_come_out_otherwise(backend: ForkserverBackend) -> None:
    before = await at_rest(os.getpid())
    rows = {row["name"]: row["input"] for row in cases("hostile")}
    results = await asyncio.gather(*(run(backend, rows[name]["code"], **rows[name]["limits"]) for name in OTHERWISE))
    for result, right in zip(results, OTHERWISE.values(), strict=True):
        assert {field: getattr(result, field) for field in right} == right, result
    assert await leftovers(os.getpid(), before) == []


async def test_programs_lie_in_folders_of_their_own_and_leave_none(backend: ForkserverBackend) -> None:
    before = await at_rest(os.getpid())
    first = await run(backend, "import os; open('mine', 'w'); print(os.getcwd(), os.listdir('..'))")
    assert "PermissionError" in first.stderr
    second = await run(backend, "import os; open('mine', 'w'); print(os.getcwd())")
    third = await run(backend, "import os; print(os.getcwd(), os.path.exists('mine'))")
    assert third.stdout.endswith(" False\n")
    assert not third.stdout.startswith(second.stdout.strip())
    assert await leftovers(os.getpid(), before) == []


async def test_numbers_of_two_calls_differ(backend: ForkserverBackend) -> None:
    drawn = {(await run(backend, "import random; print(random.random())")).stdout for _ in range(3)}
    assert len(drawn) == 3


async def test_memory_over_the_limit_is_told_as_such(backend: ForkserverBackend) -> None:
    result = await run(backend, "x = bytearray(1 << 30)", memory_mb=128)
    assert result.status is ExecStatus.MEMORY
    assert "memory_mb = 128" in result.detail


async def test_a_program_cannot_outlive_its_zygote(backend: ForkserverBackend) -> None:
    outlive = (
        "import ctypes, signal, time; ctypes.CDLL(None).prctl(1, 0, 0, 0, 0); print('up', flush=True); time.sleep(60)"
    )
    call = asyncio.create_task(run(backend, outlive))
    await asyncio.sleep(0.5)
    zygote = backend.zygote_pids()["light"]
    family = offspring(zygote)
    assert family
    os.kill(zygote, signal.SIGKILL)
    with pytest.raises(CallLost):
        await call
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family))
    assert (await run(backend, "print(1)")).stdout == "1\n"
