"""Entropy of the policy: over all sampled tokens, and over the first ones behind a tool response, where the paper
(section 5) finds the tokens that reflect on what the tool said."""

from webapp.charts import words
from webapp.charts.drawing import Line, lines, y_axis
from webapp.charts.spec import ChartSpec, Drawing, Source

LINES = (Line("entropy", "all sampled tokens", 1), Line("entropy_after_tool", "after tool responses", 3, dash="dash"))


def draw(spec: ChartSpec, source: Source) -> Drawing:
    points = source.points("entropy", spec.kinds)
    said = words.latest("Entropy", points, words.number, "No update has been made yet.")
    return lines(spec, source, LINES, layout={"yaxis": y_axis("nats per token")}, words=said)


SPEC = ChartSpec(
    "exploration",
    "Entropy",
    "Does the policy still explore?",
    tuple(line.key for line in LINES),
    ("rl",),
    draw,
)
