"""Tokens that the policy sampled per second of sampling."""

from webapp.charts import words
from webapp.charts.drawing import Line, lines, y_axis
from webapp.charts.spec import ChartSpec, Drawing, Source

LINES = (Line("tokens_per_s", "tokens/s", 5),)


def draw(spec: ChartSpec, source: Source) -> Drawing:
    points = source.points("tokens_per_s", spec.kinds)
    nothing = "No step of reinforcement learning is finished yet."
    said = words.latest("Sampled tokens per second", points, words.number, nothing)
    return lines(spec, source, LINES, layout={"yaxis": y_axis("tokens/s"), "showlegend": False}, words=said)


SPEC = ChartSpec("tokens_per_s", "Tokens per second", "How fast is sampling?", ("tokens_per_s",), ("rl",), draw)
