"""Work that a full KV cache made the engines do twice, counted since they started (a restarted engine begins at 0)."""

from webapp.charts import words
from webapp.charts.drawing import Line, time_axis, timeline, y_axis
from webapp.charts.spec import ChartSpec, Drawing, Source

LINES = (
    Line("engines.preemptions", "preemptions", 8),
    Line("engines.reprefilled_tokens", "re-prefilled tokens", 5, axis="y2"),
)


def draw(spec: ChartSpec, source: Source) -> Drawing:
    layout = {
        "yaxis": y_axis("preemptions", domain=[0.54, 1]),
        "yaxis2": y_axis("tokens", domain=[0, 0.44], anchor="x"),
        "xaxis": time_axis(source, anchor="y2"),
    }
    return timeline(source, LINES, layout=layout, words=words.at_last(source.timeline, LINES, words.number))


SPEC = ChartSpec(
    "engine_lost",
    "Preemptions and re-prefilled tokens",
    "How much work do full caches cost?",
    (),
    ("rl", "eval"),
    draw,
    timed=True,
)
