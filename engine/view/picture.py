"""What the terminal shows, folded from events: where every stage is, how long it takes, the last numbers.

Leaves out drawing (``progress.py``) and the whole history (``history.py``): this is the present, in constant
memory.
"""

from collections import deque
from dataclasses import dataclass, field

from engine.contract.commands import CommandKind
from engine.contract.events import (
    CommandApplied,
    EngineLoad,
    EvalFinished,
    Event,
    GroupFinished,
    Phase,
    PhaseStarted,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
    SandboxLoad,
    StageFinished,
    StageStarted,
    StepFinished,
)
from engine.interop.engine_timeline import Moment, moments

RECENT = 10  # steps that the running picture covers


@dataclass(slots=True)
class StageProgress:
    """One stage's bar."""

    name: str
    kind: str
    total: int
    done: int = 0
    first: int = 1
    started_at: float | None = None
    finished_at: float | None = None
    ticked_at: float = 0.0
    pace: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def tick(self, done: int, at: float) -> None:
        """``done`` steps (problems, in an evaluation) are finished now."""
        since = self.ticked_at or self.started_at
        if since is not None and done > self.done:
            self.pace.append((at - since) / (done - self.done))
        self.done, self.ticked_at = done, at

    def go_on(self, at: float) -> None:
        """The run was held until now: the time since the last tick says nothing about the pace."""
        self.ticked_at = at

    def elapsed(self, now: float) -> float | None:
        return None if self.started_at is None else (self.finished_at or now) - self.started_at

    def remaining(self, now: float) -> float | None:
        """Seconds left at the pace of the last steps; None when there is nothing to judge by."""
        if self.finished_at is not None or not self.pace:
            return None
        waiting = sum(self.pace) / len(self.pace) * (self.total - self.done)
        return max(0.0, waiting - max(0.0, now - self.ticked_at))


@dataclass(slots=True)
class Picture:
    """The present of a run."""

    stages: dict[str, StageProgress] = field(default_factory=dict)
    stage: StageProgress | None = None
    phase: Phase | None = None
    phase_step: int = 0
    groups: int = 0
    last_step: StepFinished | None = None
    last_eval: EvalFinished | None = None
    last_load: SandboxLoad | None = None
    engines: Moment | None = None
    """What the rollout engines told last."""
    recent: deque[StepFinished] = field(default_factory=lambda: deque(maxlen=RECENT))
    over: bool = False
    paused_by: str = ""

    def apply(self, event: Event) -> None:
        """Take in the next event."""
        match event.body:
            case RunStarted() as body:
                self.stages = {plan.name: StageProgress(plan.name, plan.kind, plan.steps) for plan in body.stages}
            case StageStarted() as body:
                self._start(body, event.at)
            case PhaseStarted() as body:
                self.phase, self.phase_step, self.groups = body.phase, body.step, 0
            case GroupFinished() as body:
                self._group(body, event.at)
            case StepFinished() as body:
                self._step(body, event.at)
            case EvalFinished() as body:
                self.last_eval = body
            case SandboxLoad() as body:
                self.last_load = body
            case EngineLoad() as body:
                (self.engines,) = moments([(event, body)], self.engines)
            case StageFinished() as body:
                self._finish(body, event.at)
            case CommandApplied() as body:
                self._command(body, event.at)
            case RunFinished() | RunFailed() | RunStopped():
                self.over, self.phase = True, None

    def _command(self, body: CommandApplied, at: float) -> None:
        """A pause holds everything until the run is resumed or stopped."""
        match body.command.kind:
            case CommandKind.pause:
                self.paused_by = body.command.by
            case CommandKind.resume | CommandKind.stop:
                self.paused_by = ""
                if self.stage is not None:
                    self.stage.go_on(at)

    def _start(self, body: StageStarted, at: float) -> None:
        stage = StageProgress(body.stage, body.kind, body.steps, done=body.first_step - 1, started_at=at)
        for earlier in self.stages.values():
            if earlier.name == body.stage:
                break
            if earlier.finished_at is None and earlier.started_at is None:
                earlier.done = earlier.total  # done by an earlier attempt
        self.stages[body.stage] = stage
        self.stage, self.phase, self.last_step, self.last_load = stage, None, None, None
        self.engines = None
        self.recent.clear()

    def _group(self, body: GroupFinished, at: float) -> None:
        self.groups += 1
        stage = self.stages.get(body.stage)
        if stage is not None and stage.kind == "eval":
            stage.tick(min(stage.done + 1, stage.total), at)

    def _step(self, body: StepFinished, at: float) -> None:
        self.last_step = body
        self.recent.append(body)
        if body.stage in self.stages:
            self.stages[body.stage].tick(body.step, at)

    def _finish(self, body: StageFinished, at: float) -> None:
        stage = self.stages.get(body.stage)
        if stage is not None:
            stage.done, stage.finished_at = stage.total, at
        self.phase = None
