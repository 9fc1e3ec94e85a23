"""Reads runs for pages, REST and live updates: the one summary that all of them show.

``run_list`` fetches what the summary needs along with the runs, so that a list costs a constant number of queries.
Leaves out numbers (``telemetry.queries``) and changing anything (``services``).
"""

from datetime import UTC, datetime
from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.db.models import F, Prefetch, QuerySet

from webapp.accounts import policies
from webapp.accounts.models import User
from webapp.runs.models import Command, Run, StageRun
from webapp.runs.states import State, allowed_commands

_WAITING = "waiting_now"


def run_list(user: User | AnonymousUser) -> QuerySet[Run]:
    """The runs that the user sees, newest first, without their recipes' bodies."""
    waiting = Command.objects.filter(status=Command.Status.accepted, launch=F("run__launches"))
    return (
        policies.visible(Run.objects.all(), user)
        .select_related("project", "created_by")
        .prefetch_related("stages", Prefetch("commands", queryset=waiting, to_attr=_WAITING))
        .defer("spec", "toml")
    )


def run_summary(run: Run) -> dict[str, Any]:
    """A run in words and numbers, ready for JSON. ``cursor`` is what ``telemetry.queries.updates`` goes on from."""
    return {
        "id": run.pk,
        "name": run.name,
        "project": run.project_id,
        "state": State(run.state).value,
        "state_reason": run.state_reason,
        "stage": run.stage,
        "step": run.step,
        "x": run.x,
        "total_steps": run.total_steps,
        "phase": run.phase,
        "attempt": run.attempt,
        "launches": run.launches,
        "latest": run.latest,
        "created_at": utc(run.created_at),
        "started_at": utc(run.started_at),
        "ended_at": utc(run.ended_at),
        "heartbeat_at": utc(run.heartbeat_at),
        "created_by": run.created_by.username,
        "allowed_commands": allowed_commands(State(run.state)),
        "stages": [stage_summary(stage) for stage in run.stages.all()],
        "waiting_commands": [command.kind for command in waiting_of(run)],
        "cursor": run.revision,
    }


def stage_summary(stage: StageRun) -> dict[str, Any]:
    return {
        "name": stage.name,
        "kind": stage.kind,
        "steps": stage.steps,
        "offset": stage.offset,
        "trained_steps": stage.trained_steps,
        "started_at": utc(stage.started_at),
        "finished_at": utc(stage.finished_at),
        "metrics": stage.metrics,
    }


def waiting_of(run: Run) -> list[Command]:
    """Commands that wait for the run's engine, as fetched by ``run_list`` or asked for now."""
    fetched: list[Command] | None = getattr(run, _WAITING, None)
    if fetched is not None:
        return fetched
    return list(run.commands.filter(status=Command.Status.accepted, launch=run.launches))


def utc(at: datetime | None) -> str | None:
    """ISO 8601 in UTC, with Z."""
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")
