"""Environments: when one counts as ready, and how set-up recovers from every half-made state.

Nothing is downloaded: packages are not installed, and all but one test make a stand-in for `python -m venv`.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import environments, native
from scripts.environments import INSTALLING, STAMP, Environment
from scripts.packages import SetupError


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    lock = tmp_path / "empty.lock"
    lock.write_text("# nothing\n")
    return Environment(tmp_path / "env", (lock,), import_paths=(tmp_path,))


@pytest.fixture(autouse=True)
def no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "install_pinned", lambda lines, run: None)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make only what set-up looks at; a real environment takes seconds."""

    def create(environment: Environment) -> None:
        (environment.site_packages / "pip").mkdir(parents=True)
        environment.python.parent.mkdir()
        environment.python.symlink_to(sys.executable)
        (environment.folder / "pyvenv.cfg").write_text("version = 3.11.2\n")

    monkeypatch.setattr(environments, "create", create)


@pytest.mark.e2e
def test_a_real_one_runs_python_with_pip_and_imports_our_folders(environment: Environment) -> None:
    environments.make(environment)
    assert environments.is_ready(environment)
    command = [str(environment.python), "-c", "import pip, sys; print(*sys.path, sep='\\n')"]
    paths = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert str(environment.folder.parent) in paths


def test_one_that_cannot_be_made_says_why(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(SetupError, match="could not make"):
        environments.make(environment)
    assert not environments.is_ready(environment)


@pytest.mark.usefixtures("quick")
def test_made_once_it_is_ready_until_its_lock_changes(environment: Environment) -> None:
    assert not environments.is_ready(environment)
    environments.make(environment)
    assert environments.is_ready(environment)
    environment.locks[0].write_text("einops==0.8.2\n")
    assert not environments.is_ready(environment)
    environments.make(environment)
    assert environments.is_ready(environment)
    assert (environment.site_packages / "starloom.pth").read_text() == f"{environment.folder.parent}\n"


@pytest.mark.usefixtures("quick")
def test_one_cut_short_while_unpacking_is_made_anew(environment: Environment) -> None:
    environments.make(environment)
    half = environment.site_packages / "half.py"
    half.touch()
    (environment.folder / STAMP).unlink()
    (environment.folder / INSTALLING).touch()
    environments.make(environment)
    assert environments.is_ready(environment)
    assert not half.exists()


@pytest.mark.usefixtures("quick")
def test_one_whose_interpreter_went_away_is_made_anew(environment: Environment) -> None:
    environments.make(environment)
    environment.python.unlink()
    environment.python.symlink_to("/nowhere/python3.11")
    assert not environments.is_ready(environment)
    environments.make(environment)
    assert environments.is_ready(environment)


@pytest.mark.usefixtures("quick")
def test_one_that_was_moved_is_not_ready(environment: Environment, tmp_path: Path) -> None:
    environments.make(environment)
    environment.folder.rename(tmp_path / "moved")
    assert not environments.is_ready(Environment(tmp_path / "moved", environment.locks))


def test_a_lock_file_of_a_killed_compiler_goes_and_a_fresh_one_stays(environment: Environment) -> None:
    """torch waits for such a file for ever."""
    piece = native.folder(environment) / "cpu_adam"
    piece.mkdir(parents=True)
    (piece / "lock").touch()
    native.drop_locks(environment)
    assert (piece / "lock").exists()
    native.drop_locks(environment, older_than_s=0)
    assert not (piece / "lock").exists()


def test_processes_find_ninja_and_the_compiled_pieces(environment: Environment) -> None:
    variables = native.variables(environment)
    assert variables["PATH"].split(":")[0] == str(environment.folder / "bin")
    assert variables["TORCH_EXTENSIONS_DIR"] == str(environment.folder / "torch_extensions")
