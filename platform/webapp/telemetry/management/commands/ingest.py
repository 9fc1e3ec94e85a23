"""``manage.py ingest DIR``: every row of a run from its folder. Safe to repeat: what is there already stays."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from engine.interop.run_folder import RunFolderUnreadable
from webapp.accounts.models import Project, User
from webapp.runs.models import Attempt, Run
from webapp.telemetry.door import Unacceptable
from webapp.telemetry.models import LogLine, MetricPoint
from webapp.telemetry.rebuild import NotAdopted, adopt, read_in
from webapp.trajectories.models import Group, ToolCall, Trajectory


class Command(BaseCommand):
    help = "Read a run folder into the database: the run, if it is not there yet, and everything that it tells."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("folder", type=Path, metavar="DIR", help="the run folder, with job.json in it")
        parser.add_argument("--owner", metavar="USERNAME", help="whose run it becomes (default: the only user)")
        parser.add_argument("--project", metavar="NAME", help="the owner's project (default: his first)")

    def handle(self, *args: Any, folder: Path, owner: str | None, project: str | None, **options: Any) -> None:
        try:
            run = adopt(folder, **place(owner, project))
            self.read(run)
        except (RunFolderUnreadable, NotAdopted) as error:
            raise CommandError(str(error)) from error
        except Unacceptable as error:
            raise CommandError(f"{folder}: an event that cannot be taken in: {error}") from error
        self.stdout.write(f"{run.pk}: {run.state}{f' ({run.state_reason})' if run.state_reason else ''}")
        self.stdout.write(", ".join(f"{count} {name}" for name, count in counts(run).items()))

    def read(self, run: Run) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        known = sum(run.attempts.values_list("last_seq", flat=True))
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task("events", total=events_in(Path(run.folder)), completed=known)
            for batch in read_in(run):
                progress.advance(bar, len(batch.events))


def place(owner: str | None, project: str | None) -> dict[str, Any]:
    """Whose run it becomes. Raises ``CommandError``."""
    users = User.objects.filter(username=owner) if owner else User.objects.all()
    found = list(users[:2])
    if len(found) != 1:
        raise CommandError(no_owner(owner, several=bool(found)))
    if project is None:
        return {"owner": found[0]}
    return {"owner": found[0], "project": Project.objects.get_or_create(owner=found[0], name=project)[0]}


def no_owner(named: str | None, *, several: bool) -> str:
    """Why nobody can own the run, and what mends it."""
    if named:
        return f"there is no user {named!r}: name one of yours with --owner"
    if several:
        return "there are several users: name one with --owner"
    return "there is no user yet: make a login on the first page, or with `python manage.py createsuperuser`"


def events_in(folder: Path) -> int:
    """Lines of all event logs: only for the bar."""
    total = 0
    for log in folder.glob("attempts/*/events.jsonl"):
        with log.open("rb") as file:
            total += sum(piece.count(b"\n") for piece in iter(lambda: file.read(2**20), b""))
    return total


def counts(run: Run) -> dict[str, int]:
    return {
        "attempts": Attempt.objects.filter(run=run).count(),
        "events": sum(run.attempts.values_list("last_seq", flat=True)),
        "points": MetricPoint.objects.filter(run=run).count(),
        "log lines": LogLine.objects.filter(run=run).count(),
        "groups": Group.objects.filter(run=run).count(),
        "trajectories": Trajectory.objects.filter(run=run).count(),
        "tool calls": ToolCall.objects.filter(run=run).count(),
    }
