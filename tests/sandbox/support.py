"""What several tests of the sandbox use: a real sandbox for plain functions, a scripted one, case files, processes."""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from typer.testing import CliRunner

from sandbox.__main__ import app
from sandbox.backend.outcome import Facts, result_of
from sandbox.client import SandboxClient, local_sandbox
from sandbox.contract import (
    ExecRequest,
    ExecResult,
    NodeStatus,
    RequestRefused,
    SandboxBusy,
    SandboxStatus,
    SandboxUnavailable,
    SessionLost,
)

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("STARLOOM_SANDBOX_PYTHON", ROOT / ".venv-sandbox/bin/python"))
ENVIRONMENT = {"STARLOOM_SANDBOX_PYTHON": str(PYTHON), "PATH": "/usr/bin:/bin"}
"""All that the commands under test get to see."""


def sandbox_cli(
    *arguments: str | Path, stdin: str = "", umask: int = -1, more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `python -m sandbox ...` to its end; more: variables beside ENVIRONMENT."""
    return subprocess.run(
        [sys.executable, "-m", "sandbox", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**ENVIRONMENT, **(more or {})},
        timeout=60,
        umask=umask,
        check=False,
    )


def cli_here(*arguments: str | Path, more: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command that starts no sandbox, run in this process, which is much faster."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], env=more)
    return done.exit_code, done.stdout, done.stderr


class SandboxThread:
    """A sandbox on an event loop of its own thread, for tests that are plain functions."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._ready = threading.Event()
        self._failure: SandboxUnavailable | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "SandboxThread":
        self._thread.start()
        assert self._ready.wait(90), "the sandbox does not start"
        if self._failure:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except SandboxUnavailable as error:
            self._failure = error
            self._ready.set()

    async def _live(self) -> None:
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        async with local_sandbox(slots=self._slots, python=PYTHON) as self.client:
            self._ready.set()
            await self._stop.wait()

    client: SandboxClient

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for `work` on the sandbox's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)


NODE = NodeStatus(
    name="a",
    host="h",
    tier="full",
    isolation="all of it",
    slots=4,
    busy=1,
    sessions=2,
    answered=3,
    uptime_s=4,
    load_1m=0.5,
    memory_mb=6,
)
STATUS = SandboxStatus(nodes=(NODE,), queued_interactive=7, queued_training=8)
_OURS = {
    "fail": SandboxUnavailable("no zygote"),
    "busy": SandboxBusy("the queue is full"),
    "lost": SessionLost("its node died"),
    "refuse": RequestRefused("cell 0 of a session that lives"),
    "break": ZeroDivisionError("a bug"),
}


class Scripted:
    """A `Submitter` that does what the program is named: `hang`, `wait`, one of `_OURS`, else echo."""

    def __init__(self) -> None:
        self.requests: list[ExecRequest] = []
        self.cancelled: list[str] = []
        self.ended: list[str] = []
        self.go_on = asyncio.Event()

    @property
    def seen(self) -> list[str]:
        """The ids of the calls that came."""
        return [request.id for request in self.requests]

    async def submit(self, request: ExecRequest) -> ExecResult:
        """Echo: stdout is the code."""
        self.requests.append(request)
        if request.code in _OURS:
            raise _OURS[request.code]
        try:
            if request.code == "hang":
                await asyncio.Event().wait()
            if request.code == "wait":
                await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.append(request.id)
            raise
        stdout = request.code.encode("utf-8", "replace")
        return result_of(request, Facts(stdout, b"", wait_status=0, wall_s=0, queued_s=0))

    async def end_session(self, session: str) -> None:
        """Remember it."""
        self.ended.append(session)

    async def status(self) -> SandboxStatus:
        """Always the same."""
        return STATUS


def cases(name: str) -> list[dict[str, Any]]:
    """The rows of tests/cases/NAME.jsonl."""
    text = (ROOT / "tests/cases" / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def eventually(condition: Callable[[], bool], within_s: float = 10) -> bool:
    """Wait for what comes about by itself; False if it did not in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


async def until(condition: Callable[[], object]) -> None:
    """The same on an event loop; fails by a TimeoutError."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - nothing tells us
            await asyncio.sleep(0.01)


def offspring(pid: int) -> set[int]:
    """All living descendants of `pid`, zombies left out."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended while we looked
        if fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found.add(child)
            waiting.append(child)
    return found
