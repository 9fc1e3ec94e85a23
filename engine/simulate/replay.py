"""A recorded run as workloads: does the simulator take as long as the run did?

Of every finished RL step the lengths of turns and the seconds of tools are known, and how long sampling took. The
first step warms the run up (compilation, connections, sessions) and is left out where there are enough others; the next
ones calibrate the engine model, and the rest is predicted and the error said. A step's rollouts are taken as one batch,
so steps of dynamic sampling in several rounds, or that carry rollouts over, are predicted too short. Leaves out
evaluations (how long they sampled is not recorded) and judging rules: ``compare.py``.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.contract.events import EngineLoad, Event, StepFinished, fold_steps
from engine.contract.resources import RolloutResources
from engine.contract.stages import RlStage
from engine.contract.trajectory import Trajectory
from engine.rollout.scheduling.base import Size
from engine.rollout.scheduling.lengths import LengthModel
from engine.rollout.scheduling.registry import make_scheduler
from engine.simulate.driver import Outcome, simulate
from engine.simulate.engine_model import EngineModel
from engine.simulate.workload import SimulatedRollout
from engine.sink.event_log import read_events
from engine.sink.run_folder import RunFolder
from engine.sink.trajectories import read_trajectories

WITHIN: Final = 0.15
"""The error that a prediction may have."""

_ENOUGH: Final = 4
"""Steps of a run whose first one is left out."""

_SHARE: Final = 1 / 3
"""Of the other steps those that calibrate."""

_ROUNDS: Final = 8
_UNKNOWN_KV: Final = 1 << 40
"""Tokens of a KV cache of which the run told nothing: no limit."""

_TYPICAL: Final = EngineModel(0, step_s=0.01, step_per_request_s=1e-3, step_per_kv_token_s=0, prefill_tokens_per_s=5e3)
"""A tiny model on a CPU: where calibration starts."""


class NothingToReplay(Exception):
    """The run has too few steps that can be replayed."""


@dataclass(frozen=True, slots=True)
class RecordedBatch:
    """One step's rollouts, and the seconds that sampling them took."""

    stage: str
    step: int
    sampling_s: float
    rollouts: tuple[SimulatedRollout, ...]


class Use(StrEnum):
    """What a batch was good for; only the error of a predicted one proves anything."""

    warm_up = "warm-up"
    calibrated = "calibrated on"
    predicted = "predicted"


@dataclass(frozen=True, slots=True)
class Prediction:
    """A batch, and the seconds that the simulation says it takes."""

    batch: RecordedBatch
    simulated_s: float
    use: Use

    @property
    def error(self) -> float:
        """Relative; above 0 the simulation took longer than the run."""
        return self.simulated_s / self.batch.sampling_s - 1


@dataclass(frozen=True, slots=True)
class Replay:
    """The engine model found, and what it says of every batch."""

    engine: EngineModel
    engines: int
    predictions: tuple[Prediction, ...]

    @property
    def error(self) -> float:
        """Of the seconds of all batches that the engine model had not seen, relative."""
        unseen = [prediction for prediction in self.predictions if prediction.use is Use.predicted]
        simulated_s = sum(prediction.simulated_s for prediction in unseen)
        return simulated_s / sum(prediction.batch.sampling_s for prediction in unseen) - 1

    def as_dict(self) -> dict[str, Any]:
        """The results for programs. ``kv_tokens`` is None where the run told nothing of its engines' KV cache."""
        kv = self.engine.kv_tokens
        return {
            "engine": asdict(self.engine) | {"kv_tokens": None if kv == _UNKNOWN_KV else kv},
            "engines": self.engines,
            "error": self.error,
            "must": f"within {WITHIN:.0%}",
            "reached": abs(self.error) <= WITHIN,
            "batches": [
                {
                    "stage": each.batch.stage,
                    "step": each.batch.step,
                    "rollouts": len(each.batch.rollouts),
                    "recorded_s": each.batch.sampling_s,
                    "simulated_s": each.simulated_s,
                    "error": each.error,
                    "use": each.use,
                }
                for each in self.predictions
            ],
        }


def replay(folder: Path) -> Replay:
    """Calibrate on the run's first steps, predict the others.

    Raises ``RunFolderError``, ``TrajectoriesUnreadable`` or ``EventLogCorrupt`` for a folder that cannot be read and
    ``NothingToReplay`` for a run of fewer than two steps.
    """
    run = RunFolder.open(folder)
    events = list(read_events(run))
    batches = recorded_batches(run, events)
    if len(batches) < 2:
        raise NothingToReplay(f"{folder}: a replay wants two finished RL steps at least, the run has {len(batches)}")
    return predict(batches, run.job.recipe.rollout, kv_tokens(events))


def predict(batches: Sequence[RecordedBatch], resources: RolloutResources, kv: int) -> Replay:
    """Calibrate on the first batches, under the run's own scheduler, and simulate them all."""
    again = Replayer(batches, resources)
    uses = _uses(len(batches))
    seen = [batch for batch, use in zip(batches, uses, strict=True) if use is Use.calibrated]
    model = calibrate(seen, again, replace(_TYPICAL, kv_tokens=kv))
    predictions = tuple(
        Prediction(batch, again(batch, model).makespan_s, use) for batch, use in zip(batches, uses, strict=True)
    )
    return Replay(model, resources.engines, predictions)


def _uses(count: int) -> list[Use]:
    warm_up = int(count >= _ENOUGH)
    calibrated = max(1, round((count - warm_up) * _SHARE))
    return [Use.warm_up] * warm_up + [Use.calibrated] * calibrated + [Use.predicted] * (count - warm_up - calibrated)


def recorded_batches(run: RunFolder, events: Sequence[Event]) -> list[RecordedBatch]:
    """The RL steps that stand, in order."""
    stages = {stage.name: stage for stage in run.job.recipe.stages if isinstance(stage, RlStage)}
    return [
        _recorded(run, stages[name].max_response_tokens, body)
        for (name, _), body in sorted(fold_steps(events).items())
        if name in stages and body.trajectories and body.seconds.get("sampling")
    ]


def kv_tokens(events: Sequence[Event]) -> int:
    """KV cache of the smallest engine, as the run's timeline tells it."""
    told = [event.body.metrics.get("capacity_tokens") for event in events if isinstance(event.body, EngineLoad)]
    return min((int(tokens) for tokens in told if tokens), default=_UNKNOWN_KV)


def _recorded(run: RunFolder, max_response_tokens: int, body: StepFinished) -> RecordedBatch:
    trajectories = read_trajectories(run.inside(body.trajectories or ""))
    rollouts = tuple(as_rollout(each, max_response_tokens) for each in trajectories if each.ids)
    return RecordedBatch(body.stage, body.step, body.seconds["sampling"], rollouts)


def as_rollout(trajectory: Trajectory, max_response_tokens: int) -> SimulatedRollout:
    """What the rollout did. Calls of one turn ran at the same time; what follows the last sampled turn cost nothing."""
    sampled = [turn.end - turn.start for turn in trajectory.turns if turn.role == "assistant"]
    tools = [turn for turn in trajectory.turns if turn.role == "tool"][: len(sampled) - 1]
    prompt = len(trajectory.prompt_ids)
    return SimulatedRollout(
        Size(trajectory.group, prompt, prompt + max(max_response_tokens, len(trajectory.ids))),
        tuple(max(tokens, 1) for tokens in sampled),
        tuple(turn.end - turn.start for turn in tools),
        tuple(max((call.queued_s + call.wall_s for call in turn.calls), default=0.0) for turn in tools),
    )


class Replayer:
    """Batches of one run under its own scheduler, which knows the lengths of those before as it did in the run."""

    def __init__(self, batches: Sequence[RecordedBatch], resources: RolloutResources) -> None:
        self._resources = resources
        self._known: dict[tuple[str, int], dict[str, Any]] = {}
        lengths = LengthModel()
        for batch in batches:
            self._known[batch.stage, batch.step] = lengths.as_dict()
            for rollout in batch.rollouts:
                longest = rollout.size.max_tokens - rollout.size.prompt_tokens
                tokens = rollout.response_tokens
                lengths.learn(rollout.size.problem, tokens, cut=tokens >= longest)
            lengths.new_step()

    def __call__(self, batch: RecordedBatch, model: EngineModel) -> Outcome:
        """Simulate one batch on engines like ``model``."""
        resources = self._resources
        lengths = LengthModel.of(self._known[batch.stage, batch.step])
        scheduler = make_scheduler(resources.scheduler, max_running=resources.max_running, lengths=lengths)
        return simulate(batch.rollouts, scheduler, [model] * resources.engines)


Again = Callable[[RecordedBatch, EngineModel], Outcome]


def calibrate(batches: Sequence[RecordedBatch], again: Again, start: EngineModel) -> EngineModel:
    """Engine constants with which the batches take as long as they did, in least squares of the relative error.

    The engine that ends last is busy for a sum that is linear in the constants: its steps, the tokens it sampled, the
    KV it read and the tokens it prefilled. What it is not busy it waits for tools, which depends on the constants too:
    so it is simulated and solved again a few times.
    """
    model = start
    for _ in range(_ROUNDS):
        outcomes = [again(batch, model) for batch in batches]
        rows = np.array([_work(outcome) for outcome in outcomes])
        idle_s = np.array([outcome.makespan_s for outcome in outcomes]) - rows @ _constants(model)
        recorded_s = np.array([batch.sampling_s for batch in batches])
        found = non_negative(rows / recorded_s[:, None], np.maximum(recorded_s - idle_s, 0) / recorded_s)
        model = _with_constants(model, (_constants(model) + found) / 2)  # half-way: the fixed point is not jumped over
    return model


def _work(outcome: Outcome) -> list[float]:
    last = outcome.engines[int(np.argmax(outcome.finish_s))]
    return [last.steps, last.generated, last.kv_read, last.prefilled]


def _constants(model: EngineModel) -> NDArray[np.float64]:
    return np.array([model.step_s, model.step_per_request_s, model.step_per_kv_token_s, 1 / model.prefill_tokens_per_s])


def _with_constants(model: EngineModel, found: NDArray[np.float64]) -> EngineModel:
    step_s, request_s, kv_s, prefill_s = found.tolist()
    return replace(
        model,
        step_s=max(step_s, 1e-6),
        step_per_request_s=request_s,
        step_per_kv_token_s=kv_s,
        prefill_tokens_per_s=1 / max(prefill_s, 1e-12),
    )


def non_negative(rows: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least-squares solution without negative entries: the best over all choices of columns, of which there are few."""
    best, solution = np.inf, np.zeros(rows.shape[1])
    for columns in _choices(rows.shape[1]):
        part, *_ = np.linalg.lstsq(rows[:, columns], wanted, rcond=None)
        miss = float(((rows[:, columns] @ part - wanted) ** 2).sum())
        if (part >= 0).all() and miss < best * (1 - 1e-9):
            best = miss
            solution = np.zeros(rows.shape[1])
            solution[columns] = part
    return solution


def _choices(count: int) -> Iterator[list[int]]:
    """Non-empty sets of columns, the small ones first."""
    for size in range(1, count + 1):
        yield from map(list, combinations(range(count), size))
