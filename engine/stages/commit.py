"""Checkpoints of a stage, which of them are kept, and the rule that makes a finished step happen exactly once.

    step-00012/  model/      a Hugging Face folder, tokenizer included: transformers and vLLM load it
                 learner/    what the learner goes on from (``Learner.save``)
                 state.json  schema, step, version, the step's ``step.finished`` event, what the stage carries over
                 PINNED      made by whoever wants this checkpoint kept for good; may be empty

A checkpoint folder appears by one rename and carries the event of its step. Order at a step's end: trajectories,
checkpoint, event. Killed before the rename, the step is done again; killed between rename and event, the next attempt
finds the event in the checkpoint and writes it. Leaves out when a checkpoint is due and telling it: ``progress.py``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.contract.events import StepFinished
from engine.contract.stages import TrainedStage
from engine.learner.base import CheckpointMismatch, Learner, Saving
from engine.learner.checkpoint import AtomicFolder, remove_folder, settle_all
from engine.models.folder import copy_tokenizer
from engine.sink.disk import naming_full_disk
from engine.sink.run_folder import RunFolder

SCHEMA = 2
STATE = "state.json"
PINNED = "PINNED"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint. ``pending`` is what the stage carries over to its next step, as JSON."""

    path: Path
    step: int
    version: int
    finished: StepFinished
    pending: Mapping[str, Any]

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def learner(self) -> Path:
        return self.path / "learner"

    @property
    def pinned(self) -> bool:
        return (self.path / PINNED).exists()


@dataclass(frozen=True, slots=True)
class Writing:
    """A checkpoint that is being written: nothing of the learner's later life gets into it."""

    checkpoint: Checkpoint
    folder: AtomicFolder
    saving: Saving
    state: str
    tokenizer_from: Path

    def finish(self) -> Checkpoint:
        """Block until the checkpoint is on disk and in its place; call once, on any thread.

        After any error nothing of it is left and older ones are good. ``SinkFull`` names a full disk.
        """
        place = self.folder.path.parent
        try:
            with naming_full_disk(place):
                self.saving.wait()
                copy_tokenizer(self.tokenizer_from, self.folder.temporary / "model")
                (self.folder.temporary / STATE).write_text(self.state, encoding="utf-8")
                self.folder.finish()
        except BaseException:
            self.folder.abandon()
            raise
        return self.checkpoint


def begin(
    path: Path,
    learner: Learner,
    *,
    version: int,
    finished: StepFinished,
    pending: Mapping[str, Any],
    tokenizer_from: Path,
) -> Writing:
    """Copy the learner's state and begin to write it; blocks for the copy only.

    Raises ``SinkFull``, and ``ValueError`` or ``TypeError`` for a ``pending`` that is no JSON.
    """
    state = _state(version, finished, pending)
    with naming_full_disk(_existing(path)):
        folder = AtomicFolder(path)
        try:
            saving = learner.save(folder.temporary / "learner", model_folder=folder.temporary / "model")
        except BaseException:
            folder.abandon()
            raise
    checkpoint = Checkpoint(path, finished.step, version, finished, json.loads(state)["pending"])
    return Writing(checkpoint, folder, saving, state, tokenizer_from)


def _existing(path: Path) -> Path:
    return next(parent for parent in path.parents if parent.exists())


def _state(version: int, finished: StepFinished, pending: Mapping[str, Any]) -> str:
    state = {
        "schema": SCHEMA,
        "step": finished.step,
        "version": version,
        "finished": finished.model_dump(mode="json"),
        "pending": pending,
    }
    return json.dumps(state, indent=2, allow_nan=False) + "\n"


def read(path: Path) -> Checkpoint:
    """Raises ``CheckpointMismatch`` for another schema or a file that is damaged."""
    try:
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
        if state["schema"] != SCHEMA:
            raise CheckpointMismatch(f"{path}: schema {state['schema']}, this engine reads {SCHEMA}")
        finished = StepFinished.model_validate(state["finished"])
        return Checkpoint(path, state["step"], state["version"], finished, state["pending"])
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointMismatch(f"{path / STATE} is damaged: {error}") from error


def clear_up(folder: RunFolder, stage: str) -> None:
    """Remove what killed attempts left of unfinished checkpoints. Call while no checkpoint is being written."""
    for parent in _parents(folder, stage):
        settle_all(parent)


def all_of(folder: RunFolder, stage: str) -> list[Checkpoint]:
    """Complete checkpoints of a stage, oldest first; of two attempts at the same step the later one stands last."""
    paths = [path for parent in _parents(folder, stage) for path in parent.glob("step-*")]
    found = [read(path) for path in paths if (path / STATE).is_file()]
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def _parents(folder: RunFolder, stage: str) -> list[Path]:
    return [folder.checkpoint(attempt, stage, 0).parent for attempt in folder.attempts()]


def latest(folder: RunFolder, stage: str) -> Checkpoint | None:
    found = all_of(folder, stage)
    return found[-1] if found else None


def best(checkpoints: list[Checkpoint], by: str) -> Checkpoint | None:
    """The one whose step has the largest metric ``by``, or the smallest for ``-name``; of equal ones the older.

    A step without that metric, or with one that was no finite number, is never the best.
    """
    name, sign = by.removeprefix("-"), -1 if by.startswith("-") else 1
    scored = [(sign * value, c) for c in checkpoints if (value := c.finished.metrics.get(name)) is not None]
    return max(scored, key=lambda pair: pair[0])[1] if scored else None


def prune(folder: RunFolder, stage: TrainedStage, *, keep: int, besides: Checkpoint | None = None) -> None:
    """Remove old checkpoints of a stage.

    What stays: the ``keep`` newest, the best by ``stage.best_by``, pinned ones, and ``besides``.
    """
    found = all_of(folder, stage.name)
    top = best(found, stage.best_by) if stage.best_by else None
    kept = {c.path for c in (*found[-keep:], top, besides) if c is not None}
    for checkpoint in found:
        if checkpoint.path not in kept and not checkpoint.pinned:
            remove_folder(checkpoint.path)
