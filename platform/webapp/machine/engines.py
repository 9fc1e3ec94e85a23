"""Engines as processes: what is kept of them on disk, how one is started, seen, and ended with all that it started.

An engine is nobody's child for long: it lives in a session of its own and outlives the agent (``agent.py``), which
finds it again by its record: process id, when that process started, and in which boot. Leaves out when to start or end
one.
"""

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from engine.contract.base import visible
from webapp.config import servers
from webapp.config.paths import ROOT, Var
from webapp.machine.processes import started_at, tail

COMMAND = (sys.executable, "-m", "engine", "resume")
NORMAL_EXITS = (0, 3)  # finished, stopped on request
_MARK = "STARLOOM_ENGINE"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_KEEP_S = 24 * 3600
GRACE_S = 5.0  # in which an engine's guards take along what they guard
_KILLED_S = 5.0  # in which what is killed is gone
_HOW_BYTES = 2000
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[^\S\n\t ]|[\x00-\x08\x0e-\x1f\x7f-\x9f]")
Popen = subprocess.Popen[bytes]
_log = logging.getLogger(__name__)

# What an engine needs of our environment. Not our secrets: it runs no code of ours that needs them.
_PASSED = {"HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "XDG_CACHE_HOME"}
_PASSED |= {"HF_HOME", "HF_HUB_OFFLINE", "STARLOOM_VAR"}
_PASSED_FAMILIES = ("OMP_", "MKL_", "CUDA_", "NVIDIA_", "HIP_", "ROCR_", "HSA_", "NCCL_", "VLLM_", "TORCH_", "DS_")


@dataclass(frozen=True)
class Record:
    """One launch of a run's engine, as kept on disk. Without a pid it is about to be started."""

    run_id: str
    number: int
    folder: str
    pid: int | None = None
    started: int | None = None
    boot: str = ""
    ended: bool = False

    @property
    def key(self) -> tuple[str, int]:
        return self.run_id, self.number

    @property
    def log(self) -> Path:
        return Path(self.folder) / "logs" / f"engine-{self.number}.log"

    @property
    def mark(self) -> str:
        """What every process of this launch carries in its environment."""
        return f"{self.run_id}-{self.number}"

    def lives(self) -> bool:
        """Whether that very process is there, not another one with its id."""
        if self.ended or self.pid is None or self.boot != _boot():
            return False
        return self.started is not None and started_at(self.pid) == self.started

    def of_process(self, pid: int) -> "Record":
        return replace(self, pid=pid, started=started_at(pid), boot=_boot())


def _boot() -> str:
    return _BOOT.read_text().strip()


class Records:
    """``var/agent/``: one file a launch. Those of ended launches stay a day, so that a late order starts none twice."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> list[Record]:
        """All of them; old ones of ended launches go."""
        found = []
        for file in sorted(self._folder.glob("*.json")):
            record = Record(**json.loads(file.read_text()))
            if record.ended and time.time() - file.stat().st_mtime > _KEEP_S:
                file.unlink()
            else:
                found.append(record)
        return found

    def write(self, record: Record) -> None:
        file = self._file(record)
        temporary = file.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(record)))
        temporary.replace(file)

    def remove(self, record: Record) -> None:
        self._file(record).unlink(missing_ok=True)

    def _file(self, record: Record) -> Path:
        return self._folder / f"{record.run_id}-{record.number}.json"


def spawn(record: Record, command: Sequence[str], environment: Mapping[str, str], var: Var) -> Popen:
    """Start the engine. Raises ``OSError``. No process of asyncio's: that kills its child when it is collected."""
    record.log.parent.mkdir(exist_ok=True)
    log = os.open(record.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            [*command, record.folder],
            cwd=ROOT,
            env={**engine_environment(var), **environment, _MARK: record.mark},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    finally:
        os.close(log)


def engine_environment(var: Var) -> dict[str, str]:
    """Few variables of ours, this interpreter's programs first on PATH, and where the sandbox is."""
    place = servers.sandbox(var)
    sandbox = {"STARLOOM_SANDBOX": place.url, **({"STARLOOM_SANDBOX_TOKEN": place.token} if place.token else {})}
    ours = {n: v for n, v in os.environ.items() if n in _PASSED or n.startswith(_PASSED_FAMILIES)}
    programs = [str(Path(sys.prefix) / "bin"), os.environ.get("PATH", os.defpath)]
    return {**ours, **sandbox, "PATH": os.pathsep.join(programs), "PYTHONUNBUFFERED": "1"}


def carriers(record: Record) -> list[psutil.Process]:
    """Living processes that carry the launch's mark: the engine and whatever it started, in whatever session."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it ended while we looked, or is another user's
            if process.environ().get(_MARK) == record.mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def kill(record: Record, grace_s: float = GRACE_S) -> None:
    """Kill the engine and everything that it started; wait until all of it is gone."""
    tree: list[psutil.Process] = []
    if record.lives() and record.pid is not None:
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            tree = psutil.Process(record.pid).children(recursive=True)
            os.kill(record.pid, signal.SIGKILL)
    sweep(record, grace_s)
    for process in tree:  # those that dropped the mark
        with suppress(psutil.NoSuchProcess):
            process.kill()


def sweep(record: Record, grace_s: float = GRACE_S) -> None:
    """End what an engine that is gone has left behind; its guards get time to do that themselves.

    Looks again and again rather than waiting for processes: the engine is the agent's child, whose exit code is the
    agent's to read.
    """
    begun = time.monotonic()
    while left := [process for process in carriers(record) if process.pid != record.pid]:
        waited = time.monotonic() - begun
        if waited > grace_s + _KILLED_S:
            _log.error("processes of %s do not end, kill them by hand: %s", record.mark, [each.pid for each in left])
            return
        for process in left if waited >= grace_s else ():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.1)


def how_it_ended(record: Record, code: int | None, *, asked: bool) -> str:
    """Exit in words, with the last lines of the log where the engine ended by its own mistake. Safe as text."""
    if code is None:
        words = "it ended while the agent was away, its exit code is unknown"
    else:
        words = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    if code in NORMAL_EXITS or asked:
        return words
    last = _ESCAPES.sub("", visible(tail(record.log, lines=20))).strip()
    kept = last.encode()[-_HOW_BYTES:].decode(errors="ignore")
    return f"{words}; last lines of {record.log.name}:\n{kept}" if kept else words
