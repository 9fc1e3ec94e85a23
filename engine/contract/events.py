"""What a run says of itself: one append-only stream, numbered densely by (attempt, seq).

The event log in the run folder is the truth; everything shown anywhere is folded from it. ``fold`` here is
that folding for steps: a later attempt's step replaces an earlier one of the same number. Leaves out writing
and reading files: ``engine.sink``.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, FiniteFloat, TypeAdapter, model_validator

from engine.contract.base import Strict, split_non_finite, visible
from engine.contract.commands import Command

# Text from a model, a program or an exception: a lone surrogate in it must not be what a failure report fails
# on.
Text = Annotated[str, BeforeValidator(lambda value: visible(value) if isinstance(value, str) else value)]


class Phase(StrEnum):
    """What a stage is busy with."""

    preparing = "preparing"
    sampling = "sampling"
    scoring = "scoring"
    downsampling = "downsampling"
    update = "update"
    checkpoint = "checkpoint"
    push = "push"


class Measured(Strict):
    """A body with metrics: non-finite numbers become None and are flagged by name in ``non_finite``."""

    metrics: Mapping[str, FiniteFloat | None] = Field(default_factory=dict)
    non_finite: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _flag(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not data.get("metrics"):
            return data
        try:
            finite, flags = split_non_finite(data["metrics"])
            return {**data, "metrics": finite, "non_finite": {**data.get("non_finite", {}), **flags}}
        except (AttributeError, TypeError, OverflowError):
            return data  # no numbers by name: the fields say what is wrong


class StagePlan(Strict):
    """A stage as announced when the run starts."""

    name: str
    kind: str
    steps: int = Field(description="Steps planned; for `eval` the number of problems.")


class RunStarted(Strict):
    type: Literal["run.started"] = "run.started"
    run_id: str
    recipe: str
    digest: str = Field(description="SHA-256 of the resolved recipe.")
    stages: tuple[StagePlan, ...]
    resumed_from: str | None = Field(default=None, description="Checkpoint that this attempt goes on from.")
    notes: tuple[str, ...] = Field(default=(), description="What a reader of the results must know.")


class RunStopped(Strict):
    type: Literal["run.stopped"] = "run.stopped"
    reason: Text


class RunHeartbeat(Strict):
    type: Literal["run.heartbeat"] = "run.heartbeat"


class RunFinished(Strict):
    type: Literal["run.finished"] = "run.finished"
    seconds: FiniteFloat = Field(description="Wall time of this attempt.")


class RunFailed(Strict):
    type: Literal["run.failed"] = "run.failed"
    error: str = Field(description="Exception type.")
    message: Text


class StageStarted(Strict):
    type: Literal["stage.started"] = "stage.started"
    stage: str
    kind: str
    steps: int
    first_step: int = Field(description="First step that this attempt does.")


class StageFinished(Strict):
    type: Literal["stage.finished"] = "stage.finished"
    stage: str
    steps: int


class PhaseStarted(Strict):
    type: Literal["phase.started"] = "phase.started"
    stage: str
    step: int
    phase: Phase


class GroupFinished(Strict):
    """All rollouts of one problem in one step, after down-sampling."""

    type: Literal["group.finished"] = "group.finished"
    stage: str
    step: int
    group: str
    problem_id: Text
    rollouts: int
    left_out: int = Field(description="Rollouts that our own failure spoiled, after retries.")
    right: int
    kept: int
    outcome: str = Field(description="`kept`, `all_right`, `all_wrong`, `roc_emptied`, or `evaluated`.")
    tool_calls: int
    tool_errors: int


class StepFinished(Measured):
    """One step is done and durable."""

    type: Literal["step.finished"] = "step.finished"
    stage: str
    step: int
    trajectories: str | None = Field(default=None, description="File of the step's trajectories, in the run folder.")
    seconds: dict[str, FiniteFloat] = Field(default_factory=dict, description="Wall time by phase.")


class EvalFinished(Measured):
    type: Literal["eval.finished"] = "eval.finished"
    stage: str
    trajectories: str | None = None


class CheckpointSaved(Strict):
    type: Literal["checkpoint.saved"] = "checkpoint.saved"
    stage: str
    step: int
    path: str


class NodeLoad(Strict):
    """A sandbox node at the end of a rollout batch."""

    name: str
    tier: str = Field(description="Isolation of its programs: `full`, `container` or `none`.")
    slots: int
    busy: int = Field(description="Programs that ran.")
    sessions: int = Field(description="Sessions that held variables.")


class SandboxLoad(Strict):
    """What the tool calls of a rollout batch came to; calls that could not be parsed are none."""

    type: Literal["sandbox.load"] = "sandbox.load"
    stage: str
    step: int
    calls: int
    statuses: dict[str, int]
    queued_s: FiniteFloat = Field(description="Mean seconds a call waited for a slot.")
    wall_s: FiniteFloat = Field(description="Mean seconds a call ran.")
    queued_p99_s: FiniteFloat | None = Field(default=None, description="99 of 100 calls waited no longer, seconds.")
    wall_p99_s: FiniteFloat | None = Field(default=None, description="99 of 100 calls ran no longer, seconds.")
    tools: dict[str, int] = Field(default_factory=dict, description="Tool -> calls.")
    errors: dict[Text, int] = Field(
        default_factory=dict, description="Exception type -> calls that ended with it, the 20 most frequent."
    )
    queued: int | None = Field(default=None, description="Calls of all clients that no node had taken at the end.")
    nodes: tuple[NodeLoad, ...] = Field(default=(), description="The sandbox's nodes at the end.")


class EngineLoad(Measured):
    type: Literal["engine.load"] = "engine.load"
    stage: str
    step: int
    engine: str


class LogLine(Strict):
    type: Literal["log.line"] = "log.line"
    level: Literal["info", "warning", "error"] = "info"
    message: Text


class CommandApplied(Strict):
    """The wish of a command is done: it is applied when everything finished before it is durable."""

    type: Literal["command.applied"] = "command.applied"
    command: Command


class CommandRejected(Strict):
    """A command that means nothing now, such as `resume` for a run that is not paused."""

    type: Literal["command.rejected"] = "command.rejected"
    command: Command
    reason: str


Body = Annotated[
    RunStarted
    | RunStopped
    | RunHeartbeat
    | RunFinished
    | RunFailed
    | StageStarted
    | StageFinished
    | PhaseStarted
    | GroupFinished
    | StepFinished
    | EvalFinished
    | CheckpointSaved
    | SandboxLoad
    | EngineLoad
    | LogLine
    | CommandApplied
    | CommandRejected,
    Field(discriminator="type"),
]


class Event(Strict):
    """One line of the log."""

    attempt: int = Field(ge=1)
    seq: int = Field(ge=1, description="Dense within the attempt, from 1.")
    at: float = Field(description="Unix time, seconds.")
    body: Body

    @classmethod
    def from_json(cls, line: str | bytes) -> Self:
        return cls.model_validate_json(line)


body_adapter: TypeAdapter[Body] = TypeAdapter(Body)


def fold_steps(events: Iterable[Event]) -> dict[tuple[str, int], StepFinished]:
    """Finished steps by (stage, step); of two attempts at the same step the later one stands."""
    ordered = sorted(events, key=lambda event: (event.attempt, event.seq))
    return {(e.body.stage, e.body.step): e.body for e in ordered if isinstance(e.body, StepFinished)}
