"""What ingest makes of a batch, put there by hand: rows that carry the run's next revision, in one transaction."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from webapp.runs.models import Run
from webapp.telemetry.models import EngineMoment, LogLine, MetricPoint


@transaction.atomic
def tell(run: Run, points: Mapping[int, float], lines: Sequence[str] = (), *, key: str = "reward") -> None:
    """Points by step over all stages, and log lines."""
    Run.objects.filter(pk=run.pk).update(revision=F("revision") + 1, x=max(points, default=0))
    run.refresh_from_db()
    common = {"run": run, "revision": run.revision, "attempt": 1, "at": timezone.now()}
    MetricPoint.objects.bulk_create(
        MetricPoint(stage="rl", step=x, x=x, key=key, value=value, **common) for x, value in points.items()
    )
    first = LogLine.objects.filter(run=run).count() + 1
    LogLine.objects.bulk_create(
        LogLine(seq=first + place, level="info", message=text, **common) for place, text in enumerate(lines)
    )


def tell_load(run: Run, seconds: float, engines: Mapping[str, Mapping[str, float]]) -> None:
    """What engines said so long after the run's start; it comes with the next news."""
    at = (run.started_at or run.created_at) + timedelta(seconds=seconds)
    EngineMoment.objects.create(
        run=run, revision=run.revision + 1, attempt=1, stage="rl", step=1, at=at, engines=engines
    )
