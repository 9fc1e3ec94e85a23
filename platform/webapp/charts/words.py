"""A chart in a sentence: its latest value and where it came from, for screen readers and for a glance."""

from collections.abc import Callable

from webapp.charts.spec import Points


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


def odd(points: Points) -> str:
    """That there are numbers which a chart cannot show."""
    count = len(points.non_finite)
    if not count:
        return ""
    return f" {count:,} values were not finite." if count > 1 else " One value was not finite."
