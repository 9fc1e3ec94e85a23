"""Loss, and below it the gradient norm before clipping. The loss of SFT (nats per trained token) and the objective of
reinforcement learning are different numbers, so lines stop at a stage's end."""

from webapp.charts import words
from webapp.charts.drawing import Line, lines, x_axis, y_axis
from webapp.charts.spec import ChartSpec, Drawing, Source

LINES = (Line("loss", "loss", 1), Line("grad_norm", "gradient norm", 2, axis="y2"))


def draw(spec: ChartSpec, source: Source) -> Drawing:
    said = words.latest("Loss", source.points("loss", spec.kinds), words.number, "No update has been made yet.")
    norm = source.points("grad_norm", spec.kinds).latest
    if norm is not None:
        said += f" Gradient norm: {words.number(norm[1])}."
    layout = {
        "yaxis": y_axis("loss", domain=[0.54, 1], rangemode="normal"),
        "yaxis2": y_axis("gradient norm", domain=[0, 0.44], anchor="x"),
        "xaxis": x_axis(anchor="y2"),
    }
    return lines(spec, source, LINES, layout=layout, words=said)


SPEC = ChartSpec(
    "optimisation",
    "Loss and gradient norm",
    "Does training stay healthy?",
    tuple(line.key for line in LINES),
    ("sft", "rl"),
    draw,
    breaks=True,
)
