"""What happens when we fail or are stopped: nothing is lost in silence and nothing is left behind."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.backend.forkserver.cgroups import CgroupTree
from sandbox.backend.forkserver.supervisor import ForkserverBackend
from sandbox.backend.outcome import Facts, result_of
from sandbox.backend.protocol import CallLost
from sandbox.broker import MemoryBroker
from sandbox.client import local_sandbox
from sandbox.contract import ExecRequest, ExecResult, ExecStatus, Limits, SandboxUnavailable, Tier
from sandbox.node import Node
from tests.sandbox.support import PYTHON, ROOT, SandboxThread, eventually, offspring, until

pytestmark = pytest.mark.e2e
SLEEPS = "import subprocess; subprocess.run(['sleep', '99'])"
SUPERVISOR = """
import asyncio, sys
from pathlib import Path
from sandbox.client import local_sandbox
from sandbox.contract import ExecRequest
async def main():
    async with local_sandbox(slots=2, python=Path(sys.argv[1])) as client:
        request = ExecRequest(code="import time; time.sleep(99)")
        calls = [asyncio.create_task(client.execute(request)) for _ in "ab"]
        await asyncio.sleep(0.5)
        print("running", flush=True)
        await asyncio.gather(*calls)
asyncio.run(main())
"""


def sleeping(pid: int) -> set[int]:
    """Processes called `sleep` below `pid`: what the programs of these tests start, as spares do not."""

    def is_sleep(child: int) -> bool:
        try:
            return Path(f"/proc/{child}/comm").read_text() == "sleep\n"
        except OSError:
            return False  # it ended while we looked

    return {child for child in offspring(pid) if is_sleep(child)}


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def cgroups_of(pid: int) -> list[Path]:
    return [path for path in Path("/sys/fs/cgroup").rglob("starloom-sandbox-*") if f"-{pid}-" in path.name]


def test_a_killed_zygote_is_replaced_and_its_calls_run_again(sandbox: SandboxThread) -> None:
    backend = sandbox.client.node.backend
    assert isinstance(backend, ForkserverBackend)

    async def work() -> list[ExecResult]:
        request = ExecRequest(code="import time; time.sleep(1); print('survived')")
        calls = [asyncio.create_task(sandbox.client.execute(request)) for _ in range(3)]
        await asyncio.sleep(0.4)
        os.kill(backend.zygote_pids()["light"], signal.SIGKILL)
        return await asyncio.gather(*calls)

    before = backend.zygote_pids()["light"]
    assert {result.stdout for result in sandbox.run(work())} == {"survived\n"}
    assert backend.zygote_pids()["light"] != before


def test_calls_made_while_a_zygote_dies_are_answered(sandbox: SandboxThread) -> None:
    backend = sandbox.client.node.backend
    assert isinstance(backend, ForkserverBackend)

    async def work() -> list[ExecResult]:
        calls = []
        for turn in range(20):
            if turn == 5:
                os.kill(backend.zygote_pids()["light"], signal.SIGKILL)
            calls.append(asyncio.create_task(sandbox.client.execute(ExecRequest(code="print(1)"))))
            await asyncio.sleep(0.001)
        return await asyncio.gather(*calls)

    for _ in range(3):  # the moment between its death and our noticing is short
        assert {result.stdout for result in sandbox.run(work())} == {"1\n"}


def test_a_program_killed_by_the_machine_is_no_verdict(sandbox: SandboxThread) -> None:
    backend = sandbox.client.node.backend
    assert isinstance(backend, ForkserverBackend)

    async def work() -> ExecResult:
        call = asyncio.create_task(backend.run(ExecRequest(code=SLEEPS)))
        await until(lambda: sleeping(os.getpid()))
        (child,) = sleeping(os.getpid())
        os.kill(_parent_of(child), signal.SIGKILL)
        return await call

    with pytest.raises(CallLost, match="from outside"):
        sandbox.run(work())


def test_a_cancelled_call_is_killed_at_once(sandbox: SandboxThread) -> None:
    async def work() -> None:
        call = asyncio.create_task(sandbox.client.execute(ExecRequest(code=SLEEPS)))
        await until(lambda: sleeping(os.getpid()))
        call.cancel()

    sandbox.run(work())
    assert eventually(lambda: not sleeping(os.getpid()), within_s=3)


def test_sigkill_of_the_supervisor_leaves_no_process() -> None:
    process = subprocess.Popen([sys.executable, "-c", SUPERVISOR, PYTHON], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout
        assert process.stdout.readline() == "running\n"
        family = offspring(process.pid)
        assert len(family) >= 4  # a zygote, its reaper, and two programs; further zygotes and spares
        process.kill()
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family))
    if tree := CgroupTree.open():  # the next supervisor sweeps
        asyncio.run(tree.close())
    assert cgroups_of(process.pid) == []


CLOSES = """
import asyncio, os, sys
from pathlib import Path
from sandbox.client import local_sandbox
from sandbox.contract import ExecRequest, SandboxUnavailable
from tests.sandbox.support import offspring
def held():
    return offspring(os.getpid()), Path("/proc/self/mounts").read_text(), len(os.listdir("/proc/self/fd"))
async def refused(call):
    try:
        await call
    except SandboxUnavailable:
        return True
async def main():
    before = held()
    async with local_sandbox(slots=2, python=Path(sys.argv[1])) as client:
        call = asyncio.create_task(client.execute(ExecRequest(code="while True: pass")))
        await client.execute(ExecRequest(code="print(1)"))
        assert "full isolation" in client.node.backend.describe()
    assert await refused(call), "a call that ran must be told"
    assert await refused(client.execute(ExecRequest(code=""))), "a call after the end must be refused"
    assert held() == before, (before, held())
asyncio.run(main())
"""


def test_close_leaves_nothing() -> None:
    """In a process of its own: the sandbox that other tests share opens and closes descriptors as it likes."""
    done = subprocess.run([sys.executable, "-c", CLOSES, PYTHON], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.asyncio
async def test_cgroup_folders_go_with_the_backend() -> None:
    backend = ForkserverBackend(PYTHON, slots=1)
    before = cgroups_of(os.getpid())
    await backend.start()
    if "cgroups" in backend.describe():
        assert len(cgroups_of(os.getpid())) > len(before)
    await backend.close()
    await backend.close()
    assert cgroups_of(os.getpid()) == before


class LosingBackend:
    """Loses its first `losses` calls."""

    slots = 1
    sessions = 0
    tier: Tier = "none"

    def __init__(self, losses: int) -> None:
        self.losses = losses

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def end_session(self, session: str) -> None: ...

    def describe(self) -> str:
        return "a fake"

    async def run(self, request: ExecRequest) -> ExecResult:
        if self.losses:
            self.losses -= 1
            raise CallLost("the zygote died")
        return result_of(request, Facts(b"", b"", wait_status=0, wall_s=0, queued_s=0))


@pytest.mark.asyncio
@pytest.mark.parametrize("losses", [1, 2])
async def test_a_lost_call_is_run_again_once(losses: int) -> None:
    broker = MemoryBroker()
    node = Node(broker, LosingBackend(losses))
    await node.start()
    try:
        if losses == 1:
            assert (await broker.submit(ExecRequest(code=""))).status is ExecStatus.OK
        else:
            with pytest.raises(SandboxUnavailable, match="died"):
                await broker.submit(ExecRequest(code=""))
    finally:
        await node.close()


@pytest.mark.asyncio
async def test_missing_interpreter_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="make setup"):
        async with local_sandbox(python=tmp_path / "python"):
            pass


@pytest.mark.asyncio
async def test_broken_interpreter_is_refused_unless_weakness_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "$1" = -I ] && {{ echo no jail here >&2; exit 9; }}\nexec {PYTHON} "$@"\n')
    python.chmod(0o755)
    with pytest.raises(SandboxUnavailable, match="no jail here"):
        async with local_sandbox(python=python):
            pass
    monkeypatch.setenv("STARLOOM_SANDBOX_ALLOW_WEAK", "1")
    async with local_sandbox(python=python) as client:
        assert "NO ISOLATION" in client.node.backend.describe()
        assert (await client.execute(ExecRequest(code="print(1)"))).stdout == "1\n"


def test_calls_wait_their_turn_without_losing_time(sandbox: SandboxThread) -> None:
    async def work() -> list[ExecResult]:
        request = ExecRequest(code="import time; time.sleep(0.5)", limits=Limits(wall_s=2))
        return await asyncio.gather(*(sandbox.client.execute(request) for _ in range(12)))

    results = sandbox.run(work())
    assert {result.status for result in results} == {ExecStatus.OK}
    assert max(result.queued_s for result in results) > 0.5
