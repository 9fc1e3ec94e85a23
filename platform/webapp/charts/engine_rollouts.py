"""Where rollouts are over time, all engines together: in flight, of those waiting for a tool, not admitted yet."""

from webapp.charts import words
from webapp.charts.drawing import Line, time_axis, timeline, y_axis
from webapp.charts.spec import ChartSpec, Drawing, Source

LINES = (
    Line("engines.in_flight", "in flight", 1),
    Line("engines.in_tools", "waiting for a tool", 2),
    Line("engines.queued", "not admitted yet", 7, dash="dot"),
)


def draw(spec: ChartSpec, source: Source) -> Drawing:
    layout = {"yaxis": y_axis("rollouts"), "xaxis": time_axis(source)}
    return timeline(source, LINES, layout=layout, words=words.at_last(source.timeline, LINES, words.number))


SPEC = ChartSpec(
    "engine_rollouts",
    "Rollouts in the engines",
    "Are the engines full, and what do rollouts wait for?",
    (),
    ("rl", "eval"),
    draw,
    timed=True,
)
