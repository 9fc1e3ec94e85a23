"""set-up as a program: what it says on a Python that it cannot use, and when all is there."""

import runpy
import sys
import time
from pathlib import Path

import pytest

from scripts import environments, frontend, prepare
from scripts.packages import SetupError

ROOT = Path(__file__).resolve().parents[2]


def test_another_python_is_refused_with_the_packages_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 2, "final", 0))
    with pytest.raises(SystemExit, match=r"Python 3\.9 .*\n.*apt-get install python3\.11 python3\.11-venv"):
        runpy.run_path(str(ROOT / "scripts" / "setup.py"), run_name="__main__")


def test_what_the_machine_lacks_comes_before_any_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "requirements").mkdir()
    for name in ("engine", "platform", "dev", "sandbox"):
        (tmp_path / "requirements" / f"{name}.lock").touch()
    monkeypatch.setattr(prepare.checks, "can_load", lambda library: False)
    with pytest.raises(SetupError, match=r"this machine lacks:\n.*libnuma1"):
        prepare.prepare(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["requirements"]


def test_a_ready_clone_takes_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    engine, sandbox = environments.both(ROOT)
    assert environments.is_ready(engine), "run `make setup` first"
    assert environments.is_ready(sandbox), "run `make setup` first"
    assert frontend.is_ready(frontend.of(ROOT, engine)), "run `make setup` first"
    started = time.monotonic()
    prepare.prepare(ROOT)
    assert time.monotonic() - started < 1
    assert capsys.readouterr().out == "Ready: .venv, .venv-sandbox, front end\n"
