"""A comparison as one HTML file that needs nothing but a browser.

How long every rule takes, what the default of ``growth`` costs and gains against its other settings, and what engines
do over a batch. Leaves out numbers in full: ``python -m engine simulate --json``.
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots

from engine.contract.resources import GrowthScheduler
from engine.simulate.compare import ARMS, GROWTH, Comparison, Job, Scenario, as_dict, run, typical
from engine.sink.disk import replace_file

_COLOURS: Final = dict(
    zip((arm.name for arm in ARMS), ("#8b93a1", "#e8890c", "#9a5be0", "#12a594", "#3d7ff0"), strict=True)
)
_POLICY: Final = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:\">"
)
"""The page asks the network for nothing."""

_STYLE: Final = "body{font:16px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}"


def write_report(path: Path, comparison: Comparison) -> None:
    """Write the page. An earlier one is replaced whole."""
    page = _page(comparison)
    replace_file(path, lambda temporary: temporary.write_text(page, encoding="utf-8"))


def _page(comparison: Comparison) -> str:
    shown = comparison.scenarios[len(comparison.scenarios) // 2]
    figures = {
        "How long does a batch take?": makespans(comparison),
        "What does a setting of growth gain, and what does it compute again?": frontiers(comparison),
        f"What do engines do meanwhile? {shown.name}, seed {shown.first_seed}": timelines(comparison, shown),
    }
    parts = [f"<h2>{escape(title)}</h2>{_html(figure)}" for title, figure in figures.items()]
    musts = "".join(
        f"<li>{escape(must['name'])}: {must['value']:.3f}, must be {escape(must['must'])}: "
        f"{'reached' if must['reached'] else 'not reached'}</li>"
        for must in as_dict(comparison)["musts"]
    )
    head = f'<meta charset="utf-8">{_POLICY}<title>Scheduling rules · Starloom</title><style>{_STYLE}</style>'
    seeds = f"<p>Batches of each scenario: {comparison.seeds}; medians where there are more.</p>"
    body = f"<h1>Scheduling rules</h1>{seeds}<ul>{musts}</ul>{''.join(parts)}"
    script = f"<script>{get_plotlyjs()}</script>"
    return f'<!doctype html><html lang="en"><head>{head}{script}</head><body>{body}</body></html>\n'


def _html(figure: go.Figure) -> str:
    html: str = figure.to_html(full_html=False, include_plotlyjs=False)
    return html


def makespans(comparison: Comparison) -> go.Figure:
    """Bars: seconds by scenario and rule."""
    figure = go.Figure()
    names = [scenario.name for scenario in comparison.scenarios]
    for arm in ARMS:
        seconds = [typical(comparison.figures[scenario, arm.name]).makespan_s for scenario in comparison.scenarios]
        figure.add_bar(x=names, y=seconds, name=arm.name, marker_color=_COLOURS[arm.name])
    return figure.update_layout(barmode="group", yaxis_title="makespan, s", height=450)


def frontiers(comparison: Comparison) -> go.Figure:
    """Recomputed share against makespan: a panel a scenario, growth at each chance as a line, the default marked."""
    scenarios = comparison.scenarios
    figure = make_subplots(-(-len(scenarios) // 2), 2, subplot_titles=[scenario.name for scenario in scenarios])
    for number, scenario in enumerate(scenarios):
        for trace in _frontier(comparison, scenario):
            trace.showlegend = number == 0
            figure.add_trace(trace, row=number // 2 + 1, col=number % 2 + 1)
    figure.update_xaxes(title_text="makespan, s").update_yaxes(
        title_text="recomputed", tickformat=".1%", rangemode="nonnegative"
    )
    return figure.update_layout(height=330 * (-(-len(scenarios) // 2)))


def _frontier(comparison: Comparison, scenario: Scenario) -> Sequence[go.Scatter]:
    swept = {chance: figures for (of, chance), figures in comparison.frontier.items() if of == scenario}
    line = go.Scatter(
        x=[figures.makespan_s for figures in swept.values()],
        y=[figures.recomputed_share for figures in swept.values()],
        text=[f"chance {chance:g}" for chance in swept],
        mode="lines+markers",
        name="growth, chance swept",
        line_color=_COLOURS[GROWTH.name],
    )
    points = [
        go.Scatter(
            x=[one.makespan_s],
            y=[one.recomputed_share],
            mode="markers",
            name=f"growth, default {GrowthScheduler().preemption_chance:g}" if arm is GROWTH else arm.name,
            marker={"color": _COLOURS[arm.name], "size": 13, "symbol": "star" if arm is GROWTH else "circle"},
        )
        for arm in ARMS
        if not arm.barrier
        for one in [comparison.figures[scenario, arm.name][0]]
    ]
    return [line, *points]


def timelines(comparison: Comparison, scenario: Scenario) -> go.Figure:
    """In flight and KV use over time, summed and averaged over engines, of each rule."""
    figure = make_subplots(2, 1, shared_xaxes=True, subplot_titles=("rollouts in flight", "KV use"))
    for arm in ARMS:
        best = comparison.sweeps[scenario, arm.name].best
        outcome = run(Job(scenario, arm, scenario.first_seed, best), timeline=True)
        moments: dict[float, list[tuple[int, float]]] = {}
        for moment in outcome.timeline:
            moments.setdefault(moment.at_s, []).append((moment.in_flight, moment.kv_usage))
        at_s = list(moments)
        in_flight = [sum(count for count, _ in each) for each in moments.values()]
        usage = [sum(use for _, use in each) / len(each) for each in moments.values()]
        line = {"color": _COLOURS[arm.name]}
        figure.add_scatter(x=at_s, y=in_flight, name=arm.name, line=line, row=1, col=1)
        figure.add_scatter(x=at_s, y=usage, name=arm.name, line=line, showlegend=False, row=2, col=1)
    figure.update_xaxes(title_text="s", row=2, col=1).update_yaxes(tickformat=".0%", rangemode="tozero", row=2, col=1)
    return figure.update_layout(height=600)
