"""All charts of a run's page, in order, and their figures from one look into the database."""

from dataclasses import asdict
from typing import Any

from engine.interop.engine_timeline import shown_values
from webapp.charts import (
    engine_cache,
    engine_lost,
    engine_rollouts,
    exploration,
    groups,
    optimisation,
    pass_at_1,
    phases,
    response_length,
    reward,
    sandbox_calls,
    sandbox_seconds,
    throughput,
    tool_errors,
    truncated,
)
from webapp.charts.spec import STEP, ChartSpec, Source, Timeline
from webapp.runs.models import Run
from webapp.telemetry.queries import LARGEST_X, engine_moments, seconds_in, series

_SPECS = tuple(
    module.SPEC
    for module in (
        reward,
        response_length,
        tool_errors,
        pass_at_1,
        truncated,
        groups,
        optimisation,
        exploration,
        throughput,
        phases,
        engine_rollouts,
        engine_cache,
        engine_lost,
        sandbox_calls,
        sandbox_seconds,
    )
)


def chart_specs() -> list[ChartSpec]:
    """Every chart there is."""
    return list(_SPECS)


def figures(run: Run, max_points: int = 800) -> list[dict[str, Any]]:
    """The charts that make sense for a run, as ``figure`` gives them.

    ``x``: what its x axis counts, and how much of a point's x is one of it. ``ranges``: the steps (of a timeline, the
    seconds) that the chart is about; ``breaks``: places on the axis after which its lines stop. What is asked for: the
    run's stages once, the series of all charts together, and the timeline once.
    """
    stages = list(run.stages.all())
    kinds = {stage.kind for stage in stages}
    wanted = [spec for spec in _SPECS if kinds.intersection(spec.kinds)]
    keys = list(dict.fromkeys(key for spec in wanted for key in spec.keys))
    timed = any(spec.timed for spec in wanted)
    found = series(run, keys, max_points=max_points)
    source = Source(found, stages, timeline_of(run) if timed else Timeline())
    return [figure(spec, source) for spec in wanted]


def timeline_of(run: Run) -> Timeline:
    rows = engine_moments(run)
    return Timeline(
        seconds=[seconds_in(run, row.at) for row in rows],
        values=[shown_values(row.engines) for row in rows],
        attempts=[row.attempt for row in rows],
        engines=sorted({name for row in rows for name in row.engines}),
    )


def figure(spec: ChartSpec, source: Source) -> dict[str, Any]:
    drawing = spec.draw(spec, source)
    return {
        "id": spec.id,
        "title": spec.title,
        "question": spec.question,
        "keys": [binding["key"] for binding in drawing.bind] if spec.timed else list(spec.keys),
        "figure": {"data": drawing.traces, "layout": drawing.layout},
        "bind": drawing.bind,
        **(time_extent(source.timeline) if spec.timed else step_extent(spec, source)),
        "words": drawing.words,
    }


def step_extent(spec: ChartSpec, source: Source) -> dict[str, Any]:
    """Which steps a chart is about."""
    spans = source.spans(spec.kinds)
    return {
        "x": asdict(STEP),
        "ranges": [[span.first, span.last] for span in spans],
        "breaks": [span.last for span in spans] if spec.breaks else [],
    }


def time_extent(timeline: Timeline) -> dict[str, Any]:
    """A timeline is about all of the run."""
    return {"x": asdict(timeline.unit), "ranges": [[0, LARGEST_X]], "breaks": timeline.breaks}
