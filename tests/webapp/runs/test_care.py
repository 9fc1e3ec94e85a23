"""What nobody else would notice: forgotten starts and lost engines. And no run is ended that may yet live."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from engine.sink.run_folder import RunFolder
from tests.webapp.support import make_run
from webapp.runs import care, services
from webapp.runs.models import Command, Run
from webapp.runs.states import WITH_ENGINE, State

pytestmark = pytest.mark.django_db


class Machine:
    """A launcher that says of every launch the same."""

    alive: bool | None = False

    def is_alive(self, run_id: str, number: int) -> bool | None:
        return self.alive


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(care, "launcher", lambda: made)
    return made


def ago(seconds: float) -> Any:
    return timezone.now() - timedelta(seconds=seconds)


def state_of(run: Run) -> str:
    return Run.objects.get(pk=run.pk).state


@pytest.mark.parametrize("state", ["queued", "starting"])
def test_a_start_that_was_forgotten_is_asked_for_again(
    queued_tasks: list[Any], state: str, django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks():
        forgotten, young = make_run(state=state, state_at=ago(40)), make_run(state=state, state_at=ago(10))
    queued_tasks.clear()
    care.start_forgotten()
    assert queued_tasks == [("start_run", forgotten.pk)]
    assert young.pk not in {run_id for _, run_id in queued_tasks}


def test_a_kill_that_was_forgotten_is_asked_for_again(queued_tasks: list[Any]) -> None:
    """Only of the launch that was meant, and not at once: the first one may be on its way."""
    meant, young, later = (make_run(state="stopping", launches=2) for _ in range(3))
    for run, launch in ((meant, 2), (young, 2), (later, 1)):
        run.commands.create(kind="kill", status="applied", launch=launch, by="ann")
    Command.objects.exclude(run=young).update(created_at=ago(15))
    queued_tasks.clear()
    care.kill_forgotten()
    assert queued_tasks == [("kill_engine", meant.pk, 2)]


@pytest.mark.parametrize("state", sorted(WITH_ENGINE))
def test_a_silent_run_without_a_process_is_over(state: State) -> None:
    run = make_run(state=state, heartbeat_at=ago(60), state_at=ago(300))
    care.end_lost()
    assert state_of(run) == ("stopped" if state == State.stopping else "failed")


@pytest.mark.parametrize("alive", [True, None])
def test_a_silent_run_whose_process_lives_or_may_live_goes_on(machine: Machine, alive: bool | None) -> None:
    """A step may take hours, and an agent that is away knows nothing."""
    machine.alive = alive
    run = make_run(state="running", heartbeat_at=ago(10_000))
    care.end_lost()
    assert state_of(run) == "running"


def test_a_run_that_speaks_is_not_asked_after() -> None:
    run = make_run(state="running", heartbeat_at=ago(1))
    care.end_lost()
    assert state_of(run) == "running"


def test_a_start_that_is_still_being_tried_is_not_lost() -> None:
    """Its process is not there yet because the agent was away: the next try is on its way."""
    run = make_run(state="starting", heartbeat_at=ago(60), state_at=ago(60))
    care.end_lost()
    assert state_of(run) == "starting"


def test_a_run_that_was_read_in_lives_as_long_as_its_folder_is_held(tmp_path: Path) -> None:
    """Nobody here launched it, so no launcher knows of it."""
    run = make_run(state="running", launches=0, heartbeat_at=ago(60), folder=str(tmp_path / "run"))
    folder = RunFolder.create(Path(run.folder), services.job_of(run))
    with folder.lock():
        care.end_lost()
        assert state_of(run) == "running"
    care.end_lost()
    assert state_of(run) == "failed"
