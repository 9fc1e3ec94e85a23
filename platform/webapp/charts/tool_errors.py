"""Erroneous tool calls / tool calls: over all rollouts, and over those with a right answer."""

from webapp.charts import words
from webapp.charts.drawing import Line, lines, y_axis
from webapp.charts.spec import ChartSpec, Drawing, Source

LINES = (
    Line("tool_error_rate", "all rollouts", 2),
    Line("tool_error_rate_right", "right ones only", 1, dash="dash"),
)


def draw(spec: ChartSpec, source: Source) -> Drawing:
    every = source.points("tool_error_rate", spec.kinds)
    said = words.latest("Tool-error rate of all rollouts", every, words.percent, "No tool call has been made yet.")
    right = source.points("tool_error_rate_right", spec.kinds).latest
    if right is not None:
        said += f" Among right rollouts: {words.percent(right[1])}."
    axis = y_axis("errors / tool calls", percent=True)
    return lines(spec, source, LINES, layout={"yaxis": axis}, words=said)


SPEC = ChartSpec(
    "tool_errors",
    "Tool-error rate",
    "Does the policy learn to write code that runs, also where the answer is right anyway?",
    tuple(line.key for line in LINES),
    ("rl",),
    draw,
)
