"""All charts of a run's page, in order, and their figures from one look into the database."""

from typing import Any

from webapp.charts import (
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
from webapp.charts.spec import ChartSpec, Source
from webapp.runs.models import Run
from webapp.telemetry.queries import series

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
        sandbox_calls,
        sandbox_seconds,
    )
)


def chart_specs() -> list[ChartSpec]:
    """Every chart there is."""
    return list(_SPECS)


def figures(run: Run, max_points: int = 800) -> list[dict[str, Any]]:
    """The charts that make sense for a run, each ``{id, title, question, keys, figure, bind, ranges, breaks, words}``.

    ``ranges``: the steps that the chart is about; ``breaks``: steps after which its lines stop. What is asked for: the
    run's stages once, and the series of all charts together.
    """
    stages = list(run.stages.all())
    kinds = {stage.kind for stage in stages}
    wanted = [spec for spec in _SPECS if kinds.intersection(spec.kinds)]
    keys = list(dict.fromkeys(key for spec in wanted for key in spec.keys))
    source = Source(series(run, keys, max_points=max_points), stages)
    return [figure(spec, source) for spec in wanted]


def figure(spec: ChartSpec, source: Source) -> dict[str, Any]:
    drawing = spec.draw(spec, source)
    spans = source.spans(spec.kinds)
    return {
        "id": spec.id,
        "title": spec.title,
        "question": spec.question,
        "keys": list(spec.keys),
        "figure": {"data": drawing.traces, "layout": drawing.layout},
        "bind": drawing.bind,
        "ranges": [[span.first, span.last] for span in spans],
        "breaks": [span.last for span in spans] if spec.breaks else [],
        "words": drawing.words,
    }
