"""Mean reward of a step's rollouts, before down-sampling."""

from webapp.charts import words
from webapp.charts.drawing import Line, lines, y_axis
from webapp.charts.spec import ChartSpec, Drawing, Source

LINES = (Line("reward", "mean reward", 1),)


def draw(spec: ChartSpec, source: Source) -> Drawing:
    points = source.points("reward", spec.kinds)
    said = words.latest("Mean reward", points, words.number, "No step of reinforcement learning is finished yet.")
    return lines(spec, source, LINES, layout={"yaxis": y_axis("mean reward"), "showlegend": False}, words=said)


SPEC = ChartSpec("reward", "Reward", "Do rollouts get better?", ("reward",), ("rl",), draw)
