"""One `up` a ``var/``, one port: who holds what, and what a second one is told."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from webapp.config.paths import UnsafeFolder, Var, ensure_private
from webapp.machine.instance import AlreadyRunning, holder, the_only_one
from webapp.machine.listener import NoPort, listen, remember

HOLD = """
import sys
from pathlib import Path
from webapp.config.paths import Var
from webapp.machine.instance import the_only_one
with the_only_one(Var(Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def var(tmp_path: Path) -> Var:
    return Var(tmp_path / "var")


def test_nobody_holds_what_nobody_started(var: Var) -> None:
    assert holder(var) is None
    with the_only_one(var):
        pass
    assert holder(var) is None


def test_a_second_one_is_told_who_is_there_and_a_killed_one_leaves_nothing(var: Var) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(var.path)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert first.stdout is not None
    assert first.stdout.readline() == b"held\n"
    assert holder(var) == first.pid
    with pytest.raises(AlreadyRunning, match=rf"process {first.pid}: `make stop`"), the_only_one(var):
        raise AssertionError("both have it")
    first.kill()
    first.communicate()
    assert holder(var) is None
    with the_only_one(var):
        assert holder(var) == os.getpid()


def test_a_folder_that_is_not_ours_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as other:
        other.setattr(os, "getuid", lambda: 4711)
        with pytest.raises(UnsafeFolder, match="is not a folder of ours"):
            ensure_private(tmp_path)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(UnsafeFolder):
        ensure_private(link)


def test_the_next_free_port_is_taken_and_that_is_said(var: Var) -> None:
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with listen("127.0.0.1", port, said.append) as listener:
            found = listener.getsockname()[1]
            assert found > port
            assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert said == [f"port {port} is taken, using {found}"]


def test_a_port_that_cannot_be_had_is_said() -> None:
    with pytest.raises(NoPort, match=r"cannot listen on port 8000 of 192\.0\.2\.1"):
        listen("192.0.2.1", 8000, print)


def test_the_port_is_remembered(var: Var) -> None:
    ensure_private(var.path)
    assert var.last_port is None
    assert remember(var, 8003) is None
    assert remember(var, 8004) == 8003
    assert var.last_port == 8004


def test_sockets_have_short_paths_that_differ_by_installation(tmp_path: Path) -> None:
    deep = Var(tmp_path / ("x" * 200) / "var")
    assert len(str(deep.sockets / ".s.PGSQL.5432.lock")) < 107
    assert deep.sockets != Var(tmp_path / "var").sockets


def test_a_secret_is_made_once_and_is_its_owners(var: Var) -> None:
    made = var.secret("secret_key")
    assert len(made) >= 50
    assert var.secret("secret_key") == made
    assert (var.path / "secret_key").stat().st_mode & 0o777 == 0o600
    assert var.path.stat().st_mode & 0o777 == 0o700
    assert list(var.path.iterdir()) == [var.path / "secret_key"]
