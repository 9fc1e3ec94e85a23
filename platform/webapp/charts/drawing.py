"""How traces, axes, stage marks and numbers that are not finite look: the same on every chart.

Plotly reads a little HTML in texts, so every text that is not ours goes through ``plain``. Leaves out colours of dark
pages and sizes, which the browser knows.
"""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import plotly.graph_objects as go

from webapp.charts.palette import COLOURS, faint
from webapp.charts.spec import ChartSpec, Drawing, Points, Source, Span

MARKS_AXIS = "y9"
BARS_UP_TO = 150
APART_UP_TO = 30
MANY_POINTS = 60


@dataclass(frozen=True)
class Line:
    """A series of a chart as it is shown: ``axis`` ``y2`` is a second panel below."""

    key: str
    name: str
    slot: int
    dash: str = "solid"
    axis: str = "y"


def plain(text: str) -> str:
    """Text for Plotly that shows as it is: its pseudo-HTML is not for others to write."""
    return html.escape(text, quote=False)


def lines(spec: ChartSpec, source: Source, shown: Sequence[Line], *, layout: dict[str, Any], words: str) -> Drawing:
    """A chart of lines: bands first, so that lines are on top of them, the marks trace last."""
    drawing = Drawing([], layout, [], words)
    found = {line.key: source.points(line.key, spec.kinds) for line in shown}
    broken_at = [span.last for span in source.spans(spec.kinds)] if spec.breaks else []
    for line in shown:
        add_line(drawing, line, found[line.key], broken_at)
    add_marks(drawing, shown, found)
    return finished(drawing, source.spans(spec.kinds))


def timeline(source: Source, shown: Sequence[Line], *, layout: dict[str, Any], words: str) -> Drawing:
    """A chart of lines over the time within the run."""
    of_run, drawing = source.timeline, Drawing([], layout, [], words)
    found = {line.key: of_run.points(line.key) for line in shown}
    for line in shown:
        add_line(drawing, line, found[line.key], of_run.breaks)
    add_marks(drawing, shown, found)
    return finished(drawing, ())


def time_axis(source: Source, **more: Any) -> dict[str, Any]:
    """The x axis of a timeline."""
    name = source.timeline.unit.name
    title = {"text": f"{name}s since the run started", "font": {"size": 11}, "standoff": 4}
    return {
        "title": title,
        "tickformat": ",~f",
        "unifiedhovertitle": {"text": f"{name} %{{x:,.4~r}}"},
        "zeroline": False,
        **more,
    }


def add_line(drawing: Drawing, line: Line, points: Points, broken_at: Sequence[float]) -> None:
    """A line, and behind it the band from least to greatest where points stand for several steps."""
    x, columns = with_breaks(points, broken_at)
    y, low, high = columns
    binding: dict[str, Any] = {"key": line.key}
    if points.bucketed:
        binding |= {"low": len(drawing.traces), "high": len(drawing.traces) + 1}
        drawing.traces += [band_edge(line, x, low, fill=False), band_edge(line, x, high, fill=True)]
    binding["trace"] = len(drawing.traces)
    drawing.traces.append(
        trace(
            go.Scatter(
                x=x,
                y=y,
                name=plain(line.name),
                mode="lines" if len(points.x) > MANY_POINTS else "lines+markers",
                line={"color": COLOURS[line.slot], "width": 2, "dash": line.dash},
                marker={"size": 5, "color": COLOURS[line.slot]},
                connectgaps=False,
                yaxis=line.axis,
                meta={"slot": line.slot},
            )
        )
    )
    drawing.bind.append(binding)


def band_edge(line: Line, x: list[float], y: list[float | None], *, fill: bool) -> dict[str, Any]:
    return trace(
        go.Scatter(
            x=x,
            y=y,
            name=f"{line.name}, range",
            mode="lines",
            line={"width": 0, "color": COLOURS[line.slot]},
            fill="tonexty" if fill else None,
            fillcolor=faint(line.slot) if fill else None,
            hoverinfo="skip",
            showlegend=False,
            connectgaps=False,
            yaxis=line.axis,
            meta={"slot": line.slot, "role": "band"},
        )
    )


def with_breaks(points: Points, broken_at: Sequence[float]) -> tuple[list[float], list[list[float | None]]]:
    """The points with an empty one after each place where a line has to stop."""
    x: list[float] = []
    columns: list[list[float | None]] = [[], [], []]
    for place, at in enumerate(points.x):
        if x and any(x[-1] <= end < at for end in broken_at):
            x.append(at)
            for column in columns:
                column.append(None)
        x.append(at)
        for column, values in zip(columns, (points.y, points.low, points.high), strict=True):
            column.append(values[place])
    return x, columns


def bars(spec: ChartSpec, source: Source, shown: Sequence[Line], *, layout: dict[str, Any], words: str) -> Drawing:
    """Parts of a whole, one on the other: bars, and areas when there are too many bars to draw twice a second."""
    found = {line.key: source.points(line.key, spec.kinds) for line in shown}
    most = max(len(points.x) for points in found.values())
    gap = 0.1 if most <= APART_UP_TO else 0  # narrow gaps fall between pixels and make patterns
    drawing = Drawing([], {"barmode": "stack", "bargap": gap, **layout}, [], words)
    for line in shown:
        drawing.bind.append({"key": line.key, "trace": len(drawing.traces)})
        drawing.traces.append((bar if most <= BARS_UP_TO else area)(line, found[line.key]))
    add_marks(drawing, shown, found)
    return finished(drawing, source.spans(spec.kinds))


def bar(line: Line, points: Points) -> dict[str, Any]:
    return trace(
        go.Bar(
            x=points.x,
            y=points.y,
            name=line.name,
            marker={"color": COLOURS[line.slot], "line": {"width": 0}},
            meta={"slot": line.slot},
        )
    )


def area(line: Line, points: Points) -> dict[str, Any]:
    return trace(
        go.Scatter(
            x=points.x,
            y=points.y,
            name=line.name,
            mode="lines",
            stackgroup="all",
            line={"width": 0.5, "color": COLOURS[line.slot], "shape": "hv"},
            fillcolor=COLOURS[line.slot],
            meta={"slot": line.slot, "role": "area"},
        )
    )


def add_marks(drawing: Drawing, shown: Iterable[Line], found: dict[str, Points]) -> None:
    """A cross at the foot of the chart for every number that was not finite; the trace is there before it is needed."""
    rows = sorted((x, line.name, which) for line in shown for x, which in found[line.key].non_finite)
    for binding in drawing.bind:
        binding["marks"] = len(drawing.traces)
    drawing.traces.append(
        trace(
            go.Scatter(
                x=[x for x, _, _ in rows],
                y=[0.04] * len(rows),
                text=[plain(f"{name} at step {x:,}: {which}") for x, name, which in rows],
                name="not finite",
                mode="markers",
                marker={"symbol": "x", "size": 9, "color": COLOURS[8]},
                hovertemplate="%{text}<extra></extra>",
                showlegend=bool(rows),
                yaxis=MARKS_AXIS,
                meta={"slot": 8, "role": "marks"},
            )
        )
    )


def finished(drawing: Drawing, spans: Sequence[Span]) -> Drawing:
    """The drawing with axes and stage marks, as plain JSON."""
    begun = [span for span in spans if span.begun]
    common: dict[str, Any] = {
        "margin": {"l": 56, "r": 12, "t": 24, "b": 40},
        "hovermode": "x unified",
        "hoverlabel": {"namelength": -1},
        "legend": {
            "orientation": "h",
            "traceorder": "normal",
            "font": {"size": 11},
            "x": 0,
            "y": 1.09,
            "yanchor": "bottom",
            "xanchor": "left",
        },
        "xaxis": x_axis(),
        "yaxis9": {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True},
        "shapes": [stage_line(span) for span in begun if span.first > 1],
        "annotations": [stage_name(span) for span in begun] if len(spans) > 1 else [],
        "uirevision": "kept",
    }
    layout = go.Layout({**common, **drawing.layout}).to_plotly_json()
    return Drawing(drawing.traces, cast(dict[str, Any], layout), drawing.bind, drawing.words)


def stage_line(span: Span) -> dict[str, Any]:
    """Between the last step of the stage before and the first of this one."""
    x = span.first - 0.5
    line = {"width": 1, "dash": "dot", "color": COLOURS[7]}
    return {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": line, "layer": "below"}


def stage_name(span: Span) -> dict[str, Any]:
    return {
        "x": span.first - 0.5,
        "y": 1,
        "yref": "paper",
        "xanchor": "left",
        "yanchor": "bottom",
        "text": plain(span.name),
        "showarrow": False,
        "font": {"size": 11},
    }


def trace(drawn: Any) -> dict[str, Any]:
    """A trace as JSON; plotly has checked its fields."""
    return {name: listed(value) for name, value in drawn.to_plotly_json().items()}


def listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def x_axis(**more: Any) -> dict[str, Any]:
    return {
        "title": {"text": "step, counted over all stages", "font": {"size": 11}, "standoff": 4},
        "tickformat": ",~f",
        "unifiedhovertitle": {"text": "step %{x:,d}"},
        "zeroline": False,
        **more,
    }


def y_axis(title: str, *, percent: bool = False, log: bool = False, **more: Any) -> dict[str, Any]:
    """A y axis from 0, or a logarithmic one."""
    axis: dict[str, Any] = {"title": {"text": title}, "zeroline": False, "type": "log" if log else "linear"}
    if not log:
        axis["rangemode"] = "tozero"
    if percent:
        axis["tickformat"] = ".0%"
        axis["hoverformat"] = ".1%"
    else:
        axis["hoverformat"] = ".4~g"
    return {**axis, **more}
