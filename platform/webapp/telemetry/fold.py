"""What each event makes of a run: one small function per type, in memory; ``bulk.py`` writes the rows.

Events of one attempt come in their order, attempts may come in any: what an attempt tells only counts for the run,
for a stage or for a chart as long as no later attempt has told otherwise. So the rows are the same whether a run was
followed live or is rebuilt from its folder. Leaves out the order of events (``ingest.py``) and states (``services``).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

from engine.contract.commands import CommandKind
from engine.contract.events import (
    CheckpointSaved,
    CommandApplied,
    CommandRejected,
    EngineLoad,
    EvalFinished,
    Event,
    GroupFinished,
    LogLine,
    PhaseStarted,
    RunFailed,
    RunFinished,
    RunHeartbeat,
    RunStarted,
    RunStopped,
    SandboxLoad,
    StageFinished,
    StageStarted,
    StepFinished,
)
from webapp.runs import services
from webapp.runs.models import Attempt, Run, StageRun
from webapp.runs.states import State
from webapp.telemetry.door import Unacceptable

Values = Mapping[str, float | None]


class Point(NamedTuple):
    """One value for a chart."""

    stage: StageRun
    step: int
    key: str
    value: float | None
    non_finite: str
    at: datetime


class Superseding(NamedTuple):
    """From ``step`` on, what earlier attempts told of ``stage`` does not count any more."""

    stage: StageRun
    step: int


@dataclass(slots=True)
class Fold:
    """A run in the making: its locked row, what belongs to it, and the rows that a batch of one attempt adds."""

    run: Run
    attempt: Attempt
    attempts: Mapping[int, Attempt]
    stages: Mapping[str, StageRun]
    points: list[Point] = field(default_factory=list)
    groups: dict[str, GroupFinished] = field(default_factory=dict)
    log: list[tuple[Event, LogLine]] = field(default_factory=list)
    engine_loads: list[tuple[Event, EngineLoad]] = field(default_factory=list)
    checkpoints: list[tuple[datetime, CheckpointSaved]] = field(default_factory=list)
    superseding: list[Superseding] = field(default_factory=list)
    touched: set[str] = field(default_factory=set)
    """Names of the stages to be saved."""

    @classmethod
    def of(cls, run: Run, number: int) -> Self:
        """Of a locked run, for a batch of attempt ``number``, which may be new."""
        attempts = {attempt.number: attempt for attempt in run.attempts.all()}
        attempt = attempts.setdefault(number, Attempt(run=run, number=number))
        return cls(run, attempt, attempts, {stage.name: stage for stage in run.stages.all()})

    @property
    def revision(self) -> int:
        """Of every row of this batch: what ``services.save_change`` makes it."""
        return self.run.revision + 1

    @property
    def leads(self) -> bool:
        """Whether no later attempt has been heard: where the run stands is where this attempt stands."""
        return self.attempt.number == max(self.attempts)

    @property
    def decides(self) -> bool:
        """Whether the run's state follows this attempt; what an earlier launch left to tell is history."""
        return self.leads and self.attempt.number > self.run.past_attempts

    def stage(self, name: str) -> StageRun:
        if name not in self.stages:
            raise Unacceptable({"/stage": f"the run has no stage {name!r:.60}; it has: {', '.join(self.stages)}"})
        return self.stages[name]

    def owns(self, stage: StageRun) -> bool:
        """Whether no later attempt has taken up the stage."""
        return all(a.number <= self.attempt.number or stage.name not in a.starts for a in self.attempts.values())

    def is_past(self, attempt: int, stage: StageRun, step: int) -> bool:
        """Whether a later attempt than ``attempt`` has done that step again, or is about to."""
        return any(
            later.number > attempt and later.starts.get(stage.name, step + 1) <= step
            for later in self.attempts.values()
        )

    def tell(self, event: Event, stage: StageRun, step: int, values: Values, flags: Mapping[str, str]) -> None:
        """Add a point for each value."""
        at = when(event)
        self.points += [Point(stage, step, key, value, flags.get(key, ""), at) for key, value in values.items()]


def x_of(stage: StageRun, step: int) -> int:
    """The step counted over all stages; an evaluation stands where the stage before it ended."""
    return stage.offset + (0 if stage.kind == "eval" else step)


def when(event: Event) -> datetime:
    return datetime.fromtimestamp(event.at, UTC)


_ATTEMPT = re.compile(r"attempts/(\d{1,9})/")


def attempt_of(path: str) -> int:
    """The attempt that made a file of the run folder: an attempt may tell what the one before it had made."""
    found = _ATTEMPT.match(path)
    if found is None:
        raise Unacceptable({"": f"expected a path that starts with attempts/NNNN/ (given: {path!r:.80})"})
    return int(found[1])


@contextmanager
def naming(place: str) -> Iterator[None]:
    """Put ``place`` before the pointers of what is refused in the block."""
    try:
        yield
    except Unacceptable as error:
        raise Unacceptable({place + below: said for below, said in error.faults.items()}) from error


def fold(made: Fold, events: Iterable[tuple[int, Event]]) -> None:
    """Fold events that follow one another, each with its place in the batch; changes everything in ``made``."""
    for place, event in events:
        made.run.attempt = max(made.run.attempt, event.attempt)
        with naming(f"/events/{place}/body"):
            _FOLDS[type(event.body)](made, event, event.body)
        made.attempt.last_seq = event.seq


def run_started(made: Fold, event: Event, body: RunStarted) -> None:
    made.attempt.started_at, made.attempt.resumed_from = when(event), body.resumed_from
    if made.decides:
        made.run.phase = ""
        services.hear_started(made.run, at=when(event))


def run_heartbeat(made: Fold, event: Event, body: RunHeartbeat) -> None:
    """Nothing but that the engine lives, which every batch says."""


def run_stopped(made: Fold, event: Event, body: RunStopped) -> None:
    _end(made, event, State.stopped, body.reason)


def run_finished(made: Fold, event: Event, body: RunFinished) -> None:
    _end(made, event, State.finished, "")


def run_failed(made: Fold, event: Event, body: RunFailed) -> None:
    _end(made, event, State.failed, f"{body.error}: {body.message}")


def _end(made: Fold, event: Event, outcome: State, message: str) -> None:
    made.attempt.outcome, made.attempt.message, made.attempt.ended_at = outcome, message, when(event)
    if made.decides:
        services.hear(made.run, outcome, at=when(event), reason=message)


def stage_started(made: Fold, event: Event, body: StageStarted) -> None:
    """Whatever earlier attempts told of these steps is superseded."""
    stage = made.stage(body.stage)
    made.attempt.starts[stage.name] = min(body.first_step, made.attempt.starts.get(stage.name, body.first_step))
    made.attempt.stage, made.attempt.step = stage.name, max(0, body.first_step - 1)
    made.superseding.append(Superseding(stage, body.first_step))
    stage.started_at = min(stage.started_at or when(event), when(event))
    made.touched.add(stage.name)
    if made.owns(stage):
        stage.finished_at, stage.trained_steps, stage.metrics = None, made.attempt.step, {}
    _stand(made, stage)


def _stand(made: Fold, stage: StageRun) -> None:
    """Where the attempt stands is where the run stands."""
    if made.leads:
        made.run.stage, made.run.step = stage.name, made.attempt.step
        made.run.x = x_of(stage, made.attempt.step)


def stage_finished(made: Fold, event: Event, body: StageFinished) -> None:
    stage = made.stage(body.stage)
    if made.owns(stage):
        stage.finished_at = when(event)
        made.touched.add(stage.name)


def phase_started(made: Fold, event: Event, body: PhaseStarted) -> None:
    if made.leads:
        made.run.phase = body.phase


def step_finished(made: Fold, event: Event, body: StepFinished) -> None:
    stage = made.stage(body.stage)
    made.tell(event, stage, body.step, body.metrics, body.non_finite)
    made.tell(event, stage, body.step, {f"seconds.{phase}": value for phase, value in body.seconds.items()}, {})
    if made.owns(stage):
        stage.trained_steps = max(stage.trained_steps, body.step)
        made.touched.add(stage.name)
    if not _is_late(made, stage, body.step):
        made.attempt.stage, made.attempt.step = stage.name, body.step
        _stand(made, stage)
        _show(made, body.metrics)


def _is_late(made: Fold, stage: StageRun, step: int) -> bool:
    """A step from before where the attempt stands is shown, and moves nothing."""
    if not made.attempt.stage:
        return False
    return (stage.position, step) < (made.stage(made.attempt.stage).position, made.attempt.step)


def _show(made: Fold, values: Values) -> None:
    if made.leads:
        made.run.latest = {**made.run.latest, **values}


def eval_finished(made: Fold, event: Event, body: EvalFinished) -> None:
    stage = made.stage(body.stage)
    values = {eval_key(name): value for name, value in body.metrics.items()}
    made.tell(event, stage, 1, values, {eval_key(name): flag for name, flag in body.non_finite.items()})
    if made.owns(stage):
        stage.metrics = dict(body.metrics)
        made.touched.add(stage.name)
    _show(made, values)


def eval_key(name: str) -> str:
    """An evaluation's figure as a series: what training steps tell under the same name is another figure."""
    return name if name.startswith("pass@") else f"eval.{name}"


def group_finished(made: Fold, event: Event, body: GroupFinished) -> None:
    made.stage(body.stage)
    made.groups[body.group] = body


def checkpoint_saved(made: Fold, event: Event, body: CheckpointSaved) -> None:
    made.stage(body.stage)
    with naming("/path"):
        attempt_of(body.path)
    made.checkpoints.append((when(event), body))


def sandbox_load(made: Fold, event: Event, body: SandboxLoad) -> None:
    figures = {
        "calls": body.calls,
        "queued_s": body.queued_s,
        "queued_p99_s": body.queued_p99_s,
        "wall_s": body.wall_s,
        "wall_p99_s": body.wall_p99_s,
        "queued": body.queued,
        **{f"status.{status}": count for status, count in body.statuses.items()},
    }
    values = {f"sandbox.{name}": float(value) for name, value in figures.items() if value is not None}
    made.tell(event, made.stage(body.stage), body.step, values, {})


def engine_load(made: Fold, event: Event, body: EngineLoad) -> None:
    made.stage(body.stage)
    made.engine_loads.append((event, body))


def log_line(made: Fold, event: Event, body: LogLine) -> None:
    made.log.append((event, body))


# What an applied command makes of the state; a stop is told by `run.stopped`.
_APPLIED = {CommandKind.pause: State.paused, CommandKind.resume: State.running}


def command_applied(made: Fold, event: Event, body: CommandApplied) -> None:
    command = body.command
    services.answer_command(made.run, command.id, applied=True)
    if made.decides and command.kind in _APPLIED:
        services.hear(made.run, _APPLIED[command.kind], at=when(event), reason=f"asked by {command.by}")


def command_rejected(made: Fold, event: Event, body: CommandRejected) -> None:
    services.answer_command(made.run, body.command.id, applied=False, note=body.reason)


_FOLDS: dict[type, Callable[[Fold, Event, Any], None]] = {
    RunStarted: run_started,
    RunHeartbeat: run_heartbeat,
    RunStopped: run_stopped,
    RunFinished: run_finished,
    RunFailed: run_failed,
    StageStarted: stage_started,
    StageFinished: stage_finished,
    PhaseStarted: phase_started,
    StepFinished: step_finished,
    EvalFinished: eval_finished,
    GroupFinished: group_finished,
    CheckpointSaved: checkpoint_saved,
    SandboxLoad: sandbox_load,
    EngineLoad: engine_load,
    LogLine: log_line,
    CommandApplied: command_applied,
    CommandRejected: command_rejected,
}
