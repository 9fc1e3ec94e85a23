"""The fold of a log: what stands, what is abandoned, how the run ended."""

from collections.abc import Callable
from typing import Any

from engine.contract.commands import Command, CommandKind
from engine.contract.events import (
    CommandApplied,
    EngineLoad,
    EvalFinished,
    Event,
    RunFailed,
    RunHeartbeat,
    SandboxLoad,
    StageFinished,
    StageStarted,
    StepFinished,
)
from engine.interop.engine_timeline import MOST_MOMENTS
from engine.sink.event_log import read_events
from engine.view.history import History, fold_history


def step(stage: str, number: int, reward: float = 0.5) -> StepFinished:
    return StepFinished(stage=stage, step=number, metrics={"reward": reward})


def fold(run: Any) -> History:
    return fold_history(read_events(run.folder))


def test_rl_stages_share_one_axis(make_run: Callable[..., Any]) -> None:
    run = make_run()
    run.start()
    for stage, steps in (("rl-1", 3), ("rl-2", 2)):
        run.emit(StageStarted(stage=stage, kind="rl", steps=steps, first_step=1))
        run.emit(*(step(stage, number) for number in range(1, steps + 1)))
    history = fold(run)
    assert [x for x, _ in history.points("rl")] == [1, 2, 3, 4, 5]
    assert history.offsets("rl") == {"rl-1": 0, "rl-2": 3}


def test_steps_after_the_point_of_resumption_are_abandoned(make_run: Callable[..., Any]) -> None:
    run = make_run()
    run.start()
    run.emit(StageStarted(stage="rl-1", kind="rl", steps=9, first_step=1))
    run.emit(*(step("rl-1", number, 0.1) for number in range(1, 7)))
    run.new_attempt("attempts/0001/checkpoints/rl-1/step-00003")
    run.emit(StageStarted(stage="rl-1", kind="rl", steps=9, first_step=4), step("rl-1", 4, 0.9))
    history = fold(run)
    assert [(x, body.metrics["reward"]) for x, body in history.points("rl")] == [
        (1, 0.1),
        (2, 0.1),
        (3, 0.1),
        (4, 0.9),
    ]
    (resumed,) = history.resumptions
    assert (resumed.attempt, resumed.stage, resumed.step, resumed.abandoned) == (2, "rl-1", 4, 3)


def test_tool_calls_of_abandoned_steps_do_not_count(make_run: Callable[..., Any]) -> None:
    run = make_run()
    run.start()
    loads = [
        SandboxLoad(stage="rl-1", step=number, calls=number, statuses={}, queued_s=0.0, wall_s=0.0)
        for number in range(1, 7)
    ]
    run.emit(StageStarted(stage="rl-1", kind="rl", steps=9, first_step=1), *loads)
    run.new_attempt("attempts/0001/checkpoints/rl-1/step-00003")
    run.emit(StageStarted(stage="rl-1", kind="rl", steps=9, first_step=4))
    assert list(fold(run).stages["rl-1"].loads) == [1, 2, 3]


def test_an_evaluation_is_named_by_the_training_before_it(make_run: Callable[..., Any]) -> None:
    run = make_run()
    run.start()
    run.evaluate("eval-0", 0.1, 0.5)
    run.emit(StageStarted(stage="sft", kind="sft", steps=1, first_step=1), step("sft", 1))
    run.emit(StageFinished(stage="sft", steps=1))
    run.evaluate("eval-1", 0.4, 0.3)
    assert [(trained, stage.name) for trained, stage in fold(run).evaluations()] == [
        ("", "eval-0"),
        ("sft", "eval-1"),
    ]


def test_the_last_word_of_the_last_attempt_counts(make_run: Callable[..., Any]) -> None:
    run = make_run()
    assert fold(run).outcome.word == "no event yet"
    run.start()
    run.emit(RunFailed(error="EngineUnavailable", message="engine 0 died"))
    assert fold(run).outcome.detail == "EngineUnavailable: engine 0 died"
    run.new_attempt("x")
    assert fold(run).outcome.word == "unfinished"


def test_events_of_stages_that_nobody_announced_are_kept(make_run: Callable[..., Any]) -> None:
    run = make_run()
    run.emit(step("rl-9", 1), EvalFinished(stage="late", metrics={"pass@1": 0.5}))
    history = fold(run)
    assert list(history.stages) == ["rl-9", "late"]
    assert len(history.evaluations()) == 1


def command(kind: CommandKind) -> CommandApplied:
    return CommandApplied(command=Command(kind=kind, by="ada"))


def test_time_in_a_pause_is_no_working_time() -> None:
    bodies = [RunHeartbeat(), command(CommandKind.pause), RunHeartbeat(), command(CommandKind.resume), RunHeartbeat()]
    told = [Event(attempt=1, seq=n, at=100.0 * n, body=body) for n, body in enumerate(bodies, start=1)]
    assert fold_history(told).busy_s == 200.0
    assert fold_history(told).outcome.word == "unfinished"
    held = fold_history(told[:3])
    assert held.busy_s == 100.0
    assert held.outcome.word == "paused"
    assert "asked by ada" in held.outcome.detail


def test_killed_in_a_pause_the_next_attempt_counts_again() -> None:
    first = [Event(attempt=1, seq=1, at=100.0, body=command(CommandKind.pause))]
    first.append(Event(attempt=1, seq=2, at=400.0, body=RunHeartbeat()))
    second = [Event(attempt=2, seq=n, at=500.0 + 10 * n, body=RunHeartbeat()) for n in (1, 2)]
    history = fold_history([*first, *second])
    assert history.busy_s == 10.0
    assert history.outcome.word == "unfinished"


def test_engines_tell_their_load_over_time_also_of_steps_that_are_done_again() -> None:
    told = [(1, 1, 10.0, "a"), (1, 2, 10.01, "b"), (2, 1, 60.0, "a")]
    events = [
        Event(attempt=attempt, seq=seq, at=at, body=EngineLoad(stage="rl-1", step=1, engine=engine))
        for attempt, seq, at, engine in told
    ]
    moments = fold_history(events).engines
    assert [(moment.attempt, sorted(moment.engines)) for moment in moments] == [(1, ["a", "b"]), (2, ["a"])]


def test_a_week_of_load_is_folded_into_about_a_thousand_moments() -> None:
    load = EngineLoad(stage="rl", step=1, engine="a", metrics={"in_flight": 1.0})
    events = (Event(attempt=1, seq=seq, at=1e9 + 60.0 * seq, body=load) for seq in range(1, 7 * 24 * 60 + 1))
    engines = fold_history(events).engines
    assert MOST_MOMENTS / 2 - 2 <= len(engines) <= MOST_MOMENTS
    assert engines[0].at == 1e9 + 60
