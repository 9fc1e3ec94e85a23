"""The run folder alone rebuilds every row: ``manage.py ingest``, and what an engine had not sent when it died."""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from engine.contract.events import RunHeartbeat
from engine.interop.run_folder import batches
from engine.sink.event_log import EventLog
from engine.sink.run_folder import RunFolder
from tests.webapp.support import make_project, make_run, make_user
from tests.webapp.telemetry.rows import rows_of, shown
from tests.webapp.telemetry.telling import started, step, write_run
from webapp.datasets.models import Dataset
from webapp.runs import care, services
from webapp.runs.models import Run
from webapp.telemetry.ingest import take_in, take_in_folder
from webapp.telemetry.models import EngineMoment, LogLine, MetricPoint
from webapp.trajectories.models import Trajectory

pytestmark = pytest.mark.django_db


@pytest.fixture
def folder(run: Run) -> RunFolder:
    """The folder of a whole run of two attempts; nothing of it is taken in yet."""
    return write_run(Path(run.folder), services.job_of(run))


def ingest(folder: Path, **options: Any) -> str:
    out = StringIO()
    call_command("ingest", str(folder), stdout=out, **options)
    return out.getvalue()


@contextmanager
def held(folder: RunFolder) -> Iterator[None]:
    """An engine works in the folder."""
    with (folder.path / "run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_a_run_that_was_followed_is_rebuilt_row_by_row_with_the_same_addresses(run: Run, folder: RunFolder) -> None:
    for batch in batches(folder.path, {}, max_events=7, max_trajectories=2):
        take_in(run.pk, batch, launch=1)
    followed, owner = rows_of(run), run.created_by
    assert {name: len(rows) for name, rows in followed.items() if name in ("Group", "Trajectory", "ToolCall")} == {
        "Group": 22,
        "Trajectory": 33,
        "ToolCall": 66,
    }
    Run.objects.all().delete()
    said = ingest(folder.path, owner=owner.username)
    rebuilt = Run.objects.get(pk=run.pk)
    assert rows_of(rebuilt) == followed
    for name in ("name", "spec", "digest", "total_steps", "created_at", "folder", "created_by_id", "project_id"):
        assert getattr(rebuilt, name) == getattr(run, name), name
    assert said.splitlines() == [
        f"{run.pk}: finished",
        "2 attempts, 93 events, 111 points, 2 log lines, 22 groups, 33 trajectories, 66 tool calls",
    ]


def test_rows_that_were_deleted_come_back_into_the_run(run: Run, folder: RunFolder) -> None:
    take_in_folder(run.pk)
    before = rows_of(run)
    for rows in ("attempts", "checkpoints", "groups", "trajectories"):
        getattr(run, rows).all().delete()
    MetricPoint.objects.all().delete()
    LogLine.objects.all().delete()
    EngineMoment.objects.all().delete()
    take_in_folder(run.pk)
    assert rows_of(run) == before


def test_the_command_may_be_repeated_and_goes_on_where_it_was(run: Run, folder: RunFolder) -> None:
    first = next(batches(folder.path, {}, max_events=20))
    take_in(run.pk, first, launch=None)
    ingest(folder.path)
    rows, revision = rows_of(run), Run.objects.get(pk=run.pk).revision
    ingest(folder.path)
    assert (rows_of(run), Run.objects.get(pk=run.pk).revision) == (rows, revision)


def test_what_two_attempts_did_is_shown_once(run: Run, folder: RunFolder) -> None:
    take_in_folder(run.pk)
    assert shown(run, "reward") == [(4 + number, number / 10) for number in range(1, 11)]
    assert set(Trajectory.objects.filter(stage="rl").values_list("attempt", "step")) == {
        *((1, number) for number in (1, 2)),
        *((2, number) for number in range(3, 11)),
    }
    assert set(run.groups.filter(superseded=True).values_list("attempt", "step")) == {(1, 3)}


def test_a_run_of_another_program_gets_an_id_of_ours_always_the_same(run: Run, tmp_path: Path) -> None:
    job = services.job_of(run).model_copy(update={"run_id": "my run 7"})
    folder = write_run(tmp_path / "other", job)
    owner = make_user("grace")
    ingest(folder.path, owner="grace", project="rebuilt")
    made = Run.objects.get(project__name="rebuilt")
    first = made.pk
    assert (first[:4], len(first), made.created_by) == ("run_", 30, owner)
    made.delete()
    ingest(folder.path, owner="grace", project="rebuilt")
    assert Run.objects.get(project__name="rebuilt").pk == first


def test_a_run_without_an_end_has_failed_unless_an_engine_holds_its_folder(run: Run, tmp_path: Path) -> None:
    job = services.job_of(run)
    run.delete()
    folder = RunFolder.create(tmp_path / "cut", job)
    with EventLog(folder, folder.next_attempt()) as log:
        log.append(started())
        log.append(RunHeartbeat())
    with held(folder):
        ingest(folder.path)
        assert Run.objects.get(pk=job.run_id).state == "running"
        care.end_lost()
        assert Run.objects.get(pk=job.run_id).state == "running"
    assert "failed" in ingest(folder.path)
    found = Run.objects.get(pk=job.run_id)
    assert (found.state, "no end was told" in found.state_reason) == ("failed", True)
    assert found.attempts.get().outcome == "failed"


def test_an_engine_that_goes_on_by_hand_after_all_is_believed(run: Run, folder: RunFolder) -> None:
    job = services.job_of(run)
    run.delete()
    ingest(folder.path)
    with EventLog(folder, folder.next_attempt()) as log, held(folder):
        log.append(started())
        ingest(folder.path)
        assert Run.objects.get(pk=job.run_id).state == "running"


def test_a_run_that_told_nothing_at_all_has_failed(run: Run, tmp_path: Path) -> None:
    job = services.job_of(run)
    run.delete()
    RunFolder.create(tmp_path / "mute", job)
    assert f"{job.run_id}: failed (no end was told)" in ingest(tmp_path / "mute")


def test_a_queued_run_is_not_judged(run: Run, folder: RunFolder) -> None:
    Run.objects.filter(pk=run.pk).update(state="queued", launches=0)
    for log in folder.path.glob("attempts/*/events.jsonl"):
        log.unlink()
    ingest(folder.path)
    assert Run.objects.get(pk=run.pk).state == "queued"


def test_a_folder_that_was_moved_is_found_and_a_copy_is_refused(run: Run, folder: RunFolder, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "job.json").write_bytes((folder.path / "job.json").read_bytes())
    with pytest.raises(CommandError, match="is there already, with the folder"):
        ingest(copy)
    moved = folder.path.rename(tmp_path / "moved")
    ingest(moved)
    found = Run.objects.get(pk=run.pk)
    assert (found.folder, found.state) == (str(moved), "finished")


def test_what_is_no_run_folder_is_said(run: Run, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"no run folder: it has no job\.json"):
        ingest(tmp_path)
    (tmp_path / "job.json").write_text('{"schema_version": 1}')
    with pytest.raises(CommandError, match="run_id"):
        ingest(tmp_path)


def test_a_job_from_outside_of_time_is_said(run: Run, tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run2", services.job_of(run).model_copy(update={"created_at": -1.0}))
    with pytest.raises(CommandError, match="created_at"):
        ingest(tmp_path / "run2")


def test_an_event_that_cannot_be_taken_in_is_named(run: Run, tmp_path: Path) -> None:
    folder = RunFolder.create(Path(run.folder), services.job_of(run))
    with EventLog(folder, folder.next_attempt()) as log:
        log.append(started())
        log.append(step(1, "unheard-of"))
    with pytest.raises(CommandError, match="/events/1/body/stage: the run has no stage 'unheard-of'"):
        ingest(folder.path)


def test_with_several_users_one_has_to_be_named(run: Run, folder: RunFolder) -> None:
    make_project()
    with pytest.raises(CommandError, match="several users: name one with --owner"):
        ingest(folder.path)
    with pytest.raises(CommandError, match="there is no user 'nobody'"):
        ingest(folder.path, owner="nobody")


def test_datasets_that_are_here_are_found_again(run: Run, tmp_path: Path) -> None:
    dataset = Dataset.objects.create(
        project=run.project, name="d", version=1, sha256="0" * 64, count=1, created_by=run.created_by
    )
    run.datasets = {"rl": dataset.pk}
    problems = Path(run.folder) / "data" / f"{dataset.pk}.jsonl"
    problems.parent.mkdir(parents=True)
    problems.write_text('{"problem": "1+1?", "answer": "2"}\n')
    job = services.job_of(run)
    run.delete()
    ingest(RunFolder.create(tmp_path / "with-data", job).path)
    assert Run.objects.get(pk=job.run_id).datasets == {"rl": dataset.pk}
    assert (
        json.loads((tmp_path / "with-data/job.json").read_text())["recipe"]["stages"][1]["problems"]["kind"] == "file"
    )


def test_what_an_engine_had_not_sent_is_taken_in_when_it_is_gone(run: Run, folder: RunFolder) -> None:
    """It ended well, and the platform was away: the folder decides, not the exit code."""
    first = next(batches(folder.path, {}, max_events=20))
    take_in(run.pk, first, launch=1)
    services.engine_gone(run.pk, 1, "exit code 0")
    run.refresh_from_db()
    assert (run.state, run.x) == ("finished", 14)


def test_a_folder_that_cannot_be_read_keeps_no_run_alive(run: Run, folder: RunFolder) -> None:
    folder.job_json.write_text("{")
    services.engine_gone(run.pk, 1, "killed by SIGKILL")
    run.refresh_from_db()
    assert run.state == "failed"
    assert "killed by SIGKILL; not all of the run folder could be read" in run.state_reason


def test_addresses_do_not_depend_on_the_database(run: Run, folder: RunFolder) -> None:
    take_in_folder(run.pk)
    again = make_run(state="starting", attempt=0, folder=run.folder)
    take_in_folder(again.pk)
    mine, theirs = (set(each.trajectories.values_list("pk", flat=True)) for each in (run, again))
    assert not mine & theirs  # another run has other addresses, even from the same folder
