"""What a shutdown asks of runs and how they are found again; the demo; what is said when nobody is there."""

from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from tests.webapp.support import make_run, make_user
from webapp.accounts.models import User
from webapp.machine import demo, rest
from webapp.machine.local_launcher import LocalLauncher
from webapp.machine.voice import Voice, box
from webapp.runs import services
from webapp.runs.launchers import Launch, LaunchFailed
from webapp.runs.models import Run
from webapp.runs.states import State

pytestmark = pytest.mark.django_db


def ended(run: Run, reason: str = "stopped on request") -> None:
    """As its engine tells."""
    locked = Run.objects.select_for_update().get(pk=run.pk)
    services.change_state(locked, State.stopped, reason=reason, actor=services.ENGINE, heard=True)
    if hasattr(services, "save_change"):
        services.save_change(locked)


def test_every_living_run_is_asked_once_and_found_again_afterwards() -> None:
    running, paused = make_run(state="running", name="a"), make_run(state="paused", name="b")
    queued = make_run(name="c")
    stopping = make_run(state="stopping", name="d")
    finished = make_run(state="finished", name="e")
    assert sorted(rest.ask_for_a_stop()) == ["a", "b", "c"]
    assert rest.ask_for_a_stop() == []
    states = {run.name: run.state for run in Run.objects.all()}
    assert states == {"a": "stopping", "b": "stopping", "c": "stopped", "d": "stopping", "e": "finished"}
    for run in (running, paused, stopping):
        ended(run)
    assert [run.name for run in rest.stopped_by_shutdown()] == ["a", "b", "c"]
    assert finished not in rest.stopped_by_shutdown()
    assert queued in rest.stopped_by_shutdown()


def test_what_was_resumed_or_stopped_by_a_person_is_not_found(queued_tasks: list[Any]) -> None:
    run = make_run(state="running")
    rest.ask_for_a_stop()
    ended(run)
    assert rest.resume_all("somebody") == [run]
    assert list(rest.stopped_by_shutdown()) == []
    services.next_launch(run.pk)
    services.send_command(run.pk, "stop", by="a person")
    ended(run)
    assert list(rest.stopped_by_shutdown()) == []


def test_resume_runs_resumes_and_says_so(
    capsys: pytest.CaptureFixture[str], django_capture_on_commit_callbacks: Any, queued_tasks: list[Any]
) -> None:
    run = make_run(state="running", name="night shift")
    rest.ask_for_a_stop()
    ended(run)
    with django_capture_on_commit_callbacks(execute=True):
        call_command("resume_runs")
    assert capsys.readouterr().out == f"resumed: night shift ({run.pk})\n"
    assert queued_tasks == [("start_run", run.pk)]
    call_command("resume_runs")
    assert capsys.readouterr().out == "no run was stopped by a shutdown\n"


def test_the_demo_makes_one_login_and_one_run() -> None:
    first = demo.begin()
    assert first.username == "admin"
    assert first.password is not None
    assert User.objects.get().check_password(first.password)
    assert len(first.password) >= 16
    run = Run.objects.get(pk=first.run_id)
    assert (run.name, run.project.owner.username, run.state) == ("demo", "admin", "queued")
    assert demo.begin() == demo.Demo(first.run_id, "admin", None), "what is there is not made again"


def test_an_ended_demo_is_started_anew_and_logins_are_left_alone() -> None:
    make_user("somebody", is_superuser=True)
    first = demo.begin()
    assert (first.username, first.password) == ("somebody", None)
    Run.objects.update(state="finished")
    assert demo.begin().run_id != first.run_id
    assert User.objects.count() == 1


def test_without_an_administrator_the_demo_says_how_to_make_one() -> None:
    make_user("somebody")
    with pytest.raises(services.Refused, match="createsuperuser"):
        demo.begin()


def test_an_agent_that_is_not_there_is_said() -> None:
    launcher = LocalLauncher()
    with pytest.raises(LaunchFailed, match="does not answer"):
        launcher.start(Launch("run_a", 1, Path("/nowhere")))
    assert launcher.is_alive("run_a", 1) is None
    with pytest.raises(LaunchFailed):
        launcher.kill("run_a", 1)


def test_a_terminal_that_was_closed_stops_nobody(tmp_path: Path) -> None:
    def broken(text: str) -> None:
        raise OSError("Input/output error")

    say = Voice(broken, tmp_path / "up.log")
    say("one")
    say("two")
    say.show("the password")
    assert [line.split("s  ")[1] for line in (tmp_path / "up.log").read_text().splitlines()] == ["one", "two"]


def test_a_box_holds_its_lines() -> None:
    assert box(["a", "bcd"]).splitlines() == ["+-------+", "|  a    |", "|  bcd  |", "+-------+"]


def test_down_says_when_nothing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("down")
    assert "does not run on" in capsys.readouterr().out


def test_resume_runs_says_what_to_do_without_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import OperationalError

    def gone(by: str) -> list[Run]:
        raise OperationalError("connection failed")

    monkeypatch.setattr(rest, "resume_all", gone)
    with pytest.raises(CommandError, match=r"connection failed\nIs Starloom running\?"):
        call_command("resume_runs")
