"""Events: back as they went, valid JSON whatever a run comes up with, folded to what stands."""

import json
import math
from typing import Any

import pytest
from pydantic import ValidationError

from engine.contract.commands import Command, CommandKind
from engine.contract.events import (
    Body,
    CheckpointSaved,
    CommandApplied,
    CommandRejected,
    EngineLoad,
    EvalFinished,
    Event,
    GroupFinished,
    LogLine,
    NodeLoad,
    Phase,
    PhaseStarted,
    RunFailed,
    RunFinished,
    RunHeartbeat,
    RunStarted,
    RunStopped,
    SandboxLoad,
    StageFinished,
    StagePlan,
    StageStarted,
    StepFinished,
    body_adapter,
    fold_steps,
)

PLAN = StagePlan(name="sft", kind="sft", steps=2)
BODIES: tuple[Body, ...] = (
    RunStarted(run_id="r", recipe="laptop", digest="ab", stages=(PLAN,)),
    RunStopped(reason="signal SIGINT"),
    RunHeartbeat(),
    RunFinished(seconds=1.5),
    RunFailed(error="ValueError", message="no"),
    StageStarted(stage="sft", kind="sft", steps=2, first_step=1),
    StageFinished(stage="sft", steps=2),
    PhaseStarted(stage="rl-1", step=1, phase=Phase.downsampling),
    GroupFinished(
        stage="rl-1",
        step=1,
        group="g",
        problem_id="p",
        rollouts=16,
        left_out=1,
        right=3,
        kept=7,
        outcome="kept",
        tool_calls=20,
        tool_errors=2,
    ),
    StepFinished(stage="rl-1", step=1, metrics={"reward": 0.1 + 0.2, "entropy": None}, seconds={"update": 1.25}),
    EvalFinished(stage="eval", metrics={"pass@1": 1.0}),
    CheckpointSaved(stage="rl-1", step=1, path="attempts/0001/checkpoints/rl-1/step-00001"),
    SandboxLoad(stage="rl-1", step=1, calls=3, statuses={"ok": 2, "error": 1}, queued_s=0.0, wall_s=0.02),
    SandboxLoad(
        stage="rl-1",
        step=2,
        calls=1,
        statuses={"error": 1},
        queued_s=0.0,
        wall_s=0.02,
        queued_p99_s=0.0,
        wall_p99_s=0.02,
        tools={"python": 1},
        errors={"NameError": 1},
        queued=0,
        nodes=(NodeLoad(name="n1", tier="full", slots=4, busy=1, sessions=0),),
    ),
    EngineLoad(stage="rl", step=1, engine="0", metrics={"running": 3.0}),
    LogLine(message="hello"),
    CommandApplied(command=Command(kind=CommandKind.stop, by="signal SIGINT")),
    CommandRejected(command=Command(kind=CommandKind.resume, by="ada", id="cmd_1"), reason="the run is not paused"),
)


def event(body: Body, seq: int = 1, attempt: int = 1) -> Event:
    return Event(attempt=attempt, seq=seq, at=1.5, body=body)


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.type)
def test_an_event_comes_back_as_it_went(body: Body) -> None:
    assert Event.from_json(event(body).model_dump_json()) == event(body)


def test_every_kind_of_event_is_tried_above() -> None:
    schemas = body_adapter.json_schema()["$defs"].values()
    kinds = {s["properties"]["type"]["const"] for s in schemas if "type" in s.get("properties", {})}
    assert kinds == {body.type for body in BODIES}


def test_an_unknown_event_lists_the_known_ones() -> None:
    with pytest.raises(ValidationError, match=r"run\.exploded.*'run\.failed'"):
        body_adapter.validate_python({"type": "run.exploded"})


@pytest.mark.parametrize(("value", "flag"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
@pytest.mark.parametrize("kind", [StepFinished, EvalFinished])
def test_a_number_that_is_not_finite_becomes_null_and_a_flag(
    kind: type[StepFinished] | type[EvalFinished], value: float, flag: str
) -> None:
    fields: dict[str, Any] = {"stage": "rl-1", "metrics": {"loss": value, "reward": 0.5}}
    body = kind(**fields, **({"step": 1} if kind is StepFinished else {}))
    stored = strict(event(body).model_dump_json())["body"]
    assert stored["metrics"] == {"loss": None, "reward": 0.5}
    assert stored["non_finite"] == {"loss": flag}
    assert Event.from_json(json.dumps(strict(event(body).model_dump_json()))).body == body


@pytest.mark.parametrize(
    "make",
    [
        lambda bad: StepFinished(stage="s", step=1, seconds={"update": bad}),
        lambda bad: RunFinished(seconds=bad),
        lambda bad: SandboxLoad(stage="s", step=1, calls=0, statuses={}, queued_s=bad, wall_s=0.0),
    ],
)
def test_a_time_that_is_not_finite_is_refused_where_it_is_made(make: Any) -> None:
    # Stored as null it could never be read again.
    with pytest.raises(ValidationError, match="finite number"):
        make(math.nan)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (LogLine(message="a\x00b\ud800"), "message"),
        (RunFailed(error="E", message="a\x00b\ud800"), "message"),
        (RunStopped(reason="a\x00b\ud800"), "reason"),
    ],
)
def test_nul_and_surrogates_are_made_visible(body: Body, field: str) -> None:
    text = event(body).model_dump_json()
    assert strict(text)["body"][field] == "a\\x00b\\ud800"
    text.encode("utf-8")


@pytest.mark.parametrize("change", [{"attempt": 0}, {"seq": 0}, {"extra": 1}])
def test_numbers_start_at_one_and_fields_are_known(change: dict[str, int]) -> None:
    raw = event(RunHeartbeat()).model_dump() | change
    with pytest.raises(ValidationError, match=next(iter(change))):
        Event.model_validate(raw)


def test_of_two_attempts_at_a_step_the_later_one_stands() -> None:
    def step(reward: float, number: int = 3) -> StepFinished:
        return StepFinished(stage="rl-1", step=number, metrics={"reward": reward})

    log = [
        event(step(0.9), 1, attempt=2),
        event(step(0.1), 8),
        event(step(0.5, 2), 7),
        event(RunHeartbeat(), 9),
    ]
    folded = fold_steps(log)
    assert {key: body.metrics["reward"] for key, body in folded.items()} == {
        ("rl-1", 2): 0.5,
        ("rl-1", 3): 0.9,
    }
