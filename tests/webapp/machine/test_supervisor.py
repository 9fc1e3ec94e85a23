"""How long a shutdown waits for runs, and what it does with those that do not come to rest. No processes here."""

import asyncio
from pathlib import Path

import pytest

from webapp.config.paths import Var
from webapp.machine import rest, supervisor
from webapp.machine.supervisor import Supervisor
from webapp.machine.voice import Voice
from webapp.runs.launchers import LaunchFailed


class Runs:
    """Runs that come to rest after some looks, or when they are killed."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.killed = False

    def at_work(self) -> int:
        self.looks -= 1
        return 1 if self.looks >= 0 and not self.killed else 0

    def kill(self) -> None:
        self.killed = True


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    monkeypatch.setattr(supervisor, "_REST_S", 0.6)
    monkeypatch.setattr(rest, "ask_for_a_stop", lambda: ["night shift"])
    say = Voice(lambda text: None, tmp_path / "up.log")
    return Supervisor(Var(tmp_path / "var"), say, host="127.0.0.1", port=0, keep_runs=False, with_demo=False)


def bring_to_rest(made: Supervisor, runs: Runs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setattr(rest, "at_work", runs.at_work)
    monkeypatch.setattr(rest, "kill_engines", runs.kill)
    asyncio.run(made._bring_runs_to_rest())
    return (tmp_path / "up.log").read_text()


def test_runs_that_stop_in_time_are_not_killed(
    made: Supervisor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = Runs(looks=2)
    said = bring_to_rest(made, runs, monkeypatch, tmp_path)
    assert "1 run asked for a checkpoint: night shift" in said
    assert "all runs are at rest" in said
    assert not runs.killed


def test_runs_that_do_not_are_killed(made: Supervisor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs = Runs(looks=1000)
    said = bring_to_rest(made, runs, monkeypatch, tmp_path)
    assert runs.killed
    assert "waiting for 1 run" in said
    assert "killing the engines of 1 run; they can be resumed from the last checkpoint" in said
    assert "all runs are at rest" in said


def test_a_second_ctrl_c_does_not_wait(made: Supervisor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(supervisor, "_REST_S", 600)
    made._hurry.set()
    runs = Runs(looks=1000)
    bring_to_rest(made, runs, monkeypatch, tmp_path)
    assert runs.killed


def test_with_nothing_at_work_nothing_is_said(
    made: Supervisor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(rest, "ask_for_a_stop", list)
    monkeypatch.setattr(rest, "at_work", lambda: 0)
    asyncio.run(made._bring_runs_to_rest())
    assert not (tmp_path / "up.log").exists()


def test_an_agent_that_does_not_answer_leaves_runs_going(
    made: Supervisor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def gone() -> int:
        raise LaunchFailed("this machine's agent does not answer")

    monkeypatch.setattr(rest, "at_work", gone)
    assert asyncio.run(made._runs_at_rest()) is False
    assert "runs could not be stopped: this machine's agent" in (tmp_path / "up.log").read_text()
