"""Tokens that policy and tools produced after the prompt, mean over a step's rollouts."""

from webapp.charts import words
from webapp.charts.drawing import Line, lines, y_axis
from webapp.charts.spec import ChartSpec, Drawing, Source

LINES = (Line("response_tokens", "response length", 3),)


def draw(spec: ChartSpec, source: Source) -> Drawing:
    points = source.points("response_tokens", spec.kinds)
    nothing = "No step of reinforcement learning is finished yet."
    said = words.latest("Mean response length in tokens", points, words.number, nothing)
    return lines(spec, source, LINES, layout={"yaxis": y_axis("tokens"), "showlegend": False}, words=said)


SPEC = ChartSpec(
    "response_length", "Response length", "Do answers get longer or shorter?", ("response_tokens",), ("rl",), draw
)
