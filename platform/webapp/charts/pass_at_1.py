"""pass@1 of every evaluation, sampled and greedy, at the step after which it was made.

Drawn from the finished evaluations themselves, with their standard error over problems: an evaluation is no series.
"""

from typing import Any

import plotly.graph_objects as go

from webapp.charts import words
from webapp.charts.drawing import Line, finished, plain, trace, y_axis
from webapp.charts.palette import COLOURS
from webapp.charts.spec import ChartSpec, Drawing, Source
from webapp.runs.models import StageRun

LINES = (
    Line("pass@1", "sampled", 1),
    Line("pass@1_greedy", "greedy", 2, dash="dot"),
)
SYMBOLS = {"pass@1": "circle", "pass@1_greedy": "diamond"}


def draw(spec: ChartSpec, source: Source) -> Drawing:
    done = [stage for stage in source.stages if stage.kind == "eval" and stage.metrics]
    layout = {"yaxis": y_axis("pass@1", percent=True), "hovermode": "closest"}
    traces = [markers(line, done) for line in LINES]
    return finished(Drawing(traces, layout, [], said(done)), source.spans(("sft", "rl")))


def markers(line: Line, done: list[StageRun]) -> dict[str, Any]:
    told = [stage for stage in done if stage.metrics.get(line.key) is not None]
    return trace(
        go.Scatter(
            x=[stage.offset for stage in told],
            y=[stage.metrics[line.key] for stage in told],
            text=[plain(stage.name) for stage in told],
            error_y={
                "type": "data",
                "array": [stage.metrics.get(error_of(line.key)) or 0.0 for stage in told],
                "color": COLOURS[line.slot],
                "thickness": 1,
            },
            name=line.name,
            mode="lines+markers",
            line={"color": COLOURS[line.slot], "width": 1, "dash": line.dash},
            marker={"symbol": SYMBOLS[line.key], "size": 9, "color": COLOURS[line.slot]},
            hovertemplate="%{text}: %{y:.1%}<extra>" + line.name + "</extra>",
            meta={"slot": line.slot},
        )
    )


def error_of(key: str) -> str:
    """The key of the standard error that belongs to a pass@1."""
    return key.replace("pass@1", "pass@1_stderr")


def said(done: list[StageRun]) -> str:
    if not done:
        return "No evaluation is finished yet."
    last = done[-1]
    parts = [
        f"{line.name} {words.percent(last.metrics[line.key])}"
        for line in LINES
        if last.metrics.get(line.key) is not None
    ]
    return f"pass@1 in {last.name}: {', '.join(parts) or 'not told'}."


SPEC = ChartSpec(
    "pass_at_1",
    "pass@1",
    "Does it solve problems that it was not trained on?",
    tuple(line.key for line in LINES),
    ("eval",),
    draw,
)
