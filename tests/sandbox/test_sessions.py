"""Sessions in real processes: the exam on both backends, and what happens between two cells."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from sandbox.backend.protocol import Backend
from sandbox.backend.sessions.exam import SESSION_BEHAVIOUR, SESSION_HOSTILE, failures
from sandbox.backend.subprocess_backend import SubprocessBackend
from sandbox.contract import ExecRequest, ExecResult, Limits, SessionLost
from tests.sandbox.support import PYTHON, SandboxThread, until

EXAM = SESSION_BEHAVIOUR + SESSION_HOSTILE


async def sit_exam(backend: Backend) -> list[str]:
    """The sessions of the exam at the same time: none may notice the others."""
    each = (failures(backend.run, backend.end_session, (check,)) for check in EXAM)
    return [complaint for complaints in await asyncio.gather(*each) for complaint in complaints]


@pytest.mark.e2e
def test_forkserver_sessions(sandbox: SandboxThread) -> None:
    backend = sandbox.client.node.backend
    assert sandbox.run(sit_exam(backend)) == []
    assert backend.sessions == 0


@pytest.mark.e2e
async def test_subprocess_sessions(backend: SubprocessBackend) -> None:
    assert await sit_exam(backend) == []
    assert backend.sessions == 0


@pytest.fixture
async def backend() -> AsyncIterator[SubprocessBackend]:
    made = SubprocessBackend(PYTHON, slots=4)
    await made.start()
    yield made
    await made.close()


def cell(backend: Backend, number: int, code: str, **limits: float) -> Awaitable[ExecResult]:
    return backend.run(ExecRequest(code=code, session="s", cell=number, limits=Limits.model_validate(limits)))


async def folder_of(backend: Backend) -> Path:
    """Opens session `s`; returns where its cells write files, which tell when something has come about."""
    return Path((await cell(backend, 0, "import os, signal, threading; print(os.getcwd())")).stdout.strip())


async def test_output_between_two_cells_belongs_to_none(backend: SubprocessBackend) -> None:
    folder = await folder_of(backend)
    await cell(backend, 1, "def late(): print('late'); open('done', 'w')\nthreading.Timer(0.05, late).start()")
    await until((folder / "done").exists)
    assert (await cell(backend, 2, "print('own')")).stdout == "own\n"


async def test_a_flood_between_two_cells_reaches_nobody(backend: SubprocessBackend) -> None:
    folder = await folder_of(backend)
    await cell(
        backend,
        1,
        "def flood():\n  open('on', 'w')\n  while 1: os.write(1, b'x' * 4096)\nthreading.Timer(0.05, flood).start()",
    )
    await until((folder / "on").exists)
    assert (await cell(backend, 2, "import time; time.sleep(0.1)")).status == "output_limit"


async def test_a_late_alarm_ends_neither_session_nor_cell(backend: SubprocessBackend) -> None:
    folder = await folder_of(backend)
    handler = "def handler(*_): open('rung', 'w'); raise TimeoutError\nsignal.signal(signal.SIGALRM, handler)"
    await cell(backend, 1, f"{handler}\nsignal.setitimer(signal.ITIMER_REAL, 0.05);")
    await until((folder / "rung").exists)
    assert (await cell(backend, 2, "6 * 7")).stdout == "42\n"


async def test_a_thread_that_ends_the_process_is_told_with_the_next_cell(backend: SubprocessBackend) -> None:
    await folder_of(backend)
    await cell(backend, 1, "threading.Timer(0.05, os._exit, [3]).start()")
    await until(lambda: backend.sessions == 0)
    fresh = await cell(backend, 2, "'threading' in globals()")
    assert (fresh.stdout, fresh.session_kept) == ("False\n", True)
    assert "it exited with code 3" in fresh.detail


async def test_a_cancelled_cell_is_dead_when_the_caller_goes_on(backend: SubprocessBackend) -> None:
    folder = await folder_of(backend)
    pid = int((await cell(backend, 1, "print(os.getpid())")).stdout)
    running = asyncio.ensure_future(cell(backend, 2, "open('on', 'w')\nwhile True: pass"))
    await until((folder / "on").exists)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not folder.exists()
    with pytest.raises(SessionLost, match="cancelled"):
        await cell(backend, 3, "1")


async def test_a_session_takes_no_slot_between_its_cells() -> None:
    backend = SubprocessBackend(PYTHON, slots=1)
    names = ("a", "b")
    for number in range(2):
        for name in names:
            assert (await backend.run(ExecRequest(code="1", session=name, cell=number))).stdout == "1\n"
    assert backend.sessions == 2
    await backend.close()


def test_later_cells_are_cheap(sandbox: SandboxThread) -> None:
    """Bound on the CPU time of this process, which holds whatever else the machine does."""
    backend, cells = sandbox.client.node.backend, 200
    run = backend.run

    async def later_cells() -> float:
        await run(ExecRequest(code="x = 0", session="cheap"))
        before = time.thread_time()
        for number in range(1, cells + 1):
            await run(ExecRequest(code="x += 1\nx", session="cheap", cell=number))
        spent = time.thread_time() - before
        await backend.end_session("cheap")  # the sandbox is shared
        return spent / cells

    assert sandbox.run(later_cells()) < 0.001
