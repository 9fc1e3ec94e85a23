"""The socket of a node: its owner's alone, one server at a time, and a dead one's place is taken."""

import socket
import stat
from pathlib import Path

import pytest

from sandbox.doors.listening import CannotListen, listening


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.sock"


def leave_dead(path: Path) -> None:
    """What a server leaves that was killed."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


def test_it_is_its_owners_alone_and_goes_with_the_server(path: Path) -> None:
    with listening(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()


def test_a_dead_servers_socket_is_replaced(path: Path) -> None:
    leave_dead(path)
    with listening(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_a_living_server_is_left_alone(path: Path) -> None:
    with listening(path), socket.socket(socket.AF_UNIX) as client:
        with pytest.raises(CannotListen, match=r"another server listens on .*node\.sock"), listening(path):
            pass
        client.connect(str(path))


def test_the_next_servers_socket_outlives_the_last_one(path: Path) -> None:
    first = listening(path)
    first.__enter__().close()  # it takes no more calls, but has not ended yet
    with listening(path), socket.socket(socket.AF_UNIX) as client:
        first.__exit__(None, None, None)
        client.connect(str(path))


def test_a_file_that_is_no_socket_is_kept(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(CannotListen, match="is no socket"), listening(path):
        pass
    assert path.read_text() == "precious"


@pytest.mark.parametrize("mode", [0o701, 0o750, 0o777])
def test_a_folder_that_others_can_enter_is_refused(path: Path, mode: int) -> None:
    path.parent.chmod(mode)
    with pytest.raises(CannotListen, match=f"mode {mode:04o}.*mode 0700"), listening(path):
        pass


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotListen, match=r"mkdir -m 700 .*/none"), listening(tmp_path / "none" / "node.sock"):
        pass


def test_a_path_too_long_for_the_kernel_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotListen, match="107 bytes at most"), listening(tmp_path / ("x" * 120)):
        pass
