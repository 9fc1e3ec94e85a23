"""What became of a step's groups: only kept ones teach. Where all are right or all wrong, nothing is better."""

from webapp.charts.drawing import Line, bars, y_axis
from webapp.charts.spec import ChartSpec, Drawing, Source

LINES = (
    Line("kept_groups", "kept", 1),
    Line("all_right", "all right", 3),
    Line("all_wrong", "all wrong", 2),
    Line("roc_emptied", "emptied", 7),
)


def draw(spec: ChartSpec, source: Source) -> Drawing:
    return bars(spec, source, LINES, layout={"yaxis": y_axis("groups")}, words=said(spec, source))


def said(spec: ChartSpec, source: Source) -> str:
    found = {line.name: source.points(line.key, spec.kinds).latest for line in LINES}
    kept = found["kept"]
    if kept is None:
        return "No step of reinforcement learning is finished yet."
    parts = [f"{value[1]:.0f} {name}" for name, value in found.items() if value is not None and value[0] == kept[0]]
    return f"Groups of step {kept[0]:,}: {', '.join(parts)}."


SPEC = ChartSpec(
    "groups",
    "Groups",
    "How many problems still teach something?",
    tuple(line.key for line in LINES),
    ("rl",),
    draw,
)
