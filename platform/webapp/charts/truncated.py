"""Share of rollouts that were cut by the token or turn limit."""

from webapp.charts import words
from webapp.charts.drawing import Line, lines, y_axis
from webapp.charts.spec import ChartSpec, Drawing, Source

LINES = (Line("truncated_share", "truncated share", 4),)


def draw(spec: ChartSpec, source: Source) -> Drawing:
    points = source.points("truncated_share", spec.kinds)
    nothing = "No step of reinforcement learning is finished yet."
    said = words.latest("Truncated share", points, words.percent, nothing)
    axis = y_axis("rollouts cut / rollouts", percent=True)
    return lines(spec, source, LINES, layout={"yaxis": axis, "showlegend": False}, words=said)


SPEC = ChartSpec(
    "truncated",
    "Truncated share",
    "How many rollouts does the token or turn limit cut?",
    ("truncated_share",),
    ("rl",),
    draw,
)
