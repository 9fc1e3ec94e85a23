"""A run's whole past, folded from its events: the one thing that charts and tables of the report read.

Of a step done by two attempts the later one stands. When a stage is taken up again at step k, what an earlier
attempt did from k on is abandoned: it led to no weights that anyone has. Leaves out trajectories:
``transcripts.py``.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from engine.contract.commands import CommandKind
from engine.contract.events import (
    CheckpointSaved,
    CommandApplied,
    EngineLoad,
    EvalFinished,
    Event,
    LogLine,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
    SandboxLoad,
    StageFinished,
    StageStarted,
    StepFinished,
)
from engine.interop.engine_timeline import MOST_MOMENTS, Moment, moments, surplus


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the run stands at the end of its log."""

    word: str
    detail: str = ""


GOING_ON = Outcome("unfinished", "the log ends without a last word: the run goes on, or it was killed")


@dataclass(frozen=True, slots=True)
class Resumption:
    """An attempt after the first took a stage up at a step."""

    attempt: int
    stage: str
    step: int
    abandoned: int


@dataclass(slots=True)
class StageHistory:
    """One stage: its steps and their tool calls by number, or its evaluation."""

    name: str
    kind: str
    planned: int
    steps: dict[int, StepFinished] = field(default_factory=dict)
    loads: dict[int, SandboxLoad] = field(default_factory=dict)
    evaluation: EvalFinished | None = None
    started: bool = False
    finished: bool = False

    @property
    def last_step(self) -> int:
        return max(self.steps, default=0)


@dataclass(slots=True)
class History:
    """All stages in order, and what happened to the run."""

    run: RunStarted | None = None
    stages: dict[str, StageHistory] = field(default_factory=dict)
    outcome: Outcome = Outcome("no event yet")
    attempts: int = 0
    started_at: float | None = None
    last_at: float | None = None
    busy_s: float = 0.0
    paused_at: float | None = None
    resumptions: list[Resumption] = field(default_factory=list)
    warnings: list[LogLine] = field(default_factory=list)
    checkpoints: int = 0
    engines: list[Moment] = field(default_factory=list)
    """What the rollout engines told over time, thinned; all attempts, also of steps that were done again."""

    def of_kind(self, kind: str) -> list[StageHistory]:
        return [stage for stage in self.stages.values() if stage.kind == kind]

    def points(self, kind: str) -> Iterator[tuple[int, StepFinished]]:
        """Steps of all stages of a kind on one continuous axis."""
        offset = 0
        for stage in self.of_kind(kind):
            for number in sorted(stage.steps):
                yield offset + number, stage.steps[number]
            offset += stage.last_step

    def offsets(self, kind: str) -> dict[str, int]:
        """Where on the continuous axis each stage of a kind begins (its step 1 is one after)."""
        offsets, total = {}, 0
        for stage in self.of_kind(kind):
            offsets[stage.name] = total
            total += stage.last_step
        return offsets

    def evaluations(self) -> list[tuple[str, StageHistory]]:
        """Finished evaluations in order, each with the stage that was trained last before it (or nothing)."""
        found, trained = [], ""
        for stage in self.stages.values():
            if stage.evaluation is not None:
                found.append((trained, stage))
            elif stage.kind != "eval" and stage.started:
                trained = stage.name
        return found


def fold_history(events: Iterable[Event]) -> History:
    """Take in a whole log. Events come in order, as ``read_events`` gives them."""
    history = History()
    attempt_began = 0.0
    for event in events:
        if event.attempt != history.attempts:
            _end_pause(history, history.last_at or 0.0)
            history.busy_s += (history.last_at or 0.0) - attempt_began
            history.attempts, attempt_began = event.attempt, event.at
            history.outcome = GOING_ON
        history.started_at = event.at if history.started_at is None else history.started_at
        history.last_at = event.at
        _apply(history, event)
    _end_pause(history, history.last_at or 0.0)
    history.busy_s += (history.last_at or 0.0) - attempt_began
    _thin_engines(history)
    return history


def _end_pause(history: History, at: float) -> None:
    """A held run does not work."""
    if history.paused_at is not None:
        history.busy_s -= at - history.paused_at
        history.paused_at = None


def _apply(history: History, event: Event) -> None:
    match event.body:
        case RunStarted() as body:
            history.run = body
            for plan in body.stages:
                history.stages.setdefault(plan.name, StageHistory(plan.name, plan.kind, plan.steps))
        case StageStarted() as body:
            _start(history, body, event.attempt)
        case StepFinished() as body:
            _stage(history, body.stage, "rl").steps[body.step] = body
        case SandboxLoad() as body:
            _stage(history, body.stage, "rl").loads[body.step] = body
        case EngineLoad() as body:
            _engine_load(history, event, body)
        case EvalFinished() as body:
            _stage(history, body.stage, "eval").evaluation = body
        case StageFinished() as body:
            _stage(history, body.stage, "rl").finished = True
        case CheckpointSaved():
            history.checkpoints += 1
        case CommandApplied() as body:
            _command(history, body, event.at)
        case LogLine(level="warning" | "error") as body:
            history.warnings.append(body)
        case RunFinished():
            history.outcome = Outcome("finished")
        case RunStopped() as body:
            history.outcome = Outcome("stopped", body.reason)
        case RunFailed() as body:
            history.outcome = Outcome("failed", f"{body.error}: {body.message}")


def _engine_load(history: History, event: Event, body: EngineLoad) -> None:
    """A week of engines telling their load would not fit into memory: thin it now and then."""
    last = history.engines.pop() if history.engines else None
    found = moments([(event, body)], last)
    history.engines += found if last is None or found[0] is last else [last, *found]
    if len(history.engines) > 2 * MOST_MOMENTS:
        _thin_engines(history)


def _thin_engines(history: History) -> None:
    gone = set(surplus([moment.at for moment in history.engines]))
    history.engines = [moment for place, moment in enumerate(history.engines) if place not in gone]


def _command(history: History, body: CommandApplied, at: float) -> None:
    match body.command.kind:
        case CommandKind.pause:
            history.paused_at = at
            history.outcome = Outcome("paused", f"asked by {body.command.by}; the log ends in the pause")
        case CommandKind.resume | CommandKind.stop:
            _end_pause(history, at)
            history.outcome = GOING_ON


def _stage(history: History, name: str, kind: str) -> StageHistory:
    return history.stages.setdefault(name, StageHistory(name, kind, 0))


def _start(history: History, body: StageStarted, attempt: int) -> None:
    stage = _stage(history, body.stage, body.kind)
    abandoned = [number for number in stage.steps if number >= body.first_step]
    for number in abandoned:
        del stage.steps[number]
    stage.loads = {number: load for number, load in stage.loads.items() if number < body.first_step}
    stage.kind, stage.planned = body.kind, body.steps
    stage.started, stage.finished, stage.evaluation = True, False, None
    if attempt > 1 and (body.first_step > 1 or abandoned):
        history.resumptions.append(Resumption(attempt, body.stage, body.first_step, len(abandoned)))
