"""Asking the sandbox without an event loop of one's own: nothing is waited for in vain."""

import socket
import time
from pathlib import Path

import pytest

from sandbox.contract import SandboxUnavailable
from webapp.config.servers import Sandbox
from webapp.machine import sandbox_door


def test_where_nobody_listens_it_is_said_at_once(tmp_path: Path) -> None:
    begun = time.monotonic()
    for ask in (sandbox_door.status, sandbox_door.run_a_program):
        with pytest.raises(SandboxUnavailable, match=r"no node listens at unix:/.*/node\.sock"):
            ask(Sandbox(f"unix:{tmp_path}/node.sock", ours=True))
    assert time.monotonic() - begun < 1


def test_a_node_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_door, "WITHIN_S", 0.2)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "node.sock"))
        silent.listen()
        with pytest.raises(SandboxUnavailable, match="did not answer within"):
            sandbox_door.status(Sandbox(f"unix:{tmp_path}/node.sock", ours=True))
