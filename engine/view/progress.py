"""The live terminal view of a run, fed by its events; plain lines where nobody watches a terminal (CI, a
file).

A subscriber of the event log must be quick, so calling the view only queues the event: its own thread draws.
Leaves out folding (``picture.py``) and the past (``report.py``).
"""

import queue
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from engine.contract.events import (
    CommandApplied,
    CommandRejected,
    EvalFinished,
    Event,
    LogLine,
    Phase,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
    SandboxLoad,
    StageStarted,
    StepFinished,
)
from engine.interop.engine_timeline import Engines, shown_values
from engine.view.picture import Picture, StageProgress
from engine.view.wording import NOTHING, Measure, count, counted, duration, mean, percent, plain, say, sparkline

_REFRESH_S = 0.25
_PLAIN_LINES = 25
_MEASURES = {
    "sft": (
        Measure("loss", "loss", plain),
        Measure("grad_norm", "gradient norm", plain),
        Measure("tokens_per_s", "tokens/s", count),
    ),
    "rl": (
        Measure("reward", "reward", plain),
        Measure("tool_error_rate", "tool-error rate", percent),
        Measure("response_tokens", "response length", count),
        Measure("truncated_share", "truncated", percent),
        Measure("tokens_per_s", "tokens/s", count),
    ),
}
_STYLES = {"info": "", "warning": "yellow", "error": "bold red"}


class ViewBroken(Exception):
    """The view's thread ended: the terminal went away, or the view has a fault. Its cause is attached."""


class LiveView:
    """``with LiveView("what is prepared") as view: log.subscribe(view)``. Says something at once."""

    def __init__(self, preparing: str, console: Console | None = None) -> None:
        self._console = console or Console()
        self._preparing = preparing
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="terminal view", daemon=True)

    def __enter__(self) -> Self:
        self._console.print(Text(f"starloom: preparing {self._preparing}"), soft_wrap=True)
        self._thread.start()
        return self

    def __call__(self, event: Event) -> None:
        """Queue one event. Raises ``ViewBroken`` when nothing is shown any more."""
        if self._error is not None:
            raise ViewBroken(f"the terminal view ended: {self._error!r}") from self._error
        self._events.put(event)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Show what is queued and give the terminal back; one that does not take it is not waited for."""
        self._events.put(None)
        self._thread.join(timeout=5)

    def _run(self) -> None:
        try:
            if self._console.is_terminal:
                self._draw()
            else:
                self._print()
        except SystemExit as error:  # Rich's answer to a broken pipe; it would end this thread without a word
            self._error = error.__context__ or error
        except Exception as error:  # handed to the caller by the next call
            self._error = error

    def _print(self) -> None:
        picture = Picture()
        while (event := self._events.get()) is not None:
            picture.apply(event)
            for line in plain_lines(event, picture):
                self._console.print(line, soft_wrap=True)

    def _draw(self) -> None:
        picture = Picture()
        with Live(console=self._console, auto_refresh=False, transient=False) as live:
            running = True
            while running:
                running = self._take_in(picture, live.console)
                live.update(draw(picture, time.time()), refresh=True)

    def _take_in(self, picture: Picture, console: Console) -> bool:
        """Apply what is queued, waiting a little for the first; False when there is nothing more to come."""
        try:
            event = self._events.get(timeout=_REFRESH_S)
            while event is not None:
                picture.apply(event)
                for line in scrolling_lines(event):
                    console.print(line)
                event = self._events.get_nowait()
        except queue.Empty:
            return True
        return False


def scrolling_lines(event: Event) -> Iterator[Text]:
    """What stays on the screen above the live part: said once, worth keeping."""
    match event.body:
        case RunStarted() as body:
            yield Text(f"run {body.run_id} · recipe {body.recipe} · {body.digest[:12]} · attempt {event.attempt}")
            if body.resumed_from:
                yield Text(f"going on from {body.resumed_from}")
            yield from (Text(f"note: {note}", style="italic") for note in body.notes)
        case LogLine() as body:
            yield Text(f"{_clock(event.at)} {body.level}: {body.message}", style=_STYLES[body.level])
        case EvalFinished() as body:
            yield Text(f"[{body.stage}] {_eval_line(body)}", style="bold")
        case CommandApplied() as body:
            yield Text(f"{body.command.kind} applied, asked by {body.command.by}")
        case CommandRejected() as body:
            yield Text(f"{body.command.kind} rejected, asked by {body.command.by}: {body.reason}", style="yellow")
        case RunFinished() as body:
            yield Text(f"finished in {duration(body.seconds)}", style="bold green")
        case RunStopped() as body:
            yield Text(f"stopped: {body.reason}", style="bold yellow")
        case RunFailed() as body:
            yield Text(f"failed: {body.error}: {body.message}", style="bold red")


def plain_lines(event: Event, picture: Picture) -> Iterator[Text]:
    """One line a step and an evaluation, besides what scrolls."""
    match event.body:
        case StageStarted() as body:
            yield Text(f"[{body.stage}] {body.kind}, steps {body.first_step} to {body.steps}")
        case StepFinished() as body:
            stage = picture.stages.get(body.stage)
            if _worth_a_line(body.step, stage):
                yield Text(_step_line(body, stage, event.at))
        case _:
            yield from scrolling_lines(event)


def _worth_a_line(step: int, stage: StageProgress | None) -> bool:
    """Every step of a short stage; of a long one about `_PLAIN_LINES`, and its last."""
    every = max(1, stage.total // _PLAIN_LINES) if stage and stage.total else 1
    return step % every == 0 or step == 1 or (stage is not None and step == stage.total)


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def _step_line(body: StepFinished, stage: StageProgress | None, now: float) -> str:
    kind = stage.kind if stage else "rl"
    parts = [
        f"{measure.label} {say(body.metrics, body.non_finite, measure.key, measure.show)}"
        for measure in _MEASURES.get(kind, _MEASURES["rl"])
    ]
    parts.append(duration(sum(body.seconds.values())))
    remaining = stage.remaining(now) if stage else None
    if remaining is not None:
        parts.append(f"{duration(remaining)} left")
    return f"[{body.stage} {body.step}/{stage.total if stage else '?'}] " + " · ".join(parts)


def _eval_line(body: EvalFinished) -> str:
    def said(key: str) -> str:
        return say(body.metrics, body.non_finite, key, percent)

    return (
        f"pass@1 {said('pass@1')} sampled, {said('pass@1_greedy')} greedy · "
        f"tool-error rate {said('tool_error_rate')} sampled, {said('tool_error_rate_greedy')} greedy · "
        f"{say(body.metrics, body.non_finite, 'problems', count)} problems"
    )


def draw(picture: Picture, now: float) -> RenderableType:
    """The live part: a bar a stage, what goes on, the numbers."""
    parts: list[RenderableType] = []
    if picture.stages:
        parts.append(_bars(picture, now))
    if not picture.over:
        parts.append(_doing(picture))
        if picture.engines is not None and picture.phase == Phase.sampling:
            parts.append(Text(engines_in_words(picture.engines.engines), style="dim"))
    if picture.last_step is not None or picture.last_eval is not None:
        parts.append(_numbers(picture))
    return Group(*parts)


def _bars(picture: Picture, now: float) -> Table:
    table = Table.grid(padding=(0, 1))
    for stage in picture.stages.values():
        style = "bold" if stage is picture.stage and not picture.over else ""
        table.add_row(
            Text(stage.name, style=style),
            Text(stage.kind, style="dim"),
            _bar(stage),
            Text(f"{stage.done}/{stage.total}", justify="right"),
            Text(_or_nothing(stage.elapsed(now)), style="dim"),
            Text(_left(stage, picture, now), style="cyan"),
        )
    return table


def _bar(stage: StageProgress) -> ProgressBar:
    # Named colours: what terminals with few colours make of Rich's own looks unfinished.
    total = max(stage.total, 1)
    bar = ProgressBar(total=total, completed=stage.done, width=24)
    bar.complete_style, bar.finished_style = "cyan", "green"
    return bar


def _or_nothing(seconds: float | None) -> str:
    return "" if seconds is None else duration(seconds)


def _left(stage: StageProgress, picture: Picture, now: float) -> str:
    left = None if picture.paused_by else stage.remaining(now)
    return "" if left is None else f"{duration(left)} left"


def _doing(picture: Picture) -> Text:
    if picture.paused_by:
        return Text(f"paused, asked by {picture.paused_by}; waits for resume or stop", style="bold yellow")
    if picture.phase is None:
        return Text("preparing" if picture.stage is None else f"{picture.stage.name}: preparing", style="cyan")
    name = picture.stage.name if picture.stage else ""
    groups = f" · {picture.groups} groups done" if picture.groups else ""
    return Text(f"{name}: step {picture.phase_step} · {picture.phase}{groups}", style="cyan")


def _numbers(picture: Picture) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("", "last", f"mean of {len(picture.recent) or NOTHING}", "trend"):
        table.add_column(heading, justify="left" if heading in ("", "trend") else "right")
    kind = picture.stage.kind if picture.stage else ""
    for measure in _MEASURES.get(kind, ()) if picture.last_step is not None else ():
        table.add_row(*_measure_row(picture, measure))
    if picture.last_load is not None and picture.last_load.calls:
        table.add_row("tool calls", count(picture.last_load.calls), "", Text(calls_in_words(picture.last_load)))
    if picture.last_eval is not None:
        shown = picture.last_eval
        sampled = say(shown.metrics, shown.non_finite, "pass@1", percent)
        greedy = say(shown.metrics, shown.non_finite, "pass@1_greedy", percent)
        table.add_row("pass@1", sampled, "", f"greedy {greedy}, {shown.stage}")
    return table


def calls_in_words(load: SandboxLoad) -> str:
    """How a batch's calls ended, what they raised most, and how long the slowest took."""
    parts = [counted(load.statuses)]
    if load.errors:
        parts.append(f"raised {counted(load.errors, 3)}")
    if load.wall_p99_s is not None and load.queued_p99_s is not None:
        parts.append(f"p99 {duration(load.wall_p99_s)} after {duration(load.queued_p99_s)} in the queue")
    return " · ".join(parts)


def engines_in_words(engines: Engines) -> str:
    """``2 engines: 14 rollouts in flight, 3 in tools, 5 queued, KV cache 62.0%, fullest 71.0%``."""
    values = shown_values(engines)
    parts = [
        f"{count(values[key])} {name}"
        for key, name in (
            ("engines.in_flight", "rollouts in flight"),
            ("engines.in_tools", "in tools"),
            ("engines.queued", "queued"),
        )
        if key in values
    ]
    if "engines.kv_usage.mean" in values:
        fullest = f", fullest {percent(values['engines.kv_usage.max'])}" if len(engines) > 1 else ""
        parts.append(f"KV cache {percent(values['engines.kv_usage.mean'])}{fullest}")
    return f"{len(engines)} engine{'s' if len(engines) > 1 else ''}: {', '.join(parts) or 'nothing told'}"


def _measure_row(picture: Picture, measure: Measure) -> tuple[str, str, str, str]:
    last = picture.last_step
    values = [value for body in picture.recent if (value := body.metrics.get(measure.key)) is not None]
    average = mean(values)
    return (
        measure.label,
        NOTHING if last is None else say(last.metrics, last.non_finite, measure.key, measure.show),
        NOTHING if average is None else measure.show(average),
        sparkline(values),
    )
