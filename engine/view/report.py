"""One HTML file that tells a whole run and needs nothing but a browser: no server, no network.

Built from the run folder alone (events and trajectory files), so it can be written at any time, also of a run
that failed early. The page's policy allows no request and no script but its own. Leaves out what single parts
show: ``charts.py``, ``transcripts.py``.
"""

import json
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import plotly.offline

from engine.contract.events import EvalFinished
from engine.sink.disk import replace_file
from engine.sink.event_log import TornLine, read_events
from engine.sink.run_folder import RunFolder
from engine.view.charts import Chart, evaluations, training_charts
from engine.view.history import History, StageHistory, fold_history
from engine.view.markup import Html, el, join, table
from engine.view.transcripts import render_transcripts
from engine.view.wording import NOTHING, Format, count, counted, duration, percent, say

_ASSETS = Path(__file__).parent
_MOST_ROWS = 400  # of a chart's table; a longer one is for the event log itself
_BADGES = {"finished": "good", "failed": "bad", "stopped": "warn", "paused": "warn"}


def write_report(run_folder: Path) -> Path:
    """Write ``report.html`` of a run folder and return its path. An earlier report is replaced."""
    folder = RunFolder.open(run_folder)
    torn: list[TornLine] = []
    history = fold_history(read_events(folder, torn.append))
    page = _page(folder, history, [str(line.path.name) + f": {line.bytes} bytes" for line in torn])
    replace_file(folder.report, lambda temporary: _write(temporary, page))
    return folder.report


def _write(path: Path, page: str) -> None:
    path.write_text(page, encoding="utf-8")


def _page(folder: RunFolder, history: History, torn: Sequence[str]) -> str:
    # A fresh nonce that no text of the run can know: even markup that got through would not run.
    nonce = secrets.token_urlsafe(16)
    held_out, charts = evaluations(history), training_charts(history)
    body = join(
        _header(history),
        el(
            "main",
            _tiles(history),
            el("h2", "Evaluations"),
            _evaluations(history, held_out),
            el("h2", "Training"),
            el("div", [_chart(chart) for chart in charts], class_="charts"),
            el("h2", "Tool calls"),
            _tool_calls(history),
            el("h2", "Ten trajectories"),
            render_transcripts(folder, history),
            el("h2", "Details"),
            _details(folder, history, torn),
            _footer(),
        ),
        [_figure_data(chart) for chart in (held_out, *charts)],
        _script(plotly.offline.get_plotlyjs(), nonce),
        _script((_ASSETS / "report.js").read_text(encoding="utf-8"), nonce),
    )
    return "<!doctype html>\n" + el("html", _head(history, nonce), el("body", body), lang="en")


def _head(history: History, nonce: str) -> Html:
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "form-action 'none'; base-uri 'none'"
    )
    style = (_ASSETS / "report.css").read_text(encoding="utf-8")
    return el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("title", f"{_name(history)} · Starloom"),
        el("style", Html(style)),
    )


def _script(text: str, nonce: str) -> Html:
    """A script of ours. The text is a constant of this program or of Plotly, never of a run."""
    return el("script", Html(text), nonce=nonce)


def _figure_data(chart: Chart) -> Html:
    """A figure as inert JSON; ``<`` is escaped so that no text can end the element."""
    if chart.figure is None:
        return Html("")
    plain = json.loads(chart.figure.to_json())
    text = (
        json.dumps(plain, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    )
    return el("script", Html(text), type="application/json", id=f"figure-{chart.name}")


def _name(history: History) -> str:
    return history.run.recipe if history.run else "A run that never started"


def _header(history: History) -> Html:
    outcome = history.outcome
    run = history.run
    facts = {
        "run": run.run_id if run else NOTHING,
        "recipe digest": run.digest[:16] if run else NOTHING,
        "started": _when(history.started_at),
        "last event": _when(history.last_at),
        "working time": duration(history.busy_s),
        "attempts": str(history.attempts),
        "checkpoints": str(history.checkpoints),
    }
    return el(
        "header",
        el("div", "Starloom run report", class_="brand"),
        el(
            "h1",
            _name(history),
            " ",
            el("span", outcome.word, class_=f"badge {_BADGES.get(outcome.word, 'off')}"),
        ),
        el("p", _stages_line(history), class_="lead"),
        el("p", outcome.detail, class_="failure" if outcome.word == "failed" else "note") if outcome.detail else "",
        [el("p", note, class_="note") for note in (run.notes if run else ())],
        [el("p", line, class_="info") for line in _resumed(history)],
        el(
            "dl",
            [el("div", el("dt", name), el("dd", value)) for name, value in facts.items()],
            class_="facts",
        ),
    )


def _when(at: float | None) -> str:
    return NOTHING if at is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def _stages_line(history: History) -> str:
    return " → ".join(_stage_words(stage) for stage in history.stages.values()) or "No stage is known."


def _stage_words(stage: StageHistory) -> str:
    if stage.kind == "eval":
        return stage.name + ("" if stage.evaluation else " (not yet)")
    return f"{stage.name} {stage.last_step}/{stage.planned}"


def _resumed(history: History) -> list[str]:
    return [
        f"Attempt {resumed.attempt} took {resumed.stage} up at step {resumed.step}."
        + (f" {resumed.abandoned} later steps of an earlier attempt do not count." if resumed.abandoned else "")
        for resumed in history.resumptions
    ]


def _tiles(history: History) -> Html:
    """The four numbers that a reader wants first: the last evaluation, and the way there."""
    evaluations = [stage.evaluation for _, stage in history.evaluations() if stage.evaluation]
    if not evaluations:
        return Html("")
    tiles = (
        ("pass@1, sampled", "pass@1", percent),
        ("pass@1, greedy", "pass@1_greedy", percent),
        ("tool-error rate, sampled", "tool_error_rate", percent),
        ("response length, sampled", "response_tokens", count),
    )
    return el("div", [_tile(label, key, show, evaluations) for label, key, show in tiles], class_="tiles")


def _tile(label: str, key: str, show: Format, evaluations: Sequence[EvalFinished]) -> Html:
    said = [say(result.metrics, result.non_finite, key, show) for result in evaluations]
    way = said if len(said) <= 4 else [said[0], "…", *said[-2:]]
    change = " → ".join(way) if len(said) > 1 else f"in {evaluations[-1].stage}"
    return el(
        "div",
        el("div", label, class_="label"),
        el("div", said[-1], class_="value"),
        el("div", change, class_="change"),
        class_="tile",
    )


# Heading, then (sampled or greedy, metric), then how a value is said.
_EVAL_COLUMNS: tuple[tuple[str, tuple[tuple[str, str], ...], Format], ...] = (
    ("pass@1", (("sampled", "pass@1"), ("greedy", "pass@1_greedy")), percent),
    ("tool-error rate", (("sampled", "tool_error_rate"), ("greedy", "tool_error_rate_greedy")), percent),
    ("response length", (("sampled", "response_tokens"), ("greedy", "response_tokens_greedy")), count),
    ("truncated", (("sampled", "truncated_share"),), percent),
    ("size", (("problems", "problems"), ("samples each", "samples")), count),
)


def _evaluations(history: History, chart: Chart) -> Html:
    found = history.evaluations()
    if not found:
        return el("p", "No evaluation has finished yet.", class_="empty")
    groups = [el("th", "after", scope="col", rowspan="2")]
    groups += [el("th", label, scope="colgroup", colspan=str(len(keys))) for label, keys, _ in _EVAL_COLUMNS]
    kinds = [el("th", kind, scope="col") for _, keys, _ in _EVAL_COLUMNS for kind, _ in keys]
    head = el("thead", el("tr", groups), el("tr", kinds))
    rows = [_evaluation_row(trained, stage.evaluation) for trained, stage in found if stage.evaluation]
    shown = el("div", el("table", head, el("tbody", rows), class_="evals"), class_="scroll card")
    return join(shown, el("div", _chart(chart), class_="wide"))


def _evaluation_row(trained: str, result: EvalFinished) -> Html:
    cells = [
        el("td", _value(result, key, show), data_label=f"{label}, {kind}")
        for label, keys, show in _EVAL_COLUMNS
        for kind, key in keys
    ]
    name = join(trained or "before training", el("span", f" · {result.stage}", class_="tokens"))
    return el("tr", el("th", name, scope="row"), cells)


def _value(result: EvalFinished, key: str, show: Format) -> str:
    text = say(result.metrics, result.non_finite, key, show)
    error = result.metrics.get("pass@1_stderr") if key == "pass@1" else None
    return text if error is None else f"{text} ± {percent(error)}"


def _tool_calls(history: History) -> Html:
    """How the calls of each stage ended; those that could not be parsed are none."""
    rows = [_calls_row(stage) for stage in history.stages.values() if stage.loads]
    if not rows:
        return el("p", "No rollout batch has called a tool yet.", class_="empty")
    head = ("stage", "calls", "by status", "most frequent exceptions", "by tool", "slowest p99 of a step")
    return el("div", table(head, rows), class_="card")


def _calls_row(stage: StageHistory) -> list[str]:
    loads = stage.loads.values()
    statuses, errors, tools = (Counter[str]() for _ in range(3))
    for load in loads:
        statuses.update(load.statuses)
        errors.update(load.errors)
        tools.update(load.tools)
    slowest = max((load.wall_p99_s for load in loads if load.wall_p99_s is not None), default=None)
    return [
        stage.name,
        count(sum(load.calls for load in loads)),
        counted(statuses),
        counted(errors, 5) or NOTHING,
        counted(tools) or NOTHING,
        NOTHING if slowest is None else duration(slowest),
    ]


def _chart(chart: Chart) -> Html:
    heading = el("h3", chart.title, id=f"title-{chart.name}")
    question = el("p", chart.question, class_="question")
    if chart.figure is None:
        return el("section", heading, question, el("p", chart.words, class_="empty"), class_="card chart")
    cut = f" (last {_MOST_ROWS} of {len(chart.rows)})" if len(chart.rows) > _MOST_ROWS else ""
    return el(
        "section",
        heading,
        question,
        el(
            "div",
            el("noscript", "The figure needs JavaScript; its numbers are in the table below."),
            class_="figure",
            role="img",
            aria_labelledby=f"title-{chart.name}",
            data_figure=f"figure-{chart.name}",
        ),
        el("p", chart.words, class_="words"),
        el("details", el("summary", "As a table", cut), table(chart.head, chart.rows[-_MOST_ROWS:])),
        class_="card chart",
    )


def _details(folder: RunFolder, history: History, torn: Sequence[str]) -> Html:
    recipe = folder.recipe_toml if folder.recipe_toml.is_file() else folder.job_json
    warnings = [el("li", f"{line.level}: {line.message}") for line in history.warnings]
    return join(
        el(
            "details",
            el("summary", f"The recipe ({recipe.name})"),
            el("pre", recipe.read_text(encoding="utf-8", errors="replace")),
            class_="card fold",
        ),
        el(
            "details",
            el("summary", f"Warnings and errors in the log: {len(warnings)}"),
            el("ul", warnings, class_="log"),
            class_="card fold",
        )
        if warnings
        else el("p", "The log has no warning.", class_="lead"),
        [el("p", f"A crash left a torn last line, {line}; it was no event.", class_="note") for line in torn],
    )


def _footer() -> Html:
    return el(
        "footer",
        "Tool errors are counted by the status of a call, never by words in its text. "
        "A reward of 0 includes rollouts that were cut. ",
        el("code", "python -m engine report DIR"),
        " makes this file again from the run folder.",
    )
