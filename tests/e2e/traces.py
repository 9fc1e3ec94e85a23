"""What a run came to, for comparing runs to the bit: learned figures, trained ids, weights. Times are left out."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.contract.events import EvalFinished, StepFinished, fold_steps
from engine.contract.stages import EvalStage
from engine.sink.event_log import read_events
from engine.sink.run_folder import RunFolder
from engine.sink.trajectories import read_trajectories
from engine.stages.commit import latest

TIMES = {"seconds", "tokens_per_s"}
Figures = dict[str, float | None]


@dataclass(frozen=True)
class Trace:
    """``steps``: by (stage, step), the metrics. ``rollouts``: likewise, each rollout with its ids and what was made of
    it. ``weights``: SHA-256 of each trained stage's last weights. ``evaluations``: metrics by stage."""

    steps: dict[tuple[str, int], Figures]
    rollouts: dict[tuple[str, int], list[tuple[Any, ...]]]
    weights: dict[str, str]
    evaluations: dict[str, Figures]


def trace(path: Path) -> Trace:
    """The trace of a finished run's folder."""
    folder = RunFolder.open(path)
    events = list(read_events(folder))
    steps = fold_steps(events)
    return Trace(
        steps={place: figures(body) for place, body in steps.items()},
        rollouts={place: rollouts(folder, body) for place, body in steps.items() if body.trajectories},
        weights={stage.name: weights(folder, stage.name) for stage in folder.job.recipe.stages if trained(stage)},
        evaluations={e.body.stage: figures(e.body) for e in events if isinstance(e.body, EvalFinished)},
    )


def trained(stage: object) -> bool:
    return not isinstance(stage, EvalStage)


def figures(body: StepFinished | EvalFinished) -> Figures:
    return {name: value for name, value in body.metrics.items() if name not in TIMES}


def rollouts(folder: RunFolder, body: StepFinished) -> list[tuple[Any, ...]]:
    """In the order of the groups; numbers as they were, to the bit."""
    found = [
        (t.group, t.replica, t.problem_id, t.ids, t.logprobs, t.u, t.reward, t.kept, t.advantage, t.last_version)
        for t in read_trajectories(folder.inside(body.trajectories or ""))
    ]
    return sorted(found, key=lambda row: row[:2])


def weights(folder: RunFolder, stage: str) -> str:
    checkpoint = latest(folder, stage)
    assert checkpoint is not None, f"{stage} has no checkpoint"
    return hashlib.sha256((checkpoint.model / "model.safetensors").read_bytes()).hexdigest()
