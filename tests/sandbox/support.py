"""What several tests of the sandbox use: a sandbox for plain functions, case files, a look at processes."""

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from sandbox.client import SandboxClient, local_sandbox

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("STARLOOM_SANDBOX_PYTHON", ROOT / ".venv-sandbox/bin/python"))


class SandboxThread:
    """A sandbox on an event loop of its own thread, for tests that are plain functions."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), daemon=True)

    def __enter__(self) -> "SandboxThread":
        self._thread.start()
        assert self._ready.wait(90), "the sandbox did not start; its error is printed above"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

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
