"""The embedded Postgres and Valkey: private, without a port, durable, and not to be stopped from starting."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import psycopg
import pytest
import redis

from tests.webapp.support import serving
from webapp.config.paths import Var
from webapp.machine.postgres import Postgres, ServerFailed
from webapp.machine.processes import in_folder, started_at, tethered
from webapp.machine.valkey import ASKED_ONCE, ValkeyServer

pytestmark = [pytest.mark.e2e]
Server = Postgres | ValkeyServer


@pytest.fixture
def var(tmp_path: Path) -> Iterator[Var]:
    """Far down in a home that is closed to others."""
    home = tmp_path / "home"
    deep = home / ("a" * 70) / ("b" * 70) / "var"
    deep.mkdir(parents=True)
    home.chmod(0o700)
    var = Var(deep)
    yield var
    for server in (Postgres.of(var), ValkeyServer.of(var)):
        for process in in_folder(*place_of(server)):
            process.kill()
    shutil.rmtree(var.sockets, ignore_errors=True)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def place_of(server: Server) -> tuple[str, Path]:
    return ("postgres", server.data) if isinstance(server, Postgres) else ("valkey-server", server.folder)


def quiet(said: str) -> None:
    """For a server that has nothing to say to a test."""


def started(server: Server, log: Path) -> "subprocess.Popen[bytes]":
    server.prepare(quiet)
    with log.open("ab") as out:
        process = subprocess.Popen(tethered(server.command(), server.stop_signal), stdout=out, stderr=out)
    until(server.is_ready)
    return process


def until(look: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(params=["postgres", "valkey"])
def server(request: pytest.FixtureRequest, var: Var) -> Server:
    return Postgres.of(var, durable=False) if request.param == "postgres" else ValkeyServer.of(var)


def put(server: Server, value: str) -> None:
    if isinstance(server, Postgres):
        with server.connect("starloom") as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS kept (value text)")
            connection.execute("INSERT INTO kept VALUES (%s)", [value])
    else:
        client(server).rpush("kept", value)


def kept(server: Server) -> list[str]:
    if isinstance(server, Postgres):
        with server.connect("starloom") as connection:
            return [str(row[0]) for row in connection.execute("SELECT value FROM kept ORDER BY value")]
    return [value.decode() for value in client(server).lrange("kept", 0, -1)]


def client(server: ValkeyServer) -> "redis.Redis":
    return redis.Redis(unix_socket_path=str(server.socket), password=server.password)


def test_only_its_owner_reaches_it_and_nobody_by_tcp(server: Server, var: Var, tmp_path: Path) -> None:
    with serving(server, tmp_path / "log"):
        for folder in (var.sockets, server.folder):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert folder.stat().st_uid == os.getuid()
        sockets = [file for file in var.sockets.iterdir() if file.is_socket()]
        assert [stat.S_IMODE(file.stat().st_mode) for file in sockets] == [0o700]
        processes = in_folder(*place_of(server))
        assert processes
        listening = [c for p in processes for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN]
        assert listening == []
        assert not [p for p in processes if server.password in " ".join(p.cmdline())]


def test_a_wrong_password_is_refused(server: Server, tmp_path: Path) -> None:
    with serving(server, tmp_path / "log"):
        if isinstance(server, Postgres):
            with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
                psycopg.connect(host=str(server.sockets), user="starloom", dbname="starloom", password="wrong")
        else:
            with pytest.raises(redis.AuthenticationError):
                redis.Redis(unix_socket_path=str(server.socket), password="wrong", retry=ASKED_ONCE).ping()


def test_what_was_written_is_there_after_a_restart(server: Server, tmp_path: Path) -> None:
    for value in ("a", "b"):
        with serving(server, tmp_path / "log"):
            put(server, value)
    with serving(server, tmp_path / "log"):
        assert kept(server) == ["a", "b"]


def test_one_that_was_killed_starts_again(server: Server, tmp_path: Path) -> None:
    """Its pid file and its socket are still there, and the pid is another living process's by now."""
    server = replace(server, durable=True)
    process = started(server, tmp_path / "log")
    put(server, "a")
    process.kill()
    process.wait()
    if isinstance(server, Postgres):
        pid_file = server.data / "postmaster.pid"
        rest = pid_file.read_text().partition("\n")[2]
        until(lambda: not in_folder(*place_of(server)))
        pid_file.write_text(f"{os.getppid()}\n{rest}")
    with serving(server, tmp_path / "log"):
        assert kept(server) == ["a"]


def test_one_that_outlived_its_owner_is_stopped_first(server: Server, tmp_path: Path) -> None:
    process = started(server, tmp_path / "log")
    put(server, "a")
    said: list[str] = []
    server.prepare(said.append)
    assert process.wait() == 0, "it was stopped, not killed"
    assert "left behind" in said[0]
    with serving(server, tmp_path / "log"):
        assert kept(server) == ["a"]


def test_it_stops_by_itself_when_its_owner_is_killed(server: Server, tmp_path: Path) -> None:
    server.prepare(quiet)
    script = """
import subprocess, sys, time
from signal import Signals
from webapp.machine.processes import tethered
subprocess.Popen(tethered(sys.argv[2:], Signals(int(sys.argv[1]))))
time.sleep(600)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, str(int(server.stop_signal)), *server.command()]
    with (tmp_path / "log").open("ab") as log:
        owner = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    until(server.is_ready)
    owner.kill()
    owner.wait()
    until(lambda: not in_folder(*place_of(server)))
    said: list[str] = []
    server.prepare(said.append)
    assert said == []


def test_a_creation_that_was_cut_short_is_done_again(var: Var, tmp_path: Path) -> None:
    server = Postgres.of(var, durable=False)
    (server.folder / "unfinished").mkdir(parents=True)
    (server.folder / "unfinished" / "PG_VERSION").write_text("18\n")
    said: list[str] = []
    server.prepare(said.append)
    assert said == ["creating the database (once)"]
    with serving(server, tmp_path / "log"):
        assert server.is_ready()


def test_a_password_that_is_not_the_data_s_is_said(var: Var, tmp_path: Path) -> None:
    with serving(Postgres.of(var, durable=False), tmp_path / "log"):
        (var.path / "postgres_password").unlink()
        with pytest.raises(ServerFailed, match="postgres_password is not the password"):
            Postgres.of(var).is_ready()


def test_a_creation_that_fails_says_why_and_what_else(var: Var) -> None:
    server = Postgres.of(var, durable=False)
    server.password_file.unlink()
    with pytest.raises(ServerFailed, match=r"postgres_password(.|\n)*DATABASE_URL"):
        server.prepare(quiet)
    assert not server.data.exists()


def test_the_durable_settings_are_postgres_s_own(var: Var) -> None:
    assert "fsync" not in " ".join(Postgres.of(var).command())


def test_a_process_is_known_by_its_start() -> None:
    assert started_at(os.getpid()) == started_at(os.getpid())
    child = subprocess.Popen(["sleep", "600"])
    try:
        assert (started_at(child.pid) or 0) >= (started_at(os.getpid()) or 0)
    finally:
        child.send_signal(signal.SIGKILL)
    until(lambda: started_at(child.pid) is None)  # a zombie is no process any more
    child.wait()
