"""One tool call after the other: our sandbox, fully isolated, against a bare ``subprocess.run``.

Arms alternate round by round on the same cores, so that a busy machine slows both. Leaves out concurrency and load.
"""

import asyncio
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

from sandbox.client import SandboxClient, local_sandbox
from sandbox.contract import ExecRequest, ExecStatus, Limits

PROGRAMS = {
    "print": "print(1+1)",
    "numpy": "import numpy as np\na = np.ones((200, 200))\nprint((a @ a).sum())",
    "sympy": "from sympy import symbols, solve\nx = symbols('x')\nprint(solve(x**3 - 6*x**2 + 11*x - 6, x))",
}
ROUNDS, CALLS = 5, {"print": 20, "numpy": 5, "sympy": 3}


async def ours(sandbox: SandboxClient, code: str) -> float:
    began = time.perf_counter()
    result = await sandbox.execute(ExecRequest(code=code, limits=Limits(wall_s=30, cpu_s=30)))
    if result.status is not ExecStatus.OK:
        raise RuntimeError(f"{code!r} ended as {result.status}: {result.stderr}")
    return time.perf_counter() - began


def theirs(python: Path, code: str) -> float:
    began = time.perf_counter()
    subprocess.run([python, "-c", code], capture_output=True, timeout=30, check=True)
    return time.perf_counter() - began


async def measure(python: Path) -> dict[str, Any]:
    """Milliseconds a call, median over all rounds, and how many times faster ours is."""
    found: dict[str, Any] = {}
    async with local_sandbox(slots=1, python=python) as sandbox:
        for name, code in PROGRAMS.items():
            await ours(sandbox, code)
            arms: dict[str, list[float]] = {"starloom": [], "subprocess": []}
            for _ in range(ROUNDS):
                arms["starloom"] += [await ours(sandbox, code) for _ in range(CALLS[name])]
                arms["subprocess"] += [await asyncio.to_thread(theirs, python, code) for _ in range(CALLS[name])]
            ms = {arm: 1000 * statistics.median(times) for arm, times in arms.items()}
            found[name] = {
                "p50_ms": ms,
                "ratio": ms["subprocess"] / ms["starloom"],
                "calls": ROUNDS * CALLS[name],
            }
    return found
