"""Reads numbers, log lines and engine timelines of a run: series for charts, and what is new since a cursor.

A series comes in at most so many buckets, however long it is: of each the last, the least and the greatest value and
the number of points; the first and the last point are kept as they are. What later attempts did again is left out.
The questions are put so that statistics of a table that has just grown cannot mislead the database into a bad plan:
no join, and no order but that of the index ``point_shown_once``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from django.db import connection
from django.db.models import Q

from engine.contract.base import visible
from engine.interop.engine_timeline import shown_values
from webapp.runs.models import Run
from webapp.runs.queries import run_summary, utc
from webapp.telemetry.models import EngineMoment, LogLine, MetricPoint

MOST_POINTS = 2000
MOST_LINES = 300
MOST_MOMENTS = 100
LEVELS = ("info", "warning", "error")
LARGEST_X = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Series:
    """One metric: parallel lists, an entry a bucket. ``x`` is where its last point lies; null: not a finite number."""

    x: list[int] = field(default_factory=list)
    last: list[float | None] = field(default_factory=list)
    min: list[float | None] = field(default_factory=list)
    max: list[float | None] = field(default_factory=list)
    n: list[int] = field(default_factory=list)
    attempt: list[int] = field(default_factory=list)
    non_finite: list[dict[str, Any]] = field(default_factory=list)
    """Where a number was not finite, and which: {"x": 3, "which": "nan"}; the first of each bucket."""


# Of each key whether it has more points than wanted, and if so, where they begin and end: a few steps in the index.
_BOUNDS = """
SELECT k.key, few.n,
    (SELECT x FROM telemetry_metricpoint
     WHERE run_id = %(run)s AND key = k.key AND NOT superseded AND x BETWEEN %(start)s AND %(end)s
     ORDER BY x LIMIT 1),
    (SELECT x FROM telemetry_metricpoint
     WHERE run_id = %(run)s AND key = k.key AND NOT superseded AND x BETWEEN %(start)s AND %(end)s
     ORDER BY x DESC LIMIT 1)
FROM unnest(%(keys)s::text[]) AS k(key), LATERAL (
    SELECT count(*) AS n FROM (
        SELECT FROM telemetry_metricpoint
        WHERE run_id = %(run)s AND key = k.key AND NOT superseded AND x BETWEEN %(start)s AND %(end)s
        LIMIT %(most)s + 1
    ) AS counted
) AS few
WHERE few.n > 0
"""

# The first x is a bucket of its own, the rest is cut into equal parts.
_BUCKETS = """
SELECT max(x), min(value), max(value), count(*), min(x) FILTER (WHERE value IS NULL)
FROM telemetry_metricpoint
WHERE run_id = %(run)s AND key = %(key)s AND NOT superseded AND x BETWEEN %(low)s AND %(high)s
GROUP BY CASE WHEN x = %(low)s THEN -1
              ELSE (x - %(low)s - 1)::bigint * (%(most)s - 1) / greatest(%(high)s - %(low)s, 1) END
ORDER BY 1
"""

# Every key once, each found by the index behind the one before: a DISTINCT would read every point.
_KEYS = """
WITH RECURSIVE keys AS (
    (SELECT key FROM telemetry_metricpoint WHERE run_id = %(run)s AND NOT superseded ORDER BY key LIMIT 1)
    UNION ALL
    SELECT (SELECT key FROM telemetry_metricpoint
            WHERE run_id = %(run)s AND NOT superseded AND key > keys.key ORDER BY key LIMIT 1)
    FROM keys WHERE keys.key IS NOT NULL
)
SELECT key FROM keys WHERE key IS NOT NULL
"""


def series(
    run: Run, keys: Sequence[str], *, start: int | None = None, end: int | None = None, max_points: int = 800
) -> dict[str, Series]:
    """The series of ``keys`` with ``start`` <= x <= ``end``, each in at most ``max_points`` (2 or more) buckets; one
    that the run does not have is empty."""
    found = {key: Series() for key in keys}
    first, last = max(start or 0, 0), LARGEST_X if end is None else min(end, LARGEST_X)
    most = max(2, max_points)
    asked = [key for key in found if key == visible(key)]  # another cannot be there, nor be asked for
    with connection.cursor() as cursor:
        cursor.execute(_BOUNDS, {"run": run.pk, "keys": asked, "start": first, "end": last, "most": most})
        bounds = {key: Bounds(*columns) for key, *columns in cursor.fetchall()}
    whole = [key for key, bound in bounds.items() if bound.n <= most]
    for key, points in points_at(run, whole, Q(x__gte=first, x__lte=last)).items():
        add_whole(found[key], points)
    for key in bounds.keys() - set(whole):
        add_buckets(found[key], run, key, bounds[key], most)
    return found


class Bounds(NamedTuple):
    """How many points a key has (or one more than wanted), and the first and last x."""

    n: int
    low: int
    high: int


class PointAt(NamedTuple):
    """One point of a series; of two at one place the later comes later."""

    x: int
    value: float | None
    non_finite: str
    attempt: int


def points_at(run: Run, keys: Sequence[str], where: Q) -> dict[str, list[PointAt]]:
    """Points as they are, by key, in order of x."""
    rows = MetricPoint.objects.filter(where, run=run, key__in=keys, superseded=False).order_by("key", "x", "id")
    found: dict[str, list[PointAt]] = {}
    if keys:
        for key, x, value, non_finite, attempt in rows.values_list("key", "x", "value", "non_finite", "attempt"):
            found.setdefault(key, []).append(PointAt(x, value, non_finite, attempt))
    return found


def add_whole(to: Series, points: Sequence[PointAt]) -> None:
    """Every x is a bucket."""
    for x, here in groupby(points, key=attrgetter("x")):
        at_x = list(here)
        values = [point.value for point in at_x if point.value is not None]
        add(to, at_x[-1], min(values, default=None), max(values, default=None), len(at_x))
        to.non_finite.extend({"x": x, "which": point.non_finite or "null"} for point in at_x if point.value is None)


def add_buckets(to: Series, run: Run, key: str, bounds: Bounds, most: int) -> None:
    """Buckets by the database; their last points, and those that were not finite, are looked up behind that."""
    with connection.cursor() as cursor:
        cursor.execute(_BUCKETS, {"run": run.pk, "key": key, "low": bounds.low, "high": bounds.high, "most": most})
        buckets = cursor.fetchall()
    places = {x for bucket in buckets for x in (bucket[0], bucket[4]) if x is not None}
    there = points_at(run, [key], Q(x__in=places)).get(key, [])
    last = {point.x: point for point in there}
    none = {point.x: point for point in there if point.value is None}
    for x, low, high, n, null_x in buckets:
        add(to, last[x], low, high, n)
        if null_x is not None:
            to.non_finite.append({"x": null_x, "which": none[null_x].non_finite or "null"})


def add(to: Series, last: PointAt, low: float | None, high: float | None, n: int) -> None:
    to.x.append(last.x)
    to.last.append(last.value)
    to.min.append(low)
    to.max.append(high)
    to.n.append(n)
    to.attempt.append(last.attempt)


def keys_of(run: Run) -> list[str]:
    """The names of the run's series, sorted."""
    with connection.cursor() as cursor:
        cursor.execute(_KEYS, {"run": run.pk})
        return [key for (key,) in cursor.fetchall()]


def engine_moments(run: Run) -> list[EngineMoment]:
    """The timeline of the run's engines in order of time: few enough to be read whole."""
    return list(EngineMoment.objects.filter(run=run).order_by("at", "id"))


def seconds_in(run: Run, at: datetime) -> float:
    """Where a time lies in the run, seconds since it started, pauses and other attempts included."""
    return round((at - (run.started_at or run.created_at)).total_seconds(), 2)


def log_lines(
    run: Run, *, after: tuple[int, int] | None = None, limit: int = MOST_LINES, level: str | None = None
) -> list[LogLine]:
    """Log lines in their order: the first ``limit`` behind ``after`` (attempt, seq), or the last ``limit`` of all.
    ``level``: that one and worse."""
    rows = LogLine.objects.filter(run=run)
    if level is not None:
        rows = rows.filter(level__in=LEVELS[LEVELS.index(level) :])
    if after is None:
        return list(rows.order_by("-attempt", "-seq")[:limit])[::-1]
    attempt, seq = after
    behind = rows.filter(attempt=attempt, seq__gt=seq) | rows.filter(attempt__gt=attempt)
    return list(behind.order_by("attempt", "seq")[:limit])


def line_as_json(line: LogLine) -> dict[str, Any]:
    return {
        "attempt": line.attempt,
        "seq": line.seq,
        "at": utc(line.at),
        "level": line.level,
        "message": line.message,
    }


NewPoint = tuple[str, float, float | None, str]
"""Key, x, value, and which number it was if it was not finite. x: the step over all stages, or seconds (engines)."""


@dataclass(frozen=True, slots=True)
class Updates:
    """What of a run is new behind a cursor. ``reset``: what was shown before does not count any more, begin anew.
    ``more``: there is more than this: fetch charts and log anew."""

    cursor: int
    reset: bool
    run: dict[str, Any]
    points: list[NewPoint]
    log: list[dict[str, Any]]
    more: bool

    def as_json(self) -> dict[str, Any]:
        return {
            "cursor": self.cursor,
            "reset": self.reset,
            "run": self.run,
            "points": [list(point) for point in self.points],
            "log": self.log,
            "more": self.more,
        }


def updates(run: Run, since: int) -> Updates:
    """What is new behind revision ``since``, up to the revision that ``run`` was read at. At 0 a reader has nothing
    yet: it begins with charts and log as they are, and follows from the cursor."""
    reset = since > run.revision or 0 < since < run.reset_revision
    if since == 0 or reset or since == run.revision:
        return Updates(run.revision, reset, run_summary(run), [], [], more=False)
    points, more_points = new_points(run, since)
    load, more_load = new_engine_points(run, since)
    lines, more_lines = new_lines(run, since)
    more = more_points or more_load or more_lines
    return Updates(run.revision, False, run_summary(run), [*points, *load], lines, more)


def new_points(run: Run, since: int) -> tuple[list[NewPoint], bool]:
    """In the order told, so that of two at one place the later stands; and whether some were left out."""
    found = MetricPoint.objects.filter(run=run, revision__gt=since, revision__lte=run.revision, superseded=False)
    rows = found.order_by("revision", "id").values_list("key", "x", "value", "non_finite")[: MOST_POINTS + 1]
    points: list[NewPoint] = [*rows]
    return points[:MOST_POINTS], len(points) > MOST_POINTS


def new_engine_points(run: Run, since: int) -> tuple[list[NewPoint], bool]:
    """What charts show of the engines, at seconds within the run in place of steps; and whether some were left out."""
    found = EngineMoment.objects.filter(run=run, revision__gt=since, revision__lte=run.revision)
    rows = list(found.order_by("at", "id")[: MOST_MOMENTS + 1])
    points: list[NewPoint] = [
        (key, seconds_in(run, row.at), value, "")
        for row in rows[:MOST_MOMENTS]
        for key, value in shown_values(row.engines).items()
    ]
    return points, len(rows) > MOST_MOMENTS


def new_lines(run: Run, since: int) -> tuple[list[dict[str, Any]], bool]:
    """The newest in their order; and whether some were left out."""
    found = LogLine.objects.filter(run=run, revision__gt=since, revision__lte=run.revision)
    rows = list(found.order_by("-attempt", "-seq")[: MOST_LINES + 1])
    return [line_as_json(row) for row in reversed(rows[:MOST_LINES])], len(rows) > MOST_LINES
