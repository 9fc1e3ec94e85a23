"""Runs at the shutdown of their platform: asked for a stop, which writes a checkpoint, and found again afterwards.

Called in threads, outside of transactions. Leaves out waiting: ``supervisor.py``.
"""

from django.db.models import F, QuerySet

from webapp.config.paths import Var
from webapp.machine.engines import Record, Records
from webapp.machine.local_launcher import LocalLauncher
from webapp.runs import services
from webapp.runs.models import Command, Run
from webapp.runs.states import LIVING, State

BY = "shutdown"
REASON = "the platform was shut down"


def ask_for_a_stop() -> list[str]:
    """Ask every living run; their names. One that is being stopped already is not asked again."""
    asked = []
    for run in Run.objects.filter(state__in=LIVING).exclude(state=State.stopping):
        try:
            services.send_command(run.pk, "stop", by=BY, reason=REASON)
        except services.Refused:  # it ended since we looked
            continue
        asked.append(run.name)
    return asked


def at_work() -> int:
    """How many runs have not come to rest: not ended, or with an engine that is still tidying up."""
    runs = set(Run.objects.filter(state__in=LIVING).values_list("pk", flat=True))
    return len(runs | {run_id for run_id, _ in LocalLauncher().living()})


def living_engines(var: Var) -> list[Record]:
    """As their records tell, without asking anybody."""
    return [record for record in Records(var.agent).read() if record.lives()]


def kill_engines() -> None:
    """Those that are still there; the agent tells the platform of their end."""
    launcher = LocalLauncher()
    for run_id, number in launcher.living():
        launcher.kill(run_id, number)


def stopped_by_shutdown() -> QuerySet[Run]:
    """Runs that a shutdown stopped and nobody has resumed since."""
    stops = Command.objects.filter(kind="stop", by=BY)
    ours = stops.filter(run__state=State.stopped, launch=F("run__launches"))
    return Run.objects.filter(pk__in=ours.values("run"), archived_at=None).order_by("pk")


def resume_all(by: str) -> list[Run]:
    """Resume what a shutdown stopped."""
    runs = list(stopped_by_shutdown())
    for run in runs:
        services.send_command(run.pk, "resume", by=by)
    return runs
