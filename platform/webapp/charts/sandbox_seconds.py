"""Seconds of a step's calls to the sandbox: until a slot was free, and running; mean and the slowest of a hundred."""

from webapp.charts import words
from webapp.charts.drawing import Line, lines, x_axis, y_axis
from webapp.charts.spec import ChartSpec, Drawing, Source

LINES = (
    Line("sandbox.wall_s", "running, mean", 1),
    Line("sandbox.wall_p99_s", "running, 99th percentile", 1, dash="dot"),
    Line("sandbox.queued_s", "waiting, mean", 2, axis="y2"),
    Line("sandbox.queued_p99_s", "waiting, 99th percentile", 2, dash="dot", axis="y2"),
)


def draw(spec: ChartSpec, source: Source) -> Drawing:
    running = source.points("sandbox.wall_s", spec.kinds)
    said = words.latest("Seconds that a call ran", running, words.number, "No program has been run in the sandbox yet.")
    waiting = source.points("sandbox.queued_s", spec.kinds).latest
    if waiting is not None:
        said += f" It waited {words.number(waiting[1])} s for a free slot."
    layout = {
        "yaxis": y_axis("s running", domain=[0.54, 1]),
        "yaxis2": y_axis("s waiting", domain=[0, 0.44], anchor="x"),
        "xaxis": x_axis(anchor="y2"),
    }
    return lines(spec, source, LINES, layout=layout, words=said)


SPEC = ChartSpec(
    "sandbox_seconds",
    "Seconds in the sandbox",
    "Do rollouts wait for the sandbox?",
    tuple(line.key for line in LINES),
    ("rl",),
    draw,
)
