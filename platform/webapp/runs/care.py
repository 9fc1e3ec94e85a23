"""What nobody else would notice: a start that was forgotten, an engine that is gone. Called every few seconds.

Leaves out judging: ``services.engine_gone`` does.
"""

from datetime import timedelta
from pathlib import Path

from django.conf import settings
from django.db.models import F, Q
from django.utils import timezone

from webapp.runs import services, tasks
from webapp.runs.folders import engine_holds
from webapp.runs.launchers import launcher
from webapp.runs.models import Run
from webapp.runs.states import WITH_ENGINE, State

STARTING_S = 120
"""A start is tried again for about that long; before that, a launch without a process is none that was lost."""


def look_after_runs() -> None:
    start_forgotten()
    kill_forgotten()
    end_lost()


def start_forgotten() -> None:
    """Runs whose start was asked for but not done: Valkey lost the task, or the worker died over it."""
    since = timezone.now() - timedelta(seconds=settings.START_AGAIN_S)
    for run in Run.objects.filter(state__in=(State.queued, State.starting), state_at__lt=since):
        tasks.start_run.delay(run.pk)


def kill_forgotten() -> None:
    """Engines that were to be killed and live on: Valkey lost the task, or the agent was away."""
    since = timezone.now() - timedelta(seconds=settings.KILL_AGAIN_S)
    meant = Q(commands__kind="kill", commands__launch=F("launches"), commands__created_at__lt=since)
    for run in Run.objects.filter(meant, state=State.stopping).distinct():
        tasks.kill_engine.delay(run.pk, run.launches)


def end_lost() -> None:
    """Runs that say nothing and whose engine is known to be gone."""
    since = timezone.now() - timedelta(seconds=settings.SILENT_AFTER_S)
    for run in Run.objects.filter(state__in=WITH_ENGINE, heartbeat_at__lt=since):
        if is_gone(run):
            services.engine_gone(run.pk, run.launches, "no such process")


def is_gone(run: Run) -> bool:
    """A run that was never launched from here was read in from its folder: there its engine holds a lock."""
    if run.launches == 0:
        return not engine_holds(Path(run.folder))
    if run.state == State.starting and run.state_at > timezone.now() - timedelta(seconds=STARTING_S):
        return False
    return launcher().is_alive(run.pk, run.launches) is False
