"""Tool calls of a step by how they ended in the sandbox, one on the other."""

from sandbox.contract import ExecStatus
from webapp.charts.drawing import Line, bars, y_axis
from webapp.charts.spec import ChartSpec, Drawing, Source

LINES = tuple(
    Line(f"sandbox.status.{status}", words, slot)
    for status, words, slot in (
        (ExecStatus.OK, "ok", 1),
        (ExecStatus.ERROR, "error", 2),
        (ExecStatus.TIMEOUT, "timeout", 5),
        (ExecStatus.MEMORY, "memory", 4),
        (ExecStatus.OUTPUT_LIMIT, "output limit", 6),
        (ExecStatus.KILLED, "killed", 8),
    )
)


def draw(spec: ChartSpec, source: Source) -> Drawing:
    return bars(spec, source, LINES, layout={"yaxis": y_axis("calls")}, words=said(spec, source))


def said(spec: ChartSpec, source: Source) -> str:
    """The last step's calls by status; a status that did not occur has no point at that step."""
    found = {line.name: source.points(line.key, spec.kinds).latest for line in LINES}
    told = {name: point for name, point in found.items() if point is not None}
    if not told:
        return "No program has been run in the sandbox yet."
    step = max(point[0] for point in told.values())
    parts = [f"{point[1]:,.0f} {name}" for name, point in told.items() if point[0] == step]
    return f"Calls of step {step:,}: {', '.join(parts)}."


SPEC = ChartSpec(
    "sandbox_calls",
    "Calls to the sandbox",
    "How do the programs that the policy writes end?",
    tuple(line.key for line in LINES),
    ("rl",),
    draw,
)
