"""A process of ours sets its own environment, and keeps what its caller has set."""

import os
import sys
from pathlib import Path

import pytest

from engine.environment import prepare_environment


def test_the_environments_own_folders_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    prepare_environment()
    prepare_environment()
    assert os.environ["PATH"] == f"{Path(sys.prefix) / 'bin'}{os.pathsep}/usr/bin"
    assert os.environ["TORCH_EXTENSIONS_DIR"] == str(Path(sys.prefix) / "torch_extensions")


def test_what_the_caller_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", "/elsewhere")
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    prepare_environment()
    assert (os.environ["TORCH_EXTENSIONS_DIR"], os.environ["DS_ACCELERATOR"]) == ("/elsewhere", "cuda")
