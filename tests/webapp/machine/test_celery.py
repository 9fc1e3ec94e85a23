"""Celery as the settings have it, with real workers on the real Valkey: no task holds up the others.

The broker's own behaviour is what is tested: rows F047 and F051 of tests/cases/platform.jsonl.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.stack import Stack
from webapp.config.celery import app

pytestmark = [pytest.mark.e2e]

WAIT_S = 60


@pytest.fixture
def workers(valkey: object, tmp_path: Path) -> Iterator[Callable[[int], None]]:
    """Starts so many workers of one process each."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(count: int) -> None:
        for number in range(count):
            command = [sys.executable, "-m", "celery", "-A", "tests.webapp.machine.celery_tasks", "worker"]
            command += ["--concurrency", "1", "--hostname", f"w{number}@%h", "--without-gossip", "--without-mingle"]
            environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "webapp.config.settings", "PYTHONPATH": "platform"}
            with (tmp_path / f"worker-{number}.log").open("wb") as log:
                started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    yield begin
    for process in started:
        process.terminate()
    for process in started:
        process.wait(WAIT_S)


def send(task: str, *files: Path) -> None:
    app.send_task(f"tests.{task}", args=[str(file) for file in files])


def test_f047_a_task_that_runs_out_of_memory_leaves_its_worker_at_work(
    workers: Callable[[int], None], tmp_path: Path
) -> None:
    workers(1)
    for number in range(3):
        send("out_of_memory", tmp_path / f"poison-{number}")
    send("note", tmp_path / "after")
    Stack.until((tmp_path / "after").exists, WAIT_S, "the worker did nothing after a MemoryError")
    assert sum((tmp_path / f"poison-{number}").exists() for number in range(3)) == 3


def test_f051_short_tasks_do_not_wait_behind_a_long_one(workers: Callable[[int], None], tmp_path: Path) -> None:
    workers(2)
    release = tmp_path / "release"
    send("long", tmp_path / "begun", release)
    Stack.until((tmp_path / "begun").exists, WAIT_S, "the long task never began")
    short = [tmp_path / f"short-{number}" for number in range(6)]
    for file in short:
        send("note", file)
    try:
        Stack.until(lambda: all(file.exists() for file in short), WAIT_S, "short tasks waited behind the long one")
    finally:
        release.touch()
