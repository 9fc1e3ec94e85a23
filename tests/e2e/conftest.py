"""Running the engine's command line from outside, as a person or a launcher does."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from engine.contract.events import Event
from engine.sink.event_log import read_events
from engine.sink.run_folder import RunFolder

ROOT = Path(__file__).resolve().parents[2]
GONE_S = 30.0


class EngineProcess:
    """One `python -m engine ...`, its output in a file, and every process that it started."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self._log = log.open("ab")
        self.log = log
        self.process = subprocess.Popen(
            [sys.executable, "-m", "engine", *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, timeout: float) -> int:
        return self.process.wait(timeout)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def kill(self) -> list[psutil.Process]:
        """SIGKILL, from outside; returns the processes that it had started."""
        family = psutil.Process(self.process.pid).children(recursive=True)
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        return family

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        self._log.close()


Start = Callable[..., EngineProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[EngineProcess] = []

    def begin(*arguments: str | Path) -> EngineProcess:
        process = EngineProcess([str(a) for a in arguments], tmp_path / "output.txt")
        started.append(process)
        return process

    yield begin
    for process in started:
        process.close()


def events_of(folder: Path) -> list[Event]:
    """Events so far; a folder that is being made has none."""
    if not (folder / "job.json").exists():
        return []
    return list(read_events(RunFolder.open(folder), on_torn=lambda _: None))


@pytest.fixture
def events() -> Callable[[Path], list[Event]]:
    return events_of


@pytest.fixture
def until() -> Callable[..., Event]:
    """Wait for an event of the newest attempt; fail with the engine's output when it ends before."""

    def wait(
        process: EngineProcess, folder: Path, attempt: int, wanted: Callable[[Event], bool], timeout: float = 120
    ) -> Event:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            ended = process.process.poll() is not None
            for event in events_of(folder):
                if event.attempt == attempt and wanted(event):
                    return event
            if ended:
                break
            time.sleep(0.02)  # looking at the log from outside: there is nothing to wait on but the file
        raise AssertionError(f"attempt {attempt} never told it; output:\n{process.output()}")

    return wait


@pytest.fixture
def assert_gone() -> Callable[[list[psutil.Process]], None]:
    def check(family: list[psutil.Process]) -> None:
        _, alive = psutil.wait_procs(family, timeout=GONE_S)
        assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]

    return check
