"""A node that has answered many calls is as it was after the first thousand: row D083 of the case table."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandbox.backend.leftovers import at_rest
from sandbox.client import SandboxClient, sandbox_at
from sandbox.contract import ExecRequest
from tests.sandbox.support import PYTHON, ROOT, offspring, until

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(3600)]
WARM, CALLS, MOST_GROWTH = 1_000, 50_000, 1.05


@dataclass(frozen=True)
class Look:
    """What a node holds: its own descriptors and threads, all of its temporary files, memory of it and its tree."""

    descriptors: int
    threads: int
    files: int
    node_kib: int
    tree_kib: int

    def is_flat_since(self, early: "Look") -> bool:
        pairs = zip(vars(self).values(), vars(early).values(), strict=True)
        return all(late <= MOST_GROWTH * before for late, before in pairs)


def look(pid: int, temporary: Path) -> Look:
    node = Path(f"/proc/{pid}")
    return Look(
        descriptors=len(os.listdir(node / "fd")),
        threads=len(os.listdir(node / "task")),
        files=sum(1 for _ in temporary.rglob("*")),
        node_kib=_proportional_kib(pid),
        tree_kib=sum(_proportional_kib(child) for child in {pid} | offspring(pid)),
    )


def _proportional_kib(pid: int) -> int:
    """Resident memory, with shared pages split among those who share them; 0 for one that has just ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return 0
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))


@asynccontextmanager
async def node(folder: Path) -> AsyncIterator[tuple[int, SandboxClient]]:
    """A node's process id, and a client of it."""
    door = folder / "door"
    door.mkdir(mode=0o700)
    command = [sys.executable, "-m", "sandbox", "node", "--socket", door / "node.sock", "--slots", "2"]
    environment = {**os.environ, "TMPDIR": str(folder), "STARLOOM_SANDBOX_PYTHON": str(PYTHON)}
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=environment, stdout=subprocess.PIPE)
    try:
        assert process.stdout
        assert await process.stdout.readline()
        async with sandbox_at(f"unix:{door}/node.sock") as client:
            yield process.pid, client
    finally:
        process.terminate()
        await process.wait()


async def call(client: SandboxClient, times: int) -> None:
    """One after the other."""
    for number in range(times):
        result = await client.execute(ExecRequest(code=f"print({number})"))
        assert result.stdout == f"{number}\n"


async def test_fifty_thousand_calls_leave_a_node_as_it_was(tmp_path: Path) -> None:
    async with node(tmp_path) as (pid, client):
        await call(client, WARM)
        await at_rest(pid)
        early = look(pid, tmp_path)
        await call(client, CALLS - WARM)
        try:
            await until(lambda: look(pid, tmp_path).is_flat_since(early))  # what the last calls left is going
        except TimeoutError:
            pytest.fail(f"after {WARM:,} calls {early}, after {CALLS:,} {look(pid, tmp_path)}")
