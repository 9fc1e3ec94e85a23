"""The parts that `up` keeps running: how each is started, asked whether it answers, and stopped.

Leaves out keeping them (``keeper.py``) and their order (``supervisor.py``). A part's environment holds what it needs:
the servers and the sandbox node get none of the platform's variables.
"""

import http.client
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from kombu.exceptions import OperationalError
from redis import RedisError

from sandbox.contract import SandboxUnavailable
from webapp.config.celery import app as celery_app
from webapp.config.paths import ROOT, Var
from webapp.config.servers import Sandbox
from webapp.machine.agent import SOCKET
from webapp.machine.postgres import Postgres
from webapp.machine.processes import answers, end
from webapp.machine.sandbox_door import run_a_program
from webapp.machine.valkey import ValkeyServer

MARK = "STARLOOM_PART"
_PLAIN = ("HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR")

Say = Callable[[str], None]


def _nothing(say: Say) -> None:
    """No preparation."""


@dataclass(frozen=True)
class Part:
    """One child process of `up`."""

    name: str
    title: str
    command: list[str]
    environment: Mapping[str, str]
    is_ready: Callable[[], bool]
    """Whether it answers; may take a few seconds, is called in a thread."""
    prepare: Callable[[Say], None] = _nothing
    """Called in a thread before every start."""
    stop_signal: signal.Signals = signal.SIGTERM
    ready_within_s: float = 60
    stop_within_s: float = 15
    outlives_us: bool = False
    """It goes on when `up` is killed: engines need it."""
    inherits: tuple[int, ...] = ()
    """File descriptors that it gets."""


def server(made: Postgres | ValkeyServer, title: str, var: Var) -> Part:
    """An embedded server."""
    return Part(
        name=made.name,
        title=title,
        command=made.command(),
        environment=plain_environment(var, made.name),
        is_ready=made.is_ready,
        prepare=made.prepare,
        stop_signal=made.stop_signal,
        ready_within_s=made.ready_within_s,
        stop_within_s=30,
    )


def web(var: Var, listener: socket.socket) -> Part:
    """The ASGI server. It inherits the socket that `up` listens on: the port stays ours while it is started again, and
    who connects meanwhile is served a moment later."""
    options = ["--fd", str(listener.fileno()), "--lifespan", "off", "--ws", "websockets-sansio"]
    options += ["--ws-max-size", "65536"]  # of what browsers send
    options += ["--timeout-keep-alive", "30", "--timeout-graceful-shutdown", "3"]
    options += ["--no-proxy-headers", "--no-server-header", "--no-use-colors"]
    host, port = listener.getsockname()
    return Part(
        name="web",
        title="web server",
        command=[sys.executable, "-m", "uvicorn", "webapp.config.asgi:application", *options],
        environment=django_environment(var, "web", port),
        is_ready=lambda: healthy("127.0.0.1" if host == "0.0.0.0" else host, port),
        inherits=(listener.fileno(),),
    )


def worker(var: Var, port: int) -> Part:
    command = [sys.executable, "-m", "celery", "-A", "webapp.config", "worker", "--concurrency", "2"]
    command += ["--prefetch-multiplier", "1", "-Ofair", "--without-gossip", "--without-mingle"]
    return Part(
        name="worker",
        title="Celery worker",
        command=[*command, "--loglevel", "INFO"],
        environment=django_environment(var, "worker", port),
        is_ready=lambda: workers() > 0,
        stop_within_s=20,
    )


def beat(var: Var, port: int) -> Part:
    """Its schedule file is there once it runs; what another left may be half written and is no loss."""
    schedule = var.path / "beat-schedule"

    def files() -> list[Path]:
        return [*var.path.glob("beat-schedule*")]  # a dbm file has the ending that its library chose

    def forget(say: Say) -> None:
        for file in files():
            file.unlink()

    return Part(
        name="beat",
        title="Celery beat",
        command=[sys.executable, "-m", "celery", "-A", "webapp.config", "beat", "--schedule", str(schedule)],
        environment=django_environment(var, "beat", port),
        is_ready=lambda: bool(files()),
        prepare=forget,
    )


def sandbox(var: Var, place: Sandbox) -> Part:
    """The node of this installation; for a sandbox elsewhere there is no such part."""
    path = place.url.removeprefix("unix:")
    return Part(
        name="sandbox",
        title="sandbox node",
        command=[sys.executable, "-m", "sandbox", "node", "--socket", path],
        environment={**plain_environment(var, "sandbox"), **_starting_with("STARLOOM_SANDBOX_")},
        is_ready=lambda: runs_programs(place),
        outlives_us=True,
    )


def agent(var: Var, port: int) -> Part:
    return Part(
        name="agent",
        title="agent",
        command=[sys.executable, "manage.py", "agent"],
        environment=django_environment(var, "agent", port),
        is_ready=lambda: answers(var.sockets / SOCKET),
    )


def plain_environment(var: Var, name: str) -> dict[str, str]:
    """What a program that is not the platform gets to see."""
    ours = {variable: os.environ[variable] for variable in _PLAIN if variable in os.environ}
    programs = os.pathsep.join([str(Path(sys.prefix) / "bin"), os.environ.get("PATH", os.defpath)])
    return {**ours, "PATH": programs, "PYTHONUNBUFFERED": "1", MARK: _mark(var, name)}


def django_environment(var: Var, name: str, port: int) -> dict[str, str]:
    """All of ours; every process has to agree on ``var/`` and on the port."""
    paths = [str(ROOT / "platform"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    ours = {"STARLOOM_VAR": str(var.path), "STARLOOM_PORT": str(port), "PYTHONPATH": os.pathsep.join(paths)}
    ours["SPT_NOENV"] = "1"  # Celery writes its title over what other programs see of its environment
    return {**os.environ, **plain_environment(var, name), **ours, "DJANGO_SETTINGS_MODULE": "webapp.config.settings"}


def _starting_with(beginning: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(beginning)}


def _mark(var: Var, name: str) -> str:
    return f"{var.path}:{name}"


def left_behind(var: Var) -> list[psutil.Process]:
    """Processes that a part of an earlier `up` on this ``var/`` started and that are still there."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it ended while we looked, or is another user's
            if process.pid != os.getpid() and process.environ().get(MARK, "").startswith(_mark(var, "")):
                found.append(process)
    return found


def end_left_behind(var: Var, seconds: float) -> int:
    """End them. Most were told to when their `up` died and get a while to do so. Returns how many it had to end."""
    left = left_behind(var)
    outliving = [process for process in left if process.environ().get(MARK) == _mark(var, "sandbox")]
    end(outliving, signal.SIGTERM, 10)
    _, alive = psutil.wait_procs(left, timeout=seconds)
    end(alive, signal.SIGTERM, 5)
    return len(outliving) + len(alive)


def healthy(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=3)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def workers() -> int:
    """How many Celery workers answer within a second. By a connection of its own: one of a pool may be of a broker that
    has died since."""
    try:
        with celery_app.connection_for_write() as connection:
            return len(celery_app.control.ping(timeout=1.0, connection=connection) or ())
    except (OSError, OperationalError, RedisError):
        return 0


def runs_programs(place: Sandbox) -> bool:
    """Whether the sandbox runs a program as it should."""
    try:
        run_a_program(place)
    except SandboxUnavailable:
        return False
    return True
