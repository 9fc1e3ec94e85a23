"""How numbers are said to people, the same in the terminal and in the report.

A metric has three states that must not be mixed up: a value, a number that was not finite (said as ``NaN``),
and nothing recorded (said as a dash). Leaves out where numbers come from.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

NOTHING = "–"  # noqa: RUF001 - the dash of tables, not a minus
_BARS = "▁▂▃▄▅▆▇█"

Format = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Measure:
    """A metric as people know it."""

    key: str
    label: str
    show: Format


def percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def plain(value: float) -> str:
    """Three significant digits; small values in scientific notation."""
    if value and abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def count(value: float) -> str:
    return f"{value:,.0f}"


def counted(found: Mapping[str, int], most: int | None = None) -> str:
    """``ok 40, error 3``: the most frequent first, at most ``most`` of them."""
    ordered = sorted(found.items(), key=lambda item: -item[1])[:most]
    return ", ".join(f"{name} {count(number)}" for name, number in ordered)


def duration(seconds: float) -> str:
    """``30 ms``, ``42 s``, ``3 min 05 s``, ``2 h 14 min``."""
    if 0 < seconds < 0.1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def say(metrics: Mapping[str, float | None], non_finite: Mapping[str, str], key: str, show: Format) -> str:
    """A metric's value, or that it was not finite, or that there is none."""
    value = metrics.get(key)
    if value is not None:
        return show(value)
    flag = non_finite.get(key)
    return NOTHING if flag is None else flag.replace("nan", "NaN")


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def sparkline(values: Sequence[float]) -> str:
    """One character a value, lowest to highest of what is shown."""
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in values)
