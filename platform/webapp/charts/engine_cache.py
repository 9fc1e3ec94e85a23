"""KV cache over time: what is used of it, and below it what the rollouts in flight are expected to need at their peak.

A line an engine; of more engines than can be told apart, their mean and the fullest.
"""

from collections.abc import Iterator

from webapp.charts import words
from webapp.charts.drawing import Line, time_axis, timeline, y_axis
from webapp.charts.spec import ChartSpec, Drawing, Source, Timeline

TOLD_APART = 4
TOGETHER = (("mean", "mean", "solid"), ("max", "fullest", "dot"))


def draw(spec: ChartSpec, source: Source) -> Drawing:
    used = list(lines_of(source.timeline, "kv_usage", "used", "y"))
    expected = list(lines_of(source.timeline, "expected", "expected", "y2"))
    layout = {
        "yaxis": y_axis("used", percent=True, domain=[0.54, 1]),
        "yaxis2": y_axis("expected", percent=True, domain=[0, 0.44], anchor="x"),
        "xaxis": time_axis(source, anchor="y2"),
    }
    shown = [*used, *expected]
    return timeline(source, shown, layout=layout, words=words.at_last(source.timeline, shown, words.percent))


def lines_of(run: Timeline, what: str, name: str, axis: str) -> Iterator[Line]:
    if 0 < len(run.engines) <= TOLD_APART:
        for slot, engine in enumerate(run.engines, start=1):
            yield Line(f"engine.{engine}.{what}", f"{engine} {name}", slot, axis=axis)
        return
    for slot, (key, told, dash) in enumerate(TOGETHER, start=1):
        yield Line(f"engines.{what}.{key}", f"{told} {name}", slot, dash=dash, axis=axis)


SPEC = ChartSpec(
    "engine_cache",
    "KV cache of the engines",
    "Is the KV cache well used, and does what is admitted fit?",
    (),
    ("rl", "eval"),
    draw,
    timed=True,
)
