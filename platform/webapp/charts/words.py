"""A chart in a sentence: its latest value and where it came from, for screen readers and for a glance."""

from collections.abc import Callable, Sequence

from webapp.charts.drawing import Line
from webapp.charts.spec import Points, Timeline


def percent(value: float) -> str:
    return f"{value:.1%}"


def number(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def latest(name: str, points: Points, written: Callable[[float], str], nothing: str) -> str:
    """``Mean reward: 0.62 at step 34, 0.20 at step 1.``"""
    now, first = points.latest, points.earliest
    if now is None or first is None:
        return nothing
    came_from = f", {written(first[1])} at step {first[0]:,}" if first[0] != now[0] else ""
    return f"{name}: {written(now[1])} at step {now[0]:,}{came_from}.{odd(points)}"


def at_last(run: Timeline, shown: Sequence[Line], written: Callable[[float], str]) -> str:
    """``Minute 3.5: in flight 12, waiting for a tool 4.`` as of the last moment told."""
    if not run.seconds:
        return "No engine has told of its load yet."
    values = run.values[-1]
    parts = [f"{line.name} {written(values[line.key])}" for line in shown if line.key in values]
    return f"{run.unit.name.capitalize()} {run.place(run.seconds[-1]):,.4g}: {', '.join(parts) or 'nothing told'}."


def odd(points: Points) -> str:
    """That there are numbers which a chart cannot show."""
    count = len(points.non_finite)
    if not count:
        return ""
    return f" {count:,} values were not finite." if count > 1 else " One value was not finite."
