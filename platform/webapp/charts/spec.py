"""What a chart is: which series it reads, what it asks, and how it is drawn from them.

Leaves out how traces look (``drawing.py``) and where the numbers come from (``registry.py`` reads them once for all).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from webapp.runs.models import StageRun
from webapp.telemetry.queries import Series


@dataclass(frozen=True)
class Span:
    """The steps of a stage on the axis of all stages, both ends included; an evaluation has none."""

    name: str
    kind: str
    first: int
    last: int
    begun: bool

    @classmethod
    def of(cls, stage: StageRun) -> "Span":
        steps = 0 if stage.kind == "eval" else stage.steps
        return cls(stage.name, stage.kind, stage.offset + 1, stage.offset + steps, stage.started_at is not None)


@dataclass(frozen=True)
class Points:
    """One series, clipped to the stages that a chart is about. ``y`` is None where there is no finite number."""

    x: list[float] = field(default_factory=list)
    y: list[float | None] = field(default_factory=list)
    low: list[float | None] = field(default_factory=list)
    high: list[float | None] = field(default_factory=list)
    bucketed: bool = False
    non_finite: list[tuple[int, str]] = field(default_factory=list)

    @property
    def latest(self) -> tuple[float, float] | None:
        """The last finite point."""
        return next(((x, y) for x, y in zip(reversed(self.x), reversed(self.y), strict=True) if y is not None), None)

    @property
    def earliest(self) -> tuple[float, float] | None:
        return next(((x, y) for x, y in zip(self.x, self.y, strict=True) if y is not None), None)


@dataclass(frozen=True)
class Unit:
    """What is counted on the x axis of a chart; ``per``: how much of what points have is one of it."""

    name: str
    per: float = 1


STEP = Unit("step")
UNITS_OF_TIME = (Unit("second", 1), Unit("minute", 60), Unit("hour", 3600))
FEW = 300
"""So many of one unit are still told in it."""


@dataclass(frozen=True)
class Timeline:
    """What a run's rollout engines told: times in seconds within the run, at each its values by key."""

    seconds: Sequence[float] = ()
    values: Sequence[Mapping[str, float]] = ()
    attempts: Sequence[int] = ()
    engines: Sequence[str] = ()
    """The names of all that told something, sorted."""

    @property
    def unit(self) -> Unit:
        last = self.seconds[-1] if self.seconds else 0
        return next((unit for unit in UNITS_OF_TIME if last <= FEW * unit.per), UNITS_OF_TIME[-1])

    def points(self, key: str) -> Points:
        here = [(at, values[key]) for at, values in zip(self.seconds, self.values, strict=True) if key in values]
        y = [rounded(value) for _, value in here]
        return Points(x=[self.place(at) for at, _ in here], y=y, low=y, high=y)

    def place(self, seconds: float) -> float:
        """Where on the axis, to four digits; live points are placed by the same rule (``growth.ts``)."""
        return math.floor(seconds / self.unit.per * 1e4 + 0.5) / 1e4

    @property
    def breaks(self) -> list[float]:
        """Where on the axis an attempt ended: nothing is known from there to the next."""
        pairs = zip(self.seconds, self.attempts, self.attempts[1:], strict=False)
        return [self.place(at) for at, attempt, following in pairs if attempt != following]


@dataclass(frozen=True)
class Source:
    """What charts are drawn from: every series that any of them reads, the run's stages, its engines' timeline."""

    series: Mapping[str, Series]
    stages: Sequence[StageRun]
    timeline: Timeline = Timeline()

    def spans(self, kinds: Sequence[str]) -> list[Span]:
        """Where steps of these kinds lie."""
        return [span for span in map(Span.of, self.stages) if span.kind in kinds and span.last >= span.first]

    def points(self, key: str, kinds: Sequence[str]) -> Points:
        """A series within the stages of these kinds: other stages may tell the same key and mean something else."""
        series = self.series.get(key)
        if series is None:
            return Points()
        return clipped(series, [(span.first, span.last) for span in self.spans(kinds)])


def clipped(series: Series, ranges: Sequence[tuple[int, int]]) -> Points:
    """Points within ``ranges``; a number that was not finite leaves a gap at its place."""
    rows: dict[int, tuple[float | None, float | None, float | None]] = {
        x: (last, low, high)
        for x, last, low, high in zip(series.x, series.last, series.min, series.max, strict=True)
        if inside(x, ranges)
    }
    non_finite = [(each["x"], each["which"]) for each in series.non_finite if inside(each["x"], ranges)]
    for x, _ in non_finite:
        rows.setdefault(x, (None, None, None))
    ordered = sorted(rows.items())
    return Points(
        x=[x for x, _ in ordered],
        y=[rounded(row[0]) for _, row in ordered],
        low=[rounded(row[1]) for _, row in ordered],
        high=[rounded(row[2]) for _, row in ordered],
        bucketed=any(count > 1 for count in series.n),
        non_finite=non_finite,
    )


def inside(x: int, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(first <= x <= last for first, last in ranges)


def rounded(value: float | None) -> float | None:
    """Six digits: more is not seen on a chart and doubles what travels."""
    return None if value is None else float(f"{value:.6g}")


@dataclass
class Drawing:
    """A chart as drawn. ``bind`` says which key goes on growing which trace: ``{key, trace, marks}``, with ``low`` and
    ``high`` where a band belongs to the line; on ``marks`` are the numbers that were not finite."""

    traces: list[dict[str, Any]]
    layout: dict[str, Any]
    bind: list[dict[str, Any]]
    words: str


@dataclass(frozen=True)
class ChartSpec:
    """A chart's definition. ``kinds``: the stages whose steps it shows; a run without any has no such chart.
    ``breaks``: lines stop at a stage's end, because the number means something else after it. ``timed``: it shows the
    engines' timeline, over time in place of steps, and reads no series."""

    id: str
    title: str
    question: str
    keys: tuple[str, ...]
    kinds: tuple[str, ...]
    draw: Callable[["ChartSpec", Source], Drawing]
    breaks: bool = False
    timed: bool = False
