"""Updates whose loss or gradient was not finite: the learner skipped them, here they are kept, counted and acted on.

A skipped update changes nothing in the learner, so a run may go on after one. After ``skips_to_pause`` in a row it
pauses itself: data or weights are broken, and going on would only burn time. The batch is kept for whoever looks into
it. Leaves out how a learner notices: ``engine.learner``.
"""

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.contract.base import split_non_finite
from engine.contract.commands import Command, CommandKind
from engine.contract.stages import TrainedStage
from engine.learner.base import Sample
from engine.sink.disk import replace_file
from engine.stages.carryover import CarryOver
from engine.stages.context import StageContext

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class DoneUpdate:
    """One optimizer step: what it was given and what the learner said."""

    batch: Sequence[Sample]
    metrics: Mapping[str, float]

    @property
    def skipped(self) -> bool:
        return self.metrics.get("skipped", 0.0) > 0

    @property
    def reason(self) -> str:
        """The figures that were not finite, in words."""
        wrong = [f"{name} is {value}" for name, value in self.metrics.items() if not math.isfinite(value)]
        return ", ".join(wrong) or "the loss or the gradient was not finite"


async def watch_skips(
    context: StageContext,
    stage: TrainedStage,
    step: int,
    carried: CarryOver,
    updates: Sequence[DoneUpdate],
    trajectories: str | None = None,
) -> None:
    """Keep the batches of a step's skipped updates, and have the run pause after too many in a row.

    Call it before the step is finished: the pause takes hold at the end of that step. ``trajectories`` is the step's
    file in the run folder, if it has one.
    """
    skipped = [update for update in updates if update.skipped]
    if skipped:
        path = kept_path(context, stage.name, step)
        await asyncio.to_thread(keep_batches, path, stage.name, step, skipped, trajectories)
        context.warn(
            f"{stage.name}, step {step}: {len(skipped)} of {len(updates)} updates skipped, {skipped[0].reason}; "
            f"kept in {context.folder.relative(path)}"
        )
    if count_skips(carried, updates, stage.skips_to_pause):
        pause(context, stage, step)


def count_skips(carried: CarryOver, updates: Sequence[DoneUpdate], limit: int) -> bool:
    """Count on; whether ``limit`` in a row was reached, which begins the count anew. Without updates nothing counts."""
    reached = False
    for update in updates:
        carried.skips = carried.skips + 1 if update.skipped else 0
        if carried.skips >= limit:
            reached, carried.skips = True, 0
    return reached


def pause(context: StageContext, stage: TrainedStage, step: int) -> None:
    """Ask for a pause, as a person would."""
    why = f"{stage.skips_to_pause} updates in a row were skipped, up to step {step} of {stage.name}"
    context.warn(f"{why}: the run pauses. Look at what was kept, then resume it or stop it")
    context.inbox.put(Command(kind=CommandKind.pause, by=f"engine: {why}"))


def kept_path(context: StageContext, stage: str, step: int) -> Path:
    return context.folder.attempt(context.attempt) / "skipped" / f"{stage}-step-{step:05d}.json"


def keep_batches(path: Path, stage: str, step: int, skipped: Sequence[DoneUpdate], trajectories: str | None) -> None:
    """One JSON file: the reason, the trajectories' file, and every sample of the skipped updates token by token."""
    kept = {
        "schema": SCHEMA,
        "stage": stage,
        "step": step,
        "reason": skipped[0].reason,
        "trajectories": trajectories,
        "updates": [_as_dict(update) for update in skipped],
    }
    text = json.dumps(kept, allow_nan=False) + "\n"
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _as_dict(update: DoneUpdate) -> dict[str, Any]:
    metrics, non_finite = split_non_finite(update.metrics)
    samples = [
        {"ids": list(sample.ids), "trained": list(sample.trained), "advantage": sample.advantage}
        for sample in update.batch
    ]
    return {"metrics": metrics, "non_finite": non_finite, "samples": samples}
