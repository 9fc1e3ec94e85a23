"""The report's charts: one function a chart, from a run's history to a Plotly figure with its words and its
table.

Every chart answers one question and says so. Colours of text, grid and background come from the page's style
sheet, so that a figure fits light and dark. Leaves out the page: ``report.py``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import plotly.graph_objects as go

from engine.contract.events import StepFinished
from engine.interop.engine_timeline import Moment, shown_values
from engine.view.history import History
from engine.view.wording import NOTHING, Format, count, duration, percent, plain

BLUE, ORANGE, TEAL, RED, PURPLE, GREY = "#3d7ff0", "#e8890c", "#12a594", "#e5484d", "#9a5be0", "#8b93a1"
_HEIGHT = 270


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure (None when there is nothing to show), what it says in words, and its numbers."""

    name: str
    title: str
    question: str
    words: str
    figure: go.Figure | None = None
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Line:
    """One metric of ``step.finished`` as a line."""

    key: str
    label: str
    colour: str
    dash: str = "solid"


def training_charts(history: History) -> list[Chart]:
    """In the order of reading: does it get better, how, at what price."""
    return [chart(history) for chart in _CHARTS]


def evaluations(history: History) -> Chart:
    """Held-out results after every stage."""
    words = Chart(
        "evals",
        "Held-out problems, stage by stage",
        "Does each stage help?",
        "No evaluation has finished yet.",
    )
    found = history.evaluations()
    if not found:
        return words
    names = [f"after {trained}" if trained else "before training" for trained, _ in found]
    places = [f"{name}<br>{stage.name}" for name, (_, stage) in zip(names, found, strict=True)]
    figure = _figure(hover="x unified")
    head = ["evaluation"]
    columns = []
    for key, label, colour, dash in (
        ("pass@1", "pass@1 sampled", BLUE, "solid"),
        ("pass@1_greedy", "pass@1 greedy", TEAL, "dash"),
        ("tool_error_rate", "tool-error rate sampled", ORANGE, "solid"),
    ):
        values = [stage.evaluation.metrics.get(key) if stage.evaluation else None for _, stage in found]
        errors = [
            _stderr(stage.evaluation.metrics) if key == "pass@1" and stage.evaluation else 0.0 for _, stage in found
        ]
        figure.add_scatter(
            x=places,
            y=values,
            name=label,
            mode="lines+markers",
            line={"color": colour, "dash": dash, "width": 2},
            marker={"size": 9},
            error_y={"array": errors, "visible": key == "pass@1", "thickness": 1.2},
            hovertemplate="%{y:.1%}",
        )
        head.append(label)
        columns.append([NOTHING if value is None else percent(value) for value in values])
    figure.update_yaxes(tickformat=".0%", rangemode="tozero")
    figure.update_xaxes(type="category")
    figure.update_layout(legend={"y": -0.26})  # below the second line of its labels
    rows = [list(row) for row in zip((stage.name for _, stage in found), *columns, strict=True)]
    return Chart(words.name, words.title, words.question, "Bars are one standard error.", figure, head, rows)


def _stderr(metrics: Mapping[str, float | None]) -> float:
    return metrics.get("pass@1_stderr") or 0.0


def reward(history: History) -> Chart:
    """Mean reward of all rollouts, before down-sampling."""
    return _lines(
        history,
        "reward",
        "Reward",
        "Does the policy solve more of what it samples?",
        [Line("reward", "reward", BLUE)],
    )


def tool_errors(history: History) -> Chart:
    """The paper's figure 4."""
    lines = [
        Line("tool_error_rate", "all rollouts", ORANGE),
        Line("tool_error_rate_right", "right rollouts only", TEAL, "dash"),
    ]
    return _lines(
        history,
        "tool-errors",
        "Tool-error rate",
        "Do calls fail less, also where the answer is right?",
        lines,
        percent,
    )


def response_length(history: History) -> Chart:
    """Tokens that policy and tools produced after the prompt."""
    lines = [Line("response_tokens", "mean tokens", PURPLE)]
    return _lines(history, "length", "Response length", "How many tokens does a rollout take?", lines, count)


def truncated(history: History) -> Chart:
    """Rollouts that were cut, and those that answered."""
    lines = [Line("answered_share", "answered", TEAL), Line("truncated_share", "truncated", RED, "dash")]
    return _lines(history, "endings", "How rollouts end", "Are they cut before they answer?", lines, percent)


def sft_loss(history: History) -> Chart:
    """Cross-entropy of supervised fine-tuning."""
    lines = [Line("loss", "loss per trained token", BLUE)]
    return _lines(history, "sft-loss", "SFT loss", "Has the model learned the protocol?", lines, kind="sft")


def entropy(history: History) -> Chart:
    """Entropy of the policy over sampled tokens, and over the first ones behind a tool response."""
    lines = [Line("entropy", "nats per sampled token", PURPLE), Line("entropy_after_tool", "after tools", TEAL, "dash")]
    return _lines(history, "entropy", "Entropy", "Does the policy still explore?", lines)


def logprob_gap(history: History) -> Chart:
    """Sampler against learner on the same tokens; the run stops when it is too large."""
    lines = [Line("logprob_gap_max", "largest difference", RED)]
    chart = _lines(history, "gap", "Sampler against learner", "Do both see the same policy, token by token?", lines)
    if chart.figure is not None:
        chart.figure.update_yaxes(type="log", exponentformat="e", rangemode="normal")
    return chart


def tokens_per_s(history: History) -> Chart:
    """Speed of a whole step."""
    return _lines(history, "speed", "Tokens per second", "How fast?", [Line("tokens_per_s", "tokens/s", GREY)], count)


def roc_outcomes(history: History) -> Chart:
    """What became of every group of rollouts."""
    kinds = [
        Line("kept_groups", "kept", BLUE),
        Line("all_right", "all right", TEAL),
        Line("all_wrong", "all wrong", RED),
        Line("roc_emptied", "emptied by RoC", GREY),
    ]
    empty = _empty("roc", "Groups and what became of them", "How much of a batch teaches anything?", "rl")
    points = list(history.points("rl"))
    if not any(kind.key in body.metrics for _, body in points for kind in kinds):
        return empty
    figure = _figure()
    for kind in kinds:
        figure.add_bar(
            x=[x for x, _ in points],
            y=[body.metrics.get(kind.key) for _, body in points],
            name=kind.label,
            marker={"color": kind.colour, "line": {"width": 0}},
        )
    figure.update_layout(barmode="stack", bargap=0.12)
    _mark_stages(figure, history, "rl")
    head, rows = _table(history, kinds, count, "rl")
    return Chart(empty.name, empty.title, empty.question, _last(points, kinds, count), figure, head, rows)


def phase_seconds(history: History) -> Chart:
    """Where the wall time of a step goes."""
    empty = _empty("phases", "Seconds by phase", "What does a step spend its time on?", "rl")
    points = list(history.points("rl"))
    phases = list(dict.fromkeys(name for _, body in points for name in body.seconds))
    if not phases:
        return empty
    figure = _figure()
    palette = (BLUE, TEAL, ORANGE, PURPLE, RED, GREY)
    for number, name in enumerate(phases):
        figure.add_bar(
            x=[x for x, _ in points],
            y=[body.seconds.get(name) for _, body in points],
            name=name,
            marker={"color": palette[number % len(palette)], "line": {"width": 0}},
            hovertemplate="%{y:.2f} s",
        )
    figure.update_layout(barmode="stack", bargap=0.12)
    _mark_stages(figure, history, "rl")
    rows = [[*_place(history, x, body, "rl"), *(_seconds(body, name) for name in phases)] for x, body in points]
    total = sum(sum(body.seconds.values()) for _, body in points)
    words = f"{duration(total)} over {len(points)} steps."
    return Chart(empty.name, empty.title, empty.question, words, figure, ["RL step", "stage", *phases], rows)


def engines_busy(history: History) -> Chart:
    """Where rollouts are, all engines together."""
    lines = [
        Line("engines.in_flight", "in flight", BLUE),
        Line("engines.in_tools", "waiting for a tool", ORANGE),
        Line("engines.queued", "not admitted yet", GREY, "dot"),
    ]
    return _timeline(
        history, "engines", "Rollouts in the engines", "Are the engines full, and what do rollouts wait for?", lines
    )


def engines_cache(history: History) -> Chart:
    """KV caches: used, and what the rollouts in flight are expected to need at their peak."""
    lines = [
        Line("engines.kv_usage.mean", "used, mean", BLUE),
        Line("engines.kv_usage.max", "used, fullest", BLUE, "dot"),
        Line("engines.expected.mean", "expected, mean", TEAL),
        Line("engines.expected.max", "expected, fullest", TEAL, "dot"),
    ]
    question = "Is the KV cache well used, and does what is expected at the peak fit?"
    return _timeline(history, "kv-cache", "KV cache of the engines", question, lines, percent)


def engines_lost(history: History) -> Chart:
    """Work done twice because caches were full; counters of engines, since they started."""
    lines = [
        Line("engines.preemptions", "preemptions", RED),
        Line("engines.reprefilled_tokens", "re-prefilled tokens", ORANGE, "dash"),
    ]
    question = "How much work do full caches cost?"
    return _timeline(history, "lost", "Preemptions and re-prefilled tokens", question, lines, count)


def _timeline(
    history: History, name: str, title: str, question: str, lines: Sequence[Line], show: Format = count
) -> Chart:
    """Figures of the engines over the minutes since the run began."""
    rows = [(moment, shown_values(moment.engines)) for moment in history.engines]
    told = [line for line in lines if any(line.key in values for _, values in rows)]
    if not told:
        return Chart(name, title, question, "Nothing yet: no rollout engine has told of its load.")
    minutes = [(moment.at - (history.started_at or 0.0)) / 60 for moment, _ in rows]
    figure = _figure()
    for line in told:
        figure.add_scatter(
            x=minutes,
            y=[values.get(line.key) for _, values in rows],
            name=line.label,
            mode="lines",
            line={"color": line.colour, "dash": line.dash, "width": 2},
            hovertemplate="%{y:.1%}" if show is percent else "%{y:,.4~g}",
        )
    figure.update_yaxes(rangemode="tozero", tickformat=".0%" if show is percent else "")
    figure.update_xaxes(title={"text": "minutes since the run started", "font": {"size": 12}}, hoverformat=".2f")
    figure.update_layout(legend={"y": -0.36})  # below the title of the axis
    head = ["minute", "step", *(line.label for line in told)]
    table = [
        [f"{at:.2f}", f"{moment.stage} {moment.step}", *(_shown(values.get(line.key), show) for line in told)]
        for at, (moment, values) in zip(minutes, rows, strict=True)
    ]
    words = "; ".join(f"{line.label}: at most {show(_most(rows, line.key))}" for line in told) + "."
    return Chart(name, title, question, words, figure, head, table)


def _most(rows: Sequence[tuple[Moment, Mapping[str, float]]], key: str) -> float:
    return max(values[key] for _, values in rows if key in values)


def _shown(value: float | None, show: Format) -> str:
    return NOTHING if value is None else show(value)


def _seconds(body: StepFinished, phase: str) -> str:
    return f"{body.seconds[phase]:.2f}" if phase in body.seconds else NOTHING


def _lines(
    history: History,
    name: str,
    title: str,
    question: str,
    lines: Sequence[Line],
    show: Format = plain,
    kind: str = "rl",
) -> Chart:
    """Metrics over the steps of one kind of stage. Gaps in a line are values that were not finite."""
    points = list(history.points(kind))
    if not any(line.key in body.metrics for _, body in points for line in lines):
        return _empty(name, title, question, kind)
    figure = _figure()
    for line in lines:
        figure.add_scatter(
            x=[x for x, _ in points],
            y=[body.metrics.get(line.key) for _, body in points],
            name=line.label,
            mode="lines+markers" if len(points) <= 60 else "lines",
            line={"color": line.colour, "dash": line.dash, "width": 2},
            marker={"size": 5},
            hovertemplate="%{y:.1%}" if show is percent else "%{y:.4g}",
        )
    figure.update_yaxes(rangemode="tozero", tickformat=".0%" if show is percent else "")
    figure.update_layout(showlegend=len(lines) > 1)
    _mark_stages(figure, history, kind)
    head, rows = _table(history, lines, show, kind)
    return Chart(name, title, question, _last(points, lines, show), figure, head, rows)


def _empty(name: str, title: str, question: str, kind: str) -> Chart:
    return Chart(name, title, question, f"Nothing yet: no {kind.upper()} step has recorded this.")


def _last(points: Sequence[tuple[int, StepFinished]], lines: Sequence[Line], show: Format) -> str:
    """First and last values in words, and how many were not finite."""
    said = []
    for line in lines:
        values = [value for _, body in points if (value := body.metrics.get(line.key)) is not None]
        broken = sum(line.key in body.non_finite for _, body in points)
        text = f"{line.label}: {show(values[0])} → {show(values[-1])}" if values else f"{line.label}: no value"
        said.append(text + (f" ({broken} not finite, shown as gaps)" if broken else ""))
    return "; ".join(said) + "."


def _table(history: History, lines: Sequence[Line], show: Format, kind: str) -> tuple[list[str], list[list[str]]]:
    rows = [
        [*_place(history, x, body, kind), *(_cell(body, line.key, show) for line in lines)]
        for x, body in history.points(kind)
    ]
    return [f"{kind.upper()} step", "stage", *(line.label for line in lines)], rows


def _place(history: History, x: int, body: StepFinished, kind: str) -> tuple[str, str]:
    return str(x), f"{body.stage} {x - history.offsets(kind)[body.stage]}"


def _cell(body: StepFinished, key: str, show: Format) -> str:
    value = body.metrics.get(key)
    if value is not None:
        return show(value)
    return body.non_finite.get(key, NOTHING).replace("nan", "NaN")


def _figure(hover: str = "x unified") -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        template="none",
        height=_HEIGHT,
        margin={"l": 48, "r": 12, "t": 28, "b": 28},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "inherit", "size": 12, "color": GREY},
        hovermode=hover,
        legend={
            "orientation": "h",
            "x": 0,
            "y": -0.17,
            "yanchor": "top",
            "xanchor": "left",
            "traceorder": "normal",
        },
        showlegend=True,
    )
    axis = {"gridcolor": GREY, "zeroline": False, "automargin": True, "linecolor": GREY}
    figure.update_xaxes(showgrid=False, **axis)
    figure.update_yaxes(**axis)
    return figure


def _mark_stages(figure: go.Figure, history: History, kind: str) -> None:
    """A line where a stage begins and a dotted one where a later attempt went on."""
    offsets = history.offsets(kind)
    for name, offset in offsets.items():
        if history.stages[name].steps:
            _mark(figure, offset + 0.5, name, "solid")
    for resumed in history.resumptions:
        if resumed.stage in offsets:
            _mark(figure, offsets[resumed.stage] + resumed.step - 0.5, f"attempt {resumed.attempt}", "dot")


def _mark(figure: go.Figure, x: float, text: str, dash: str) -> None:
    figure.add_vline(x=x, line={"color": GREY, "width": 1, "dash": dash}, layer="below")
    figure.add_annotation(
        x=x,
        y=1.0,
        yref="paper",
        yanchor="bottom",
        xanchor="left",
        text=text,
        showarrow=False,
        font={"size": 11},
    )


_CHARTS: tuple[Callable[[History], Chart], ...] = (
    reward,
    tool_errors,
    response_length,
    truncated,
    roc_outcomes,
    entropy,
    logprob_gap,
    sft_loss,
    tokens_per_s,
    phase_seconds,
    engines_busy,
    engines_cache,
    engines_lost,
)
