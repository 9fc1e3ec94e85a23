"""The timeline of a run's rollout engines: which events are one moment, what is kept of a long run, what charts show.

Engines are asked one after the other and told in events of their own; those of one moment belong together. A week of
them would be a million: only the first of every ``width_s`` seconds stays, and the width doubles as the run gets
longer. So a run has at most about a thousand moments, which are the same however often it is thinned on the way. Used
by the report and by the platform; leaves out where moments are kept.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from engine.contract.events import EngineLoad, Event

Engines = Mapping[str, Mapping[str, float | None]]
"""Engine -> metric -> value; null: not a finite number."""

MOST_MOMENTS = 1000
FINEST_S = 0.25
ONE_MOMENT_S = 0.2
"""Engines that were asked together are told within this time, and are not asked again so soon."""

_SUMMED = ("in_flight", "in_tools", "running", "preemptions", "reprefilled_tokens", "generated_tokens")


@dataclass(slots=True)
class Moment:
    """What engines said of themselves at one time. ``at``: Unix seconds."""

    attempt: int
    stage: str
    step: int
    at: float
    engines: dict[str, dict[str, float | None]]

    def takes(self, event: Event, body: EngineLoad) -> bool:
        """Whether the event belongs to this moment."""
        same = (event.attempt, body.stage, body.step) == (self.attempt, self.stage, self.step)
        return same and body.engine not in self.engines and abs(event.at - self.at) <= ONE_MOMENT_S


def moments(told: Iterable[tuple[Event, EngineLoad]], last: Moment | None = None) -> list[Moment]:
    """Events in their order, those of one moment together; the first may go on with ``last``, which then leads."""
    found: list[Moment] = []
    now = last
    for event, body in told:
        if now is None or not now.takes(event, body):
            now = Moment(event.attempt, body.stage, body.step, event.at, {})
        now.engines[body.engine] = dict(body.metrics)
        if not (found and found[-1] is now):
            found.append(now)
    return found


def width_s(first: float, last: float) -> float:
    """Seconds of which one moment is kept: a power of two, so that what a wider one keeps a finer one has kept."""
    width = FINEST_S
    while last - first > width * (MOST_MOMENTS - 1):
        width *= 2
    return width


def surplus(times: Sequence[float]) -> list[int]:
    """Places of those that go: of times in order, all but the first of every ``width_s`` seconds."""
    if not times:
        return []
    width = width_s(times[0], times[-1])
    spans = groupby(range(len(times)), key=lambda place: times[place] // width)
    return [place for _, here in spans for place in list(here)[1:]]


def shown_values(engines: Engines) -> dict[str, float]:
    """What charts show of a moment, by key: all engines together (``engines.in_flight``), each one's KV cache in shares
    (``engine.vllm-0.kv_usage``) and what its rollouts are expected to need of it (``engine.vllm-0.expected``)."""
    values = dict(_together(engines))
    for name, metrics in engines.items():
        values |= {f"engine.{name}.{what}": value for what, value in _cache(metrics).items()}
    for what in ("kv_usage", "expected"):
        each = [value for name in engines if (value := values.get(f"engine.{name}.{what}")) is not None]
        if each:
            values |= {f"engines.{what}.mean": sum(each) / len(each), f"engines.{what}.max": max(each)}
    return values


def _together(engines: Engines) -> Iterator[tuple[str, float]]:
    for name in _SUMMED:
        told = _told(engines, name)
        if told:
            yield f"engines.{name}", sum(told)
    queued = _told(engines, "queued")
    if queued:  # one queue for all: every engine tells the same number
        yield "engines.queued", max(queued)


def _told(engines: Engines, name: str) -> list[float]:
    """What every engine that serves says; nothing if one does not: a sum over the others would look like a fall."""
    said = [metrics.get(name) for metrics in engines.values() if metrics.get("serving") != 0 or name in metrics]
    values = [value for value in said if value is not None]
    return values if len(values) == len(said) else []


def _cache(metrics: Mapping[str, float | None]) -> dict[str, float]:
    found = {}
    if (usage := metrics.get("kv_usage")) is not None:
        found["kv_usage"] = usage
    expected, capacity = metrics.get("expected_tokens"), metrics.get("capacity_tokens")
    if expected is not None and capacity:
        found["expected"] = expected / capacity
    return found


def arrays(rows: Sequence[Engines]) -> dict[str, dict[str, list[float | None]]]:
    """Rows as arrays: engine -> metric -> a value a row, null where it told none."""
    found: dict[str, dict[str, list[float | None]]] = {}
    for place, engines in enumerate(rows):
        for name, metrics in engines.items():
            for metric, value in metrics.items():
                array = found.setdefault(name, {}).setdefault(metric, [None] * len(rows))
                array[place] = value
    return found
