"""Seconds of a step by phase."""

from engine.contract.events import Phase
from webapp.charts.drawing import Line, bars, y_axis
from webapp.charts.spec import ChartSpec, Drawing, Source

LINES = tuple(
    Line(f"seconds.{phase}", phase.value, slot)
    for phase, slot in (
        (Phase.sampling, 1),
        (Phase.scoring, 3),
        (Phase.downsampling, 4),
        (Phase.update, 2),
        (Phase.push, 5),
        (Phase.checkpoint, 7),
        (Phase.preparing, 6),
    )
)


def draw(spec: ChartSpec, source: Source) -> Drawing:
    return bars(spec, source, LINES, layout={"yaxis": y_axis("seconds")}, words=said(spec, source))


def said(spec: ChartSpec, source: Source) -> str:
    """The longest phases of the last step first."""
    found = {line.name: source.points(line.key, spec.kinds).latest for line in LINES}
    told = {name: point for name, point in found.items() if point is not None}
    if not told:
        return "No step of reinforcement learning is finished yet."
    step = max(point[0] for point in told.values())
    of_step = {name: point[1] for name, point in told.items() if point[0] == step}
    longest = sorted(of_step.items(), key=lambda item: -item[1])[:3]
    parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in longest)
    return f"Step {step:,} took {sum(of_step.values()):.1f} s: {parts}."


SPEC = ChartSpec(
    "seconds", "Seconds per phase", "Where does the time go?", tuple(line.key for line in LINES), ("rl",), draw
)
