"""The terminal view: says something at once, never holds the run up, readable without a terminal."""

import io
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from engine.contract.commands import Command, CommandKind
from engine.contract.events import (
    Body,
    CommandApplied,
    CommandRejected,
    EngineLoad,
    EvalFinished,
    Event,
    GroupFinished,
    LogLine,
    Phase,
    PhaseStarted,
    RunFailed,
    RunHeartbeat,
    RunStarted,
    SandboxLoad,
    StageFinished,
    StagePlan,
    StageStarted,
    StepFinished,
)
from engine.view.picture import Picture
from engine.view.progress import LiveView, ViewBroken, draw
from engine.view.wording import NOTHING

STARTED = RunStarted(
    run_id="run-1",
    recipe="laptop",
    digest="ab" * 32,
    stages=(StagePlan(name="rl-1", kind="rl", steps=10), StagePlan(name="eval-1", kind="eval", steps=4)),
)
RL = StageStarted(stage="rl-1", kind="rl", steps=10, first_step=1)


def events(*bodies: Body, every: float = 10.0) -> Iterator[Event]:
    for number, body in enumerate(bodies, start=1):
        yield Event(attempt=1, seq=number, at=1000 + every * number, body=body)


def step(number: int, **metrics: float) -> StepFinished:
    return StepFinished(stage="rl-1", step=number, metrics=metrics, seconds={"sampling": 3.0, "update": 1.0})


def picture(*bodies: Body) -> Picture:
    folded = Picture()
    for event in events(*bodies):
        folded.apply(event)
    return folded


def drawn(folded: Picture, now: float = 1100.0) -> str:
    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(draw(folded, now))
    return console.export_text()


def plain(*bodies: Body) -> str:
    stream = io.StringIO()
    with LiveView("laptop", Console(file=stream, width=40)) as view:
        for event in events(*bodies):
            view(event)
    return stream.getvalue()


def test_the_first_word_comes_before_any_event() -> None:
    stream = io.StringIO()
    with LiveView("laptop in run/", Console(file=stream)):
        assert "preparing laptop in run/" in stream.getvalue()


def test_without_a_terminal_every_step_is_one_plain_line() -> None:
    text = plain(STARTED, RL, step(1, reward=0.5, tool_error_rate=0.25), step(2, reward=float("nan")))
    lines = [line for line in text.splitlines() if line.startswith("[rl-1 ")]
    assert lines[0].startswith("[rl-1 1/10] reward 0.5 · tool-error rate 25.0% · response length ")
    assert f"truncated {NOTHING}" in lines[0]
    assert "reward NaN" in lines[1]
    assert lines[1].endswith("4.0 s · 1 min 20 s left")
    assert "\x1b" not in text


def test_an_evaluation_is_one_plain_line() -> None:
    metrics = {"pass@1": 0.5, "pass@1_greedy": 0.75, "tool_error_rate": 0.1, "problems": 4.0}
    line = plain(STARTED, EvalFinished(stage="eval-1", metrics=metrics)).splitlines()[-1]
    sampled, greedy = line.split("tool-error rate")
    assert sampled == "[eval-1] pass@1 50.0% sampled, 75.0% greedy · "
    assert greedy == f" 10.0% sampled, {NOTHING} greedy · 4 problems"


def test_text_of_others_is_no_markup() -> None:
    text = plain(LogLine(level="warning", message="[bold]x[/bold] [/oops]"), RunFailed(error="E", message="[red]"))
    assert "warning: [bold]x[/bold] [/oops]" in text
    assert "failed: E: [red]" in text


def test_bar_pace_and_what_goes_on() -> None:
    sampling = PhaseStarted(stage="rl-1", step=3, phase=Phase.sampling)
    text = drawn(picture(STARTED, RL, step(1, reward=0.1), step(2, reward=0.3), sampling), 1050.0)
    assert "2/10" in text
    assert "1 min 10 s left" in text  # 8 steps of 10 s, less the 10 s since the last
    assert "rl-1: step 3 · sampling" in text


def test_last_and_running_numbers() -> None:
    text = drawn(picture(STARTED, RL, step(1, reward=0.1), step(2, reward=0.3)))
    row = next(line for line in text.splitlines() if "reward" in line)
    assert row.split() == ["reward", "0.3", "0.2", "▁█"]


def test_the_last_evaluation_stays_in_sight() -> None:
    folded = picture(STARTED, EvalFinished(stage="eval-1", metrics={"pass@1": 0.5, "pass@1_greedy": float("nan")}))
    row = next(line for line in drawn(folded).splitlines() if "pass@1" in line)
    assert row.split() == ["pass@1", "50.0%", "greedy", "NaN,", "eval-1"]


def test_how_tool_calls_ended_is_in_sight() -> None:
    load = SandboxLoad(
        stage="rl-1",
        step=1,
        calls=9,
        statuses={"error": 3, "ok": 6},
        errors={"A": 1, "NameError": 2},
        queued_s=0.0,
        wall_s=0.1,
        queued_p99_s=0.02,
        wall_p99_s=1.5,
    )
    row = next(line for line in drawn(picture(STARTED, RL, load, step(1))).splitlines() if "tool calls" in line)
    assert (
        row.split("9", 1)[1].strip() == "ok 6, error 3 · raised NameError 2, A 1 · p99 1.5 s after 20 ms in the queue"
    )


def loads(**told: dict[str, float]) -> list[Event]:
    """Engines that were asked together, in the middle of sampling."""
    sampling = PhaseStarted(stage="rl-1", step=3, phase=Phase.sampling)
    bodies = [EngineLoad(stage="rl-1", step=3, engine=name, metrics=metrics) for name, metrics in told.items()]
    begun = list(events(STARTED, RL, sampling))
    return begun + [Event(attempt=1, seq=4 + n, at=1050 + n / 100, body=body) for n, body in enumerate(bodies)]


def test_what_engines_are_at_is_one_line_while_they_sample() -> None:
    folded = Picture()
    one = {"in_flight": 7.0, "in_tools": 2.0, "queued": 5.0}
    for event in loads(a={**one, "kv_usage": 0.5}, b={**one, "kv_usage": 0.75}):
        folded.apply(event)
    line = "2 engines: 14 rollouts in flight, 4 in tools, 5 queued, KV cache 62.5%, fullest 75.0%"
    assert line in drawn(folded)
    folded.apply(Event(attempt=1, seq=9, at=1060, body=PhaseStarted(stage="rl-1", step=3, phase=Phase.update)))
    assert "engines:" not in drawn(folded)


def test_an_engine_that_tells_little_is_shown_as_far_as_it_is_known() -> None:
    folded = Picture()
    for event in loads(a={"kv_usage": 0.5}):
        folded.apply(event)
    assert "1 engine: KV cache 50.0%" in drawn(folded)


def test_calls_of_an_older_engine_are_shown_as_far_as_they_are_known() -> None:
    load = SandboxLoad(stage="rl-1", step=1, calls=1, statuses={"ok": 1}, queued_s=0.0, wall_s=0.1)
    row = next(line for line in drawn(picture(STARTED, RL, load, step(1))).splitlines() if "tool calls" in line)
    assert row.split() == ["tool", "calls", "1", "ok", "1"]


def test_an_evaluation_advances_problem_by_problem() -> None:
    group: dict[str, Any] = {
        "stage": "eval-1",
        "step": 0,
        "problem_id": "p",
        "rollouts": 2,
        "left_out": 0,
        "right": 1,
    }
    group |= {"kept": 0, "outcome": "evaluated", "tool_calls": 1, "tool_errors": 0}
    groups = [GroupFinished(group=f"g{n}", **group) for n in range(3)]
    folded = picture(STARTED, StageStarted(stage="eval-1", kind="eval", steps=4, first_step=1), *groups)
    assert "3/4" in drawn(folded)


def test_a_resumed_attempt_shows_what_was_done_before() -> None:
    plan = STARTED.model_copy(update={"stages": (StagePlan(name="sft", kind="sft", steps=7), *STARTED.stages)})
    text = drawn(picture(plan, StageStarted(stage="rl-1", kind="rl", steps=10, first_step=5)))
    assert "7/7" in text
    assert "4/10" in text


def test_a_finished_stage_has_no_time_left() -> None:
    text = drawn(picture(STARTED, RL, *(step(n) for n in range(1, 11)), StageFinished(stage="rl-1", steps=10)))
    assert "10/10" in text
    assert "left" not in text


def test_nothing_yet_is_drawn_without_a_crash() -> None:
    assert "preparing" in drawn(Picture())


class Stuck(io.StringIO):
    """A terminal that takes nothing (Ctrl-S) until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()
        self.stuck = False

    def write(self, text: str) -> int:
        if self.stuck:
            self.release.wait(10)
        return super().write(text)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_stuck_terminal_does_not_hold_the_run_up(terminal: bool) -> None:
    stream = Stuck()
    with LiveView("laptop", Console(file=stream, force_terminal=terminal)) as view:
        stream.stuck = True
        began = time.monotonic()
        for event in events(STARTED, RL, *(step(n) for n in range(1, 11))):
            view(event)
        assert time.monotonic() - began < 0.5
        stream.release.set()
    assert "laptop" in stream.getvalue()


def test_a_terminal_that_went_away_is_said_to_the_caller() -> None:
    class Gone(io.StringIO):
        gone = False

        def write(self, text: str) -> int:
            if self.gone:
                raise BrokenPipeError("gone")
            return super().write(text)

    stream = Gone()
    with LiveView("laptop", Console(file=stream)) as view:
        stream.gone = True
        first, second = events(STARTED, RL)
        view(first)
        view._thread.join(timeout=5)
        with pytest.raises(ViewBroken, match="gone"):
            view(second)
        stream.gone = False


def test_a_terminal_gets_bars_numbers_and_lines_above() -> None:
    stream = io.StringIO()
    with LiveView("laptop", Console(file=stream, force_terminal=True, width=120)) as view:
        for event in events(STARTED, RL, step(1, reward=0.5), LogLine(level="warning", message="engine 0 is slow")):
            view(event)
    text = stream.getvalue()
    assert "warning: engine 0 is slow" in text
    assert "1/10" in text
    assert "━" in text


PAUSED = CommandApplied(command=Command(kind=CommandKind.pause, by="ada"))
RESUMED = CommandApplied(command=Command(kind=CommandKind.resume, by="ada"))


def test_a_paused_run_says_so_and_guesses_no_time() -> None:
    text = drawn(picture(STARTED, RL, step(1, reward=0.1), PAUSED))
    assert "paused, asked by ada; waits for resume or stop" in text
    assert "left" not in text


def test_a_pause_does_not_count_as_pace() -> None:
    folded = picture(STARTED, RL, step(1), step(2), PAUSED)
    for event in events(*[RunHeartbeat()] * 99, RESUMED, step(3)):
        folded.apply(event)
    assert "paused" not in drawn(folded)
    stage = folded.stages["rl-1"]
    assert list(stage.pace) == [10.0, 10.0, 10.0]


def test_a_rejected_command_is_one_plain_line() -> None:
    rejected = CommandRejected(command=RESUMED.command, reason="the run is not paused")
    assert "resume rejected, asked by ada: the run is not paused" in plain(rejected)
