"""The ways to run a program that are compared: our sandbox, and a bare `subprocess.run` as code judges do it.

The plain arm has a second form with one BLAS thread: left alone, OpenBLAS spins on every core, which makes small
products look worse than they need be. Programs that do not print what they must end the measurement.
"""

import asyncio
import os
import subprocess
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from sandbox.backend.forkserver.lockdown import ENVIRONMENT
from sandbox.bench.programs import ANSWERS, PROGRAMS
from sandbox.client import SandboxClient
from sandbox.contract import ExecRequest, ExecStatus, Limits

LIMITS = Limits(wall_s=30, cpu_s=30)
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}


class WrongAnswer(Exception):
    """A program of ours did not print what it must: whatever was timed, it was not the call."""


@dataclass(frozen=True)
class Arm:
    """One way; `call` runs the program of that name once and checks its output."""

    name: str
    openblas_threads: str
    call: Callable[[str], Awaitable[None]]


def sandbox_arm(client: SandboxClient) -> Arm:
    """Ours, with all of its isolation."""

    async def call(program: str) -> None:
        result = await client.execute(ExecRequest(code=PROGRAMS[program], limits=LIMITS))
        if result.status is not ExecStatus.OK or result.stdout != ANSWERS[program]:
            raise WrongAnswer(f"{program} in the sandbox: {result.status}, {result.stdout!r}, {result.stderr!r}")

    return Arm("starloom", ENVIRONMENT["OPENBLAS_NUM_THREADS"], call)


def subprocess_arms(python: Path, threads: Executor) -> tuple[Arm, Arm]:
    """The plain way, as many at once as `threads` has workers: with our environment, and with one BLAS thread."""
    free = {name: value for name, value in os.environ.items() if name not in ONE_THREAD}
    return (
        _subprocess_arm("subprocess", "unset", python, threads, free),
        _subprocess_arm("subprocess_one_thread", "1", python, threads, free | ONE_THREAD),
    )


def _subprocess_arm(
    name: str, openblas_threads: str, python: Path, threads: Executor, environment: dict[str, str]
) -> Arm:
    def run(program: str) -> None:
        command: list[str | Path] = [python, "-c", PROGRAMS[program]]
        done = subprocess.run(command, capture_output=True, timeout=30, env=environment)
        if done.stdout.decode() != ANSWERS[program]:
            raise WrongAnswer(f"{program} as a subprocess: exit {done.returncode}, {done.stdout!r}, {done.stderr!r}")

    async def call(program: str) -> None:
        await asyncio.get_running_loop().run_in_executor(threads, run, program)

    return Arm(name, openblas_threads, call)
