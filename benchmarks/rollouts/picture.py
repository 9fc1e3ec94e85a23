"""The live engines' timeline as a picture: what is in flight, how full the KV cache is, what was preempted.

A column for each way to schedule, a line for each engine; one clock for all. Drawn by Plotly in a Chromium.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import plotly.graph_objects as go
from playwright.sync_api import sync_playwright
from plotly.io import to_html
from plotly.subplots import make_subplots

from benchmarks.rollouts.live_engines import WHOLE_GROUPS
from scripts import browser

ROOT: Final = Path(__file__).resolve().parents[2]
ROWS: Final = {"in_flight": "rollouts in flight", "kv_usage": "share of KV cache", "preemptions": "preemptions"}
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
WIDTH, HEIGHT = 1200, 720


def figure(measured: Mapping[str, Any]) -> Any:
    """Of what ``live_engines.measure`` returned."""
    arms, made = measured["timeline"], measured["rounds"][WHOLE_GROUPS]
    titles = [f"{name}: {made[name]['wall_s'][0]:.1f} s" for name in arms]
    drawn = make_subplots(rows=len(ROWS), cols=len(arms), shared_xaxes="all", shared_yaxes="rows", column_titles=titles)
    for column, load in enumerate(arms.values(), start=1):
        for row, name in enumerate(ROWS, start=1):
            for trace in traces(load, name, legend=row == column == 1):
                drawn.add_trace(trace, row=row, col=column)
    for row, title in enumerate(ROWS.values(), start=1):
        drawn.update_yaxes(title_text=title, rangemode="tozero", row=row, col=1)
    drawn.update_xaxes(title_text="seconds", row=len(ROWS))
    return drawn.update_layout(template="plotly_white", width=WIDTH, height=HEIGHT, legend={"orientation": "h"})


def traces(load: list[dict[str, Any]], name: str, *, legend: bool) -> list[Any]:
    """A line for each engine. Counters begin at 0."""
    lines = []
    for colour, engine in zip(COLOURS, sorted({each["engine"] for each in load}), strict=False):
        points = [each for each in load if each["engine"] == engine and name in each]
        first = points[0][name] if name == "preemptions" and points else 0.0
        lines.append(
            go.Scatter(
                x=[each["at_s"] for each in points],
                y=[each[name] - first for each in points],
                name=engine,
                legendgroup=engine,
                showlegend=legend,
                line={"color": colour},
            )
        )
    return lines


def draw(measured: Mapping[str, Any], path: Path) -> None:
    """Write a PNG. Raises ``scripts.packages.SetupError`` where there is no Chromium."""
    found = browser.find(ROOT)
    page_of = to_html(figure(measured), include_plotlyjs=True, config={"displayModeBar": False})
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found.executable, env=dict(found.environment()))
        page = chromium.new_page(viewport={"width": WIDTH + 20, "height": HEIGHT + 20})
        page.set_content(page_of)
        page.locator(".main-svg").first.wait_for()
        page.locator(".plotly-graph-div").screenshot(path=str(path))
        chromium.close()
