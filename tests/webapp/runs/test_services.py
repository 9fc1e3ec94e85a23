"""The only writer of a run's state: who may ask what when, what it makes, and what no race can undo."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections, transaction

from tests.webapp.support import make_project, make_run
from webapp.datasets.models import Dataset
from webapp.runs import services
from webapp.runs.models import Attempt, Command, Run, Transition
from webapp.runs.services import Refused, engine_gone, next_launch, send_command
from webapp.runs.states import ALLOWED, ENDED, LIVING, State

pytestmark = pytest.mark.django_db


def fresh(run: Run) -> Run:
    return Run.objects.get(pk=run.pk)


def recipe_of(run: Run) -> Any:
    return services.job_of(run).recipe


# Beginning


def test_a_new_run_is_queued_and_its_start_is_asked_for_after_commit(
    queued_tasks: list[Any], django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        run = make_run()
        assert queued_tasks == []
    assert queued_tasks == [("start_run", run.pk)]
    assert (run.state, run.launches, run.total_steps) == ("queued", 0, 14)
    assert [(stage.name, stage.offset) for stage in run.stages.all()] == [("sft", 0), ("rl", 4), ("eval", 14)]
    assert [(each.before, each.after) for each in run.transitions.all()] == [("", "queued")]


@pytest.mark.django_db(transaction=True)
def test_f053_a_roll_back_starts_nothing(queued_tasks: list[Any]) -> None:
    """The task would find no run, or, resumed, start one that nobody resumed."""
    stopped = make_run(state="stopped")
    queued_tasks.clear()

    def in_vain(call: Callable[[], Any]) -> None:
        with transaction.atomic():
            call()
            transaction.set_rollback(True)

    in_vain(make_run)
    in_vain(lambda: send_command(stopped.pk, "resume", by="ada"))
    assert queued_tasks == []
    assert (Run.objects.count(), fresh(stopped).state) == (1, "stopped")


def test_a_launch_is_numbered_once_however_often_the_task_comes() -> None:
    run = make_run()
    first, again = next_launch(run.pk), next_launch(run.pk)
    assert first == again
    assert first is not None
    assert (first.number, fresh(run).launches, fresh(run).state) == (1, 1, "starting")
    assert Transition.objects.filter(run=run, after="starting").count() == 1


@pytest.mark.parametrize("state", sorted(set(State) - {State.queued, State.starting}))
def test_there_is_nothing_to_launch_for_a_run_that(state: str) -> None:
    run = make_run(state=state)
    assert next_launch(run.pk) is None
    assert (fresh(run).state, fresh(run).launches) == (state, 1)


def test_a_start_that_failed_for_good_is_told_and_can_be_tried_again() -> None:
    run = make_run(state="starting")
    services.could_not_start(run.pk, "the agent does not answer")
    assert (fresh(run).state, fresh(run).state_reason) == ("failed", "the agent does not answer")
    send_command(run.pk, "resume", by="ada")
    launch = next_launch(run.pk)
    assert launch is not None
    assert launch.number == 2


def test_a_start_that_failed_does_not_end_a_run_that_runs_after_all() -> None:
    run = make_run(state="running")
    services.could_not_start(run.pk, "the agent does not answer")
    assert fresh(run).state == "running"


# Commands


@pytest.mark.parametrize("state", sorted(State))
@pytest.mark.parametrize("kind", sorted(ALLOWED))
def test_a_command_is_taken_where_it_makes_sense_and_else_refused_with_what_would(kind: str, state: State) -> None:
    run = make_run(state=state, launches=1)
    if state in ALLOWED[kind]:
        assert send_command(run.pk, kind, by="ada").launch == 1
        assert fresh(run).revision == run.revision + 1
        return
    with pytest.raises(Refused, match=f"{kind}: the run is {state}; possible now: ") as refused:
        send_command(run.pk, kind, by="ada")
    assert refused.value.code == "wrong_state"
    assert (fresh(run).state, fresh(run).revision, run.commands.count()) == (state, run.revision, 0)


def test_an_unknown_command_is_refused() -> None:
    with pytest.raises(Refused, match="selfdestruct"):
        send_command(make_run(state="running").pk, "selfdestruct", by="ada")


@pytest.mark.parametrize(("state", "kind"), [("running", "pause"), ("running", "stop"), ("paused", "resume")])
def test_a_double_click_is_one_command(state: str, kind: str) -> None:
    """Also when the first has changed the state so that it could not be asked any more."""
    run = make_run(state=state)
    first, second = send_command(run.pk, kind, by="ada"), send_command(run.pk, kind, by="ada")
    assert (first.pk, run.commands.count()) == (second.pk, 1)


def test_stopping_a_queued_run_needs_no_engine() -> None:
    run = make_run()
    command = send_command(run.pk, "stop", by="ada", reason="wrong seed")
    assert (command.status, fresh(run).state, fresh(run).state_reason) == ("applied", "stopped", "wrong seed")
    assert next_launch(run.pk) is None


def test_stopping_a_running_run_waits_for_its_engine() -> None:
    run = make_run(state="running")
    command = send_command(run.pk, "stop", by="ada")
    assert (command.status, fresh(run).state, fresh(run).state_reason) == ("accepted", "stopping", "asked by ada")
    assert [each.id for each in services.waiting_commands(fresh(run))] == [command.pk]


def test_killing_is_a_task_for_this_launch_and_may_be_asked_again(
    queued_tasks: list[Any], django_capture_on_commit_callbacks: Any
) -> None:
    run = make_run(state="running", launches=3)
    with django_capture_on_commit_callbacks(execute=True):
        command = send_command(run.pk, "kill", by="ada")
        send_command(run.pk, "kill", by="ada")
    assert [task for task in queued_tasks if task[0] == "kill_engine"] == [("kill_engine", run.pk, 3)] * 2
    assert (command.status, fresh(run).state, fresh(run).state_reason) == ("applied", "stopping", "killed by ada")


def test_a_failed_run_is_resumed_as_another_launch_of_the_same_run(
    queued_tasks: list[Any], django_capture_on_commit_callbacks: Any
) -> None:
    run = make_run(state="failed", attempt=2)
    with django_capture_on_commit_callbacks(execute=True):
        command = send_command(run.pk, "resume", by="ada")
    assert (command.status, fresh(run).state) == ("applied", "queued")
    assert ("start_run", run.pk) in queued_tasks
    next_launch(run.pk)
    assert (fresh(run).launches, fresh(run).past_attempts, fresh(run).ended_at) == (2, 2, None)


def test_commands_die_with_their_launch() -> None:
    run = make_run(state="running")
    pause, stop = send_command(run.pk, "pause", by="ada"), send_command(run.pk, "stop", by="ada")
    engine_gone(run.pk, 1, "exit code 0")
    found = {each.kind: (each.status, each.note) for each in Command.objects.filter(pk__in=(pause.pk, stop.pk))}
    assert found == {"stop": ("applied", ""), "pause": ("rejected", "the run is stopped")}
    assert services.waiting_commands(fresh(run)) == ()


def test_the_reason_of_a_command_is_stored_visibly() -> None:
    assert send_command(make_run(state="running").pk, "stop", by="ada", reason="a\x00\ud800").reason == "a\\x00\\ud800"


# Engines that are gone


@pytest.mark.parametrize("state", sorted(State))
def test_an_engine_that_ended_without_a_word(state: State) -> None:
    run = make_run(state=state, launches=1, state_reason="asked by ada")
    Attempt.objects.create(run=run, number=1)
    Run.objects.filter(pk=run.pk).update(attempt=1)
    engine_gone(run.pk, 1, "killed by SIGKILL")
    found = fresh(run)
    if state in ENDED or state == State.queued:
        assert (found.state, found.revision, run.attempts.get().outcome) == (state, run.revision, "")
    elif state == State.stopping:
        assert (found.state, found.state_reason) == ("stopped", "asked by ada (killed by SIGKILL)")
        assert run.attempts.get().outcome == "stopped"
    else:
        assert (found.state, found.state_reason) == ("failed", "the engine ended without a word: killed by SIGKILL")
        assert (run.attempts.get().outcome, run.attempts.get().message) == ("failed", found.state_reason)
        assert run.attempts.get().ended_at is not None


@pytest.mark.parametrize("state", sorted(LIVING - {State.queued}))
def test_the_end_of_an_older_launch_ends_nothing(state: State) -> None:
    run = make_run(state=state, launches=2)
    engine_gone(run.pk, 1, "exit code 1")
    assert (fresh(run).state, fresh(run).revision) == (state, run.revision)


def test_an_attempt_of_an_earlier_launch_keeps_its_end() -> None:
    """The second launch died before its first word: it has no attempt to say anything of."""
    run = make_run(state="failed", attempt=1)
    Attempt.objects.create(run=run, number=1)
    send_command(run.pk, "resume", by="ada")
    next_launch(run.pk)
    engine_gone(run.pk, 2, "exit code 1")
    assert (fresh(run).state, run.attempts.get().outcome) == ("failed", "")


# Everything at once


@pytest.mark.django_db(transaction=True)
def test_two_clicks_at_the_same_time_are_one_command() -> None:
    run = make_run(state="running")
    both = threading.Barrier(2)
    made: list[str] = []

    def click() -> None:
        try:
            both.wait(10)
            made.append(send_command(run.pk, "stop", by="ada").pk)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=click) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), len(set(made)), run.commands.count()) == (2, 1, 1)


@pytest.mark.django_db(transaction=True)
def test_whoever_waits_for_a_run_sees_what_was_done_meanwhile() -> None:
    """No lost update: the second change starts from the first, not from what was read before."""
    run = make_run(state="running")
    waiting = threading.Event()

    def pause() -> None:
        waiting.set()
        try:
            send_command(run.pk, "pause", by="ada")
        finally:
            connections.close_all()

    thread = threading.Thread(target=pause)
    with transaction.atomic():
        held = services.locked(run.pk)
        thread.start()
        assert waiting.wait(10)
        held.x, held.latest = 7, {"loss": 0.5}
        services.save_change(held)
    thread.join()
    found = fresh(run)
    assert (found.x, found.latest, found.state, found.revision) == (7, {"loss": 0.5}, "pausing", run.revision + 2)


def test_a_change_is_one_revision_and_is_told_after_commit(
    monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    run = make_run(state="running")
    told: list[str] = []
    monkeypatch.setattr(services, "announce", told.append)
    with django_capture_on_commit_callbacks(execute=True):
        send_command(run.pk, "pause", by="ada")
        assert told == []
    assert (told, fresh(run).revision) == ([run.pk], run.revision + 1)


def test_what_cannot_be_changed_is_refused_and_recorded_nowhere() -> None:
    run = make_run(state="finished")
    with transaction.atomic(), pytest.raises(Refused, match="a run that is finished cannot become running"):
        services.change_state(services.locked(run.pk), State.running, reason="", actor="ada")
    assert not run.transitions.filter(after="running").exists()


def test_problems_of_another_project_are_refused() -> None:
    run, other = make_run(), make_project()
    dataset = Dataset.objects.create(
        project=other, name="d", version=1, sha256="0" * 64, count=1, created_by=other.owner
    )
    with pytest.raises(services.WrongFields) as refused:
        services.create_run(
            user=run.created_by,
            project=run.project,
            recipe=recipe_of(run),
            toml="",
            datasets={"rl": dataset, "sft": dataset},
        )
    assert set(refused.value.errors) == {"/datasets/rl", "/datasets/sft"}
