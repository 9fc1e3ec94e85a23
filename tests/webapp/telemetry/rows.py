"""The rows of a run as plain values, to compare what two ways of taking in the same events made."""

from typing import Any

from webapp.runs.models import Attempt, Checkpoint, Run, StageRun
from webapp.telemetry import queries
from webapp.telemetry.models import EngineMoment, LogLine, MetricPoint
from webapp.trajectories.models import Group, ToolCall, Trajectory, Turn

OF_RUN = ("state", "state_reason", "attempt", "stage", "step", "x", "phase", "latest", "started_at", "ended_at")
# What depends on how events were cut into batches, or is a serial number.
LOOSE = {"revision"}
SERIAL = (MetricPoint, LogLine, EngineMoment, Turn, StageRun, Attempt)


def rows_of(run: Run) -> dict[str, list[dict[str, Any]]]:
    """Every row that events made, by table, in an order of its own."""
    found = {
        model.__name__: model._default_manager.filter(run=run)
        for model in (Attempt, Checkpoint, StageRun, MetricPoint, LogLine, EngineMoment, Group, Trajectory, ToolCall)
    }
    found["Turn"] = Turn.objects.filter(trajectory__run=run)
    rows = {}
    for name, query in found.items():
        serial = {"id"} if query.model in SERIAL else set()
        kept = [{k: v for k, v in row.items() if k not in LOOSE | serial} for row in query.values()]
        rows[name] = sorted(kept, key=repr)
    fresh = Run.objects.get(pk=run.pk)
    rows["Run"] = [{name: getattr(fresh, name) for name in OF_RUN}]
    return rows


def shown(run: Run, key: str) -> list[tuple[int, float | None]]:
    """A series as a chart shows it."""
    found = queries.series(run, [key], max_points=5000)[key]
    return list(zip(found.x, found.last, strict=True))
