"""What a run does: series, engines' load, charts, what is new since a cursor, log lines. Read only, made by
``telemetry`` and ``charts``."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from engine.interop.engine_timeline import arrays
from webapp.api.bodies import LogsQuery, SeriesQuery, UpdatesQuery
from webapp.api.renderers import CsvRenderer, StrictJsonRenderer
from webapp.api.serializers import ChartsAnswer, EngineLoadAnswer, LogPage, SeriesAnswer, UpdatesAnswer
from webapp.api.views.base import ApiView
from webapp.charts.registry import figures
from webapp.telemetry import queries
from webapp.telemetry.queries import Series

MAX_POINTS, MAX_LINES = 5000, 500


class SeriesView(ApiView):
    required_scopes: ClassVar = {"GET": "runs:read"}
    renderer_classes = (StrictJsonRenderer, CsvRenderer)
    query_class = SeriesQuery
    csv_columns = ("key", "x", "last", "min", "max", "n", "attempt", "non_finite")

    @extend_schema(
        summary="Read metrics",
        responses={(200, "application/json"): SeriesAnswer, (200, "text/csv"): {"type": "string"}},
    )
    def get(self, request: Request, run_id: str) -> Response:
        """Numbers of a run by step, as parallel arrays, thinned to `max_points` buckets a key so that peaks stay. A
        key that the run does not have yet has empty arrays. With `Accept: text/csv`: one line a bucket."""
        run, asked = self.get_run(), self.query()
        series = queries.series(
            run,
            asked.get("keys", []),
            start=asked.get("start"),
            end=asked.get("end"),
            max_points=min(asked["max_points"], MAX_POINTS),
        )
        if request.accepted_renderer.format == "csv":
            named = {"Content-Disposition": f'attachment; filename="{run.pk}.csv"'}
            return Response(list(buckets(series)), headers=named)
        arrays = {key: asdict(each) for key, each in series.items()}
        return Response({"cursor": run.revision, "keys": queries.keys_of(run), "series": arrays})


def buckets(series: dict[str, Series]) -> Iterator[dict[str, Any]]:
    """Series as rows: one a bucket, and one a number that was not finite."""
    for key, each in series.items():
        columns = zip(each.x, each.last, each.min, each.max, each.n, each.attempt, strict=True)
        for x, last, low, high, n, attempt in columns:
            yield {"key": key, "x": x, "last": last, "min": low, "max": high, "n": n, "attempt": attempt}
        for bad in each.non_finite:
            yield {"key": key, "x": bad["x"], "non_finite": bad["which"]}


class EngineLoadView(ApiView):
    required_scopes: ClassVar = {"GET": "runs:read"}

    @extend_schema(summary="Read the load of rollout engines", responses=EngineLoadAnswer)
    def get(self, request: Request, run_id: str) -> Response:
        """What the run's rollout engines said of themselves over time: rollouts in flight and in tools, KV cache,
        preemptions. Thinned to about a thousand moments."""
        run = self.get_run()
        rows = queries.engine_moments(run)
        return Response(
            {
                "cursor": run.revision,
                "seconds": [queries.seconds_in(run, row.at) for row in rows],
                "attempt": [row.attempt for row in rows],
                "stage": [row.stage for row in rows],
                "step": [row.step for row in rows],
                "engines": arrays([row.engines for row in rows]),
            }
        )


class ChartsView(ApiView):
    required_scopes: ClassVar = {"GET": "runs:read"}
    schema_class = ChartsAnswer

    @extend_schema(summary="Read charts", responses=ChartsAnswer)
    def get(self, request: Request, run_id: str) -> Response:
        """The charts of the run's page as Plotly figures, and the cursor that `updates` goes on from."""
        run = self.get_run()  # its revision is read before the points: what comes in between is told twice, not lost
        return Response(self.selected({"cursor": run.revision, "charts": figures(run)}))


class UpdatesView(ApiView):
    required_scopes: ClassVar = {"GET": "runs:read"}
    query_class = UpdatesQuery

    @extend_schema(summary="Read what is new", responses=UpdatesAnswer)
    def get(self, request: Request, run_id: str) -> Response:
        """What came after a cursor: the run's state, points, log lines. Ask again with the `cursor` of the answer. The
        live page gets the same over its WebSocket."""
        asked = self.query()
        return Response(queries.updates(self.get_run(), asked["since"]).as_json())


class LogsView(ApiView):
    required_scopes: ClassVar = {"GET": "runs:read"}
    query_class = LogsQuery

    @extend_schema(summary="Read log lines", responses=LogPage)
    def get(self, request: Request, run_id: str) -> Response:
        """Log lines in their order: those behind the one that `after` names, without it the last ones. `next` is the
        `after` to ask with for what follows, now or later."""
        run, asked = self.get_run(), self.query()
        after, limit = asked.get("after"), min(asked["limit"], MAX_LINES)
        lines = queries.log_lines(run, after=after, limit=limit, level=asked.get("level"))
        last = (lines[-1].attempt, lines[-1].seq) if lines else after
        shown = [queries.line_as_json(line) for line in lines]
        return Response({"results": shown, "next": f"{last[0]}:{last[1]}" if last else None})
