"""`python -m sandbox serve`: a node in a process of its own, killed, stopped and started again."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.client import SandboxClient, sandbox_at
from sandbox.contract import ExecRequest, ExecResult, SandboxUnavailable
from tests.sandbox.support import PYTHON, ROOT, eventually, offspring, until

pytestmark = pytest.mark.e2e


def start(path: Path) -> "subprocess.Popen[str]":
    server = subprocess.Popen(
        [sys.executable, "-m", "sandbox", "serve", "--socket", path, "--slots", "2"],
        cwd=ROOT,
        env={"STARLOOM_SANDBOX_PYTHON": str(PYTHON), "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout
    assert server.stdout.readline().startswith(f"Sandbox ready at unix:{path}: ")
    return server


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.sock"


@pytest.fixture
def server(path: Path) -> Iterator["subprocess.Popen[str]"]:
    with start(path) as server:
        yield server
        server.kill()


async def begun(client: SandboxClient, server: "subprocess.Popen[str]", code: str) -> asyncio.Task[ExecResult]:
    """A call whose program runs by now."""
    before = offspring(server.pid)
    call = asyncio.create_task(client.execute(ExecRequest(code=code)))
    await until(lambda: offspring(server.pid) > before)
    return call


def all_gone(pids: set[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


async def test_calls_of_a_killed_node_are_told_and_the_client_goes_on_with_the_next(
    server: "subprocess.Popen[str]", path: Path
) -> None:
    async with sandbox_at(f"unix:{path}") as client:
        call = await begun(client, server, "import time; time.sleep(60)")
        family = offspring(server.pid)
        server.kill()
        with pytest.raises(SandboxUnavailable, match="may be submitted again"):
            await call
        await asyncio.to_thread(server.wait)
        with await asyncio.to_thread(start, path) as after:
            try:
                assert (await client.execute(ExecRequest(code="print(6 * 7)"))).stdout == "42\n"
                await until(lambda: all_gone(family))
            finally:
                after.kill()


def test_sigterm_lets_a_call_end_and_leaves_nothing(server: "subprocess.Popen[str]", path: Path) -> None:
    async def stop_in_mid_call() -> str:
        async with sandbox_at(f"unix:{path}") as client:
            call = await begun(client, server, "import time; time.sleep(1); print('done')")
            server.terminate()
            return (await call).stdout

    family = offspring(server.pid)
    assert asyncio.run(stop_in_mid_call()) == "done\n"
    assert server.wait(20) == 0
    assert not path.exists()
    assert eventually(lambda: all_gone(family))


async def test_sigterm_does_not_wait_for_a_call_without_end(server: "subprocess.Popen[str]", path: Path) -> None:
    async with sandbox_at(f"unix:{path}") as client:
        call = await begun(client, server, "import time; time.sleep(60)")
        since = time.monotonic()
        server.terminate()
        with pytest.raises(SandboxUnavailable, match="stopped before"):
            await call
        assert await asyncio.to_thread(server.wait, 20) == 0
        assert time.monotonic() - since < 15


def test_a_second_server_at_the_same_place_is_refused(server: "subprocess.Popen[str]", path: Path) -> None:
    second = [sys.executable, "-m", "sandbox", "serve", "--socket", str(path)]
    done = subprocess.run(second, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f"another server listens on {path}" in done.stderr
    assert server.poll() is None
