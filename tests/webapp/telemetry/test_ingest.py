"""Ingest: every event exactly once, whatever is sent again, cut in two or fails half-way."""

import time
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.contract.delivery import Batch
from engine.contract.events import LogLine as Line
from engine.contract.events import RunHeartbeat, StepFinished
from tests.webapp.support import make_run
from tests.webapp.telemetry.rows import rows_of, shown
from tests.webapp.telemetry.telling import Attempt, group, shipped, stage_started, started, step
from webapp.runs import services
from webapp.runs.models import Attempt as AttemptRow
from webapp.runs.models import Run
from webapp.telemetry import fold, ingest
from webapp.telemetry.ingest import Gap, Superseded, answer, take_in
from webapp.telemetry.models import LogLine, MetricPoint
from webapp.trajectories.models import ToolCall, Trajectory, Turn

pytestmark = pytest.mark.django_db


def whole_attempt() -> Batch:
    """A bit of everything."""
    attempt = Attempt()
    bodies: list[Any] = [started(), stage_started(), Line(message="under way")]
    for number in (1, 2, 3):
        bodies += [group(place, number) for place in range(2)]
        bodies += [RunHeartbeat(), step(number, loss=number / 10)]
    return attempt.tell(*bodies, trajectories=shipped(3))


def test_a_batch_becomes_rows(run: Run) -> None:
    said = take_in(run.pk, whole_attempt(), launch=1)
    assert said.cursor == {1: 15}
    assert shown(run, "loss") == [(5, 0.1), (6, 0.2), (7, 0.3)]  # behind four steps of SFT
    assert [line.message for line in LogLine.objects.all()] == ["under way"]
    assert (Trajectory.objects.count(), Turn.objects.count(), ToolCall.objects.count()) == (3, 9, 6)
    assert run.groups.count() == 6


def test_a_batch_that_is_sent_again_changes_nothing(run: Run) -> None:
    take_in(run.pk, whole_attempt(), launch=1)
    run.refresh_from_db()
    rows, revision = rows_of(run), run.revision
    assert take_in(run.pk, whole_attempt(), launch=1).cursor == {1: 15}
    run.refresh_from_db()
    assert (rows_of(run), run.revision) == (rows, revision)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15), st.integers(0, 3)), max_size=6))
def test_however_it_is_cut_and_sent_again_every_event_counts_once(run: Run, pieces: list[tuple[int, int, int]]) -> None:
    """Any pieces, overlapping and out of order: what leaves a gap is refused; then the whole, as after a restart."""
    whole = whole_attempt()
    at_once, piecewise = make_run(state="starting", attempt=0), make_run(state="starting", attempt=0)
    for first, last, some in pieces:
        piece = Batch(attempt=1, events=whole.events[first:last], trajectories=whole.trajectories[:some])
        known = answer(piecewise.pk, 1).cursor.get(1, 0)
        with pytest.raises(Gap) if piece.events and first > known else nullcontext():
            take_in(piecewise.pk, piece, launch=1)
    take_in(piecewise.pk, whole, launch=1)
    take_in(at_once.pk, whole, launch=1)
    assert without_addresses(rows_of(piecewise)) == without_addresses(rows_of(at_once))


def without_addresses(rows: dict[str, list[dict[str, Any]]]) -> dict[str, list[Any]]:
    """Two runs share no ids."""
    own = {"id", "run_id", "trajectory_id"}
    return {
        name: sorted(repr({k: v for k, v in row.items() if k not in own}) for row in of) for name, of in rows.items()
    }


def test_a_gap_is_refused_with_the_cursor_and_changes_nothing(run: Run) -> None:
    whole = whole_attempt()
    take_in(run.pk, Batch(attempt=1, events=whole.events[:4]), launch=1)
    before = rows_of(run)
    with pytest.raises(Gap) as refused:
        take_in(run.pk, Batch(attempt=1, events=whole.events[5:], trajectories=whole.trajectories), launch=1)
    assert refused.value.cursor == {1: 4}
    assert rows_of(run) == before


def test_an_older_launch_is_refused(run: Run) -> None:
    Run.objects.filter(pk=run.pk).update(launches=2)
    with pytest.raises(Superseded, match=r"launch 1 of .* was followed by launch 2"):
        take_in(run.pk, whole_attempt(), launch=1)
    with pytest.raises(Superseded):
        answer(run.pk, 1)
    assert answer(run.pk, 2).cursor == {}


def test_a_launch_that_a_rebuilt_database_does_not_know_is_learnt(run: Run) -> None:
    """The token proves that it was given; otherwise nobody could ask or kill that engine."""
    Run.objects.filter(pk=run.pk).update(launches=0)
    take_in(run.pk, Attempt().tell(started()), launch=3)
    assert Run.objects.get(pk=run.pk).launches == 3


def test_an_error_half_way_leaves_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        raise ZeroDivisionError

    before = rows_of(run)
    monkeypatch.setitem(fold._FOLDS, StepFinished, broken)
    with pytest.raises(ZeroDivisionError):
        take_in(run.pk, whole_attempt(), launch=1)
    assert rows_of(run) == before
    monkeypatch.undo()
    assert take_in(run.pk, whole_attempt(), launch=1).cursor == {1: 15}


def test_a_failure_while_rows_are_written_leaves_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        raise ConnectionError("the database went away")

    before = rows_of(run)
    monkeypatch.setattr("webapp.telemetry.bulk.write_trajectories", broken)
    with pytest.raises(ConnectionError):
        take_in(run.pk, whole_attempt(), launch=1)
    assert rows_of(run) == before


def test_a_batch_of_heartbeats_is_heard_and_is_no_news(
    run: Run, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    told: list[str] = []
    monkeypatch.setattr(services, "announce", told.append)
    monkeypatch.setattr(ingest, "announce_news", told.append)
    attempt = Attempt()
    take_in(run.pk, attempt.tell(started()), launch=1)
    Run.objects.filter(pk=run.pk).update(heartbeat_at=None)
    revision = Run.objects.get(pk=run.pk).revision
    with django_capture_on_commit_callbacks(execute=True):
        assert take_in(run.pk, attempt.tell(RunHeartbeat(), RunHeartbeat()), launch=1).cursor == {1: 3}
        take_in(run.pk, Batch(attempt=1), launch=1)
    run.refresh_from_db()
    assert run.heartbeat_at is not None
    assert (run.revision, told) == (revision, [])


def test_news_are_told_after_commit_and_changes_of_state_at_once(
    run: Run, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    told: list[tuple[str, str]] = []
    monkeypatch.setattr(services, "announce", lambda run_id: told.append(("state", run_id)))
    monkeypatch.setattr(ingest, "announce_news", lambda run_id: told.append(("news", run_id)))
    attempt = Attempt()
    with django_capture_on_commit_callbacks(execute=True):
        take_in(run.pk, attempt.tell(started()), launch=1)
        assert told == []
    with django_capture_on_commit_callbacks(execute=True):
        take_in(run.pk, attempt.tell(stage_started(), step(1)), launch=1)
    assert told == [("state", run.pk), ("news", run.pk)]


def test_a_batch_is_one_revision_and_its_rows_carry_it(run: Run) -> None:
    before = run.revision
    take_in(run.pk, whole_attempt(), launch=1)
    run.refresh_from_db()
    assert run.revision == before + 1
    for rows in (MetricPoint.objects.all(), LogLine.objects.all(), run.groups.all(), run.trajectories.all()):
        assert {row.revision for row in rows} == {run.revision}


def test_trajectories_may_come_before_the_event_that_names_their_file(run: Run) -> None:
    attempt = Attempt()
    take_in(run.pk, attempt.tell(started(), stage_started()), launch=1)
    early = Batch(attempt=1, trajectories=tuple(shipped(3)))
    take_in(run.pk, early, launch=1)
    take_in(run.pk, early, launch=1)
    take_in(run.pk, attempt.tell(step(1), trajectories=shipped(4)), launch=1)
    assert sorted(Trajectory.objects.values_list("row", flat=True)) == [0, 1, 2, 3]
    assert Turn.objects.count() == 12


def test_the_answer_brings_what_waits_for_this_launch(run: Run) -> None:
    attempt = Attempt()
    take_in(run.pk, attempt.tell(started()), launch=1)
    asked = services.send_command(run.pk, "checkpoint", by="ada")
    commands = take_in(run.pk, attempt.tell(RunHeartbeat()), launch=1).commands
    assert [(command.kind, command.by, command.id) for command in commands] == [("checkpoint", "ada", asked.pk)]
    assert answer(run.pk, 1).commands == commands


def test_what_comes_from_a_folder_was_heard_when_it_was_told(run: Run) -> None:
    """Not now: the engine may be dead for a year. And never in the future, whatever its clock says."""
    attempt = Attempt()
    Run.objects.filter(pk=run.pk).update(heartbeat_at=None)
    take_in(run.pk, attempt.tell(started()), launch=None)
    assert Run.objects.get(pk=run.pk).heartbeat_at == datetime.fromtimestamp(attempt.events[0].at, UTC)
    tomorrow = attempt.tell(RunHeartbeat()).events[0].model_copy(update={"at": time.time() + 86_400})
    take_in(run.pk, Batch(attempt=1, events=(tomorrow,)), launch=None)
    heard = Run.objects.get(pk=run.pk).heartbeat_at
    assert heard is not None
    assert heard <= timezone.now()


def test_what_never_changes_is_not_written_with_every_batch(run: Run) -> None:
    with CaptureQueriesContext(connection) as queries:
        take_in(run.pk, whole_attempt(), launch=1)
    (update,) = [query["sql"] for query in queries if query["sql"].startswith('UPDATE "runs_run"')]
    assert '"spec"' not in update
    assert '"toml"' not in update
    assert Run.objects.get(pk=run.pk).spec == run.spec


def test_an_unknown_run_is_not_made(run: Run) -> None:
    with pytest.raises(Run.DoesNotExist):
        take_in("run_unknown", whole_attempt(), launch=1)


def test_queries_do_not_grow_with_the_batch(run: Run) -> None:
    def asked(batch: Batch) -> int:
        with CaptureQueriesContext(connection) as queries:
            take_in(run.pk, batch, launch=1)
        return len(queries)

    attempt = Attempt()
    take_in(run.pk, attempt.tell(started(), stage_started()), launch=1)
    small = asked(attempt.tell(group(0, 1), step(1), Line(message="1"), trajectories=shipped(1, 1)))
    numbers = range(2, 40)
    bodies = [body for number in numbers for body in (group(0, number), step(number), Line(message="2"))]
    many = [each for number in numbers for each in shipped(4, number)]
    assert asked(attempt.tell(*bodies, trajectories=many)) == small


def test_attempts_are_numbered_apart(run: Run) -> None:
    first, second = Attempt(1), Attempt(2)
    take_in(run.pk, first.tell(started(), stage_started()), launch=1)
    assert take_in(run.pk, second.tell(started()), launch=1).cursor == {1: 2, 2: 1}
    assert take_in(run.pk, first.tell(step(1)), launch=1).cursor == {1: 3, 2: 1}
    assert [row.last_seq for row in AttemptRow.objects.filter(run=run)] == [3, 1]
