"""`python -m sandbox node`: a node and its doors in a process of its own, killed, stopped and started again."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.client import SandboxClient, sandbox_at
from sandbox.contract import ExecRequest, ExecResult, SandboxUnavailable, SessionLost
from tests.sandbox.support import ENVIRONMENT, ROOT, cli_here, eventually, offspring, sandbox_cli

pytestmark = pytest.mark.e2e
Server = subprocess.Popen[str]
FOREVER = "import time; time.sleep(60)"


def start(path: Path, *options: str | Path) -> tuple[Server, str]:
    """A node that is ready, and the line that says so."""
    server = subprocess.Popen(
        [sys.executable, "-m", "sandbox", "node", "--socket", path, "--slots", "2", *options],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout
    ready = server.stdout.readline()
    assert ready.startswith(f"Sandbox ready at unix:{path}")
    return server, ready


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.sock"


@pytest.fixture
def server(path: Path) -> Iterator[Server]:
    with start(path, "--drain-s", "2")[0] as server:
        yield server
        server.kill()


async def begun(client: SandboxClient, *requests: ExecRequest) -> list[asyncio.Task[ExecResult]]:
    """Calls whose programs run by now."""
    calls = [asyncio.create_task(client.execute(request)) for request in requests]
    async with asyncio.timeout(20):
        while (await client.status()).nodes[0].busy < len(calls):  # noqa: ASYNC110 - nothing tells us
            await asyncio.sleep(0.05)
    return calls


def all_gone(pids: set[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


async def test_what_a_killed_node_ran_is_told_and_the_client_goes_on_with_the_next(server: Server, path: Path) -> None:
    async with sandbox_at(f"unix:{path}") as client, client.session() as session:
        await session.execute("x = 1")
        call, cell = await begun(client, ExecRequest(code=FOREVER), ExecRequest(code=FOREVER, session="s"))
        family = offspring(server.pid)
        server.kill()
        with pytest.raises(SandboxUnavailable, match="may be submitted again"):
            await call
        with pytest.raises(SessionLost):
            await cell
        await asyncio.to_thread(server.wait)
        after, _ = await asyncio.to_thread(start, path)
        with after:
            try:
                assert (await client.execute(ExecRequest(code="print(6 * 7)"))).stdout == "42\n"
                with pytest.raises(SessionLost):  # the next node knows nothing of it, and nothing is replayed
                    await session.execute("print(x)")
                assert await asyncio.to_thread(eventually, lambda: all_gone(family))
            finally:
                after.kill()


async def test_sigterm_lets_calls_end_but_does_not_wait_for_one_without_end_and_leaves_nothing(
    server: Server, path: Path
) -> None:
    async with sandbox_at(f"unix:{path}") as client:
        short, endless = await begun(
            client, ExecRequest(code="import time; time.sleep(1.5); print('done')"), ExecRequest(code=FOREVER)
        )
        family, since = offspring(server.pid), time.monotonic()
        server.terminate()
        assert (await short).stdout == "done\n"
        with pytest.raises(SandboxUnavailable, match="stopped before"):
            await endless
        assert await asyncio.to_thread(server.wait, 20) == 0
        assert time.monotonic() - since < 15
        assert not await asyncio.to_thread(path.exists)
    assert await asyncio.to_thread(eventually, lambda: all_gone(family))


def test_a_node_with_two_doors_takes_calls_from_both_and_keeps_its_place(path: Path, tmp_path: Path) -> None:
    tokens, program = tmp_path / "tokens", tmp_path / "p.py"
    program.write_text("print(6 * 7)")
    token = {"STARLOOM_SANDBOX_TOKEN": cli_here("token", "ada", "--tokens", tokens)[1].strip()}
    server, ready = start(path, "--http", "127.0.0.1:0", "--tokens", tokens)
    unix, http = ready.removeprefix("Sandbox ready at ").split(": ")[0].split(" and ")
    with server:
        try:
            for place in (unix, http):
                assert cli_here("exec", program, "--at", place, more=token) == (0, "42\n", "")
                assert "0/2" in cli_here("status", "--at", place, more=token)[1]
            code, _, stderr = cli_here("exec", program, "--at", http)
            assert (code, "set STARLOOM_SANDBOX_TOKEN" in stderr) == (2, True)
            done = sandbox_cli("batch", "--at", http, stdin='{"id": 1, "code": "print(7)"}', more=token)
            assert (done.returncode, json.loads(done.stdout)["stdout"]) == (0, "7\n")
            code, _, stderr = cli_here("node", "--socket", path)
            assert (code, f"another server listens on {path}" in stderr) == (2, True)
            assert server.poll() is None
        finally:
            server.kill()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ((), "a node needs a door: --socket PATH, --http HOST:PORT or --valkey URL"),
        (("--http", "0.0.0.0:0"), "calls need tokens"),
        (("--http", "8080"), "expected HOST:PORT"),
        (("--http", "127.0.0.1:http"), "expected HOST:PORT"),
        (("--http", "127.0.0.1:0", "--tokens", "/nonexistent"), "token NAME --tokens /nonexistent"),
        (("--socket", "/nonexistent/s", "--tokens", "t"), "--tokens are for --http"),
        (("--socket", "/nonexistent/s"), "mkdir -m 700 /nonexistent"),
        (("--valkey", "http://127.0.0.1:1"), "valkey"),
    ],
)
def test_a_place_that_cannot_be_used_is_named_before_anything_starts(options: tuple[str, ...], complaint: str) -> None:
    code, stdout, stderr = cli_here("node", *options)
    assert (code, stdout, stderr.count("\n")) == (2, "", 1)
    assert complaint in stderr
