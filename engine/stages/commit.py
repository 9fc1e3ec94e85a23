"""Checkpoints of a stage, and the rule that makes a finished step happen exactly once.

A checkpoint folder appears by one rename and carries the ``step.finished`` event of its step. Order at a step's end:
trajectories, checkpoint, event. Killed before the rename, the step is done again; killed between rename and event,
the next attempt finds the event in the checkpoint and writes it. Leaves out what a learner stores: ``Learner.save``.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from engine.contract.events import StepFinished
from engine.learner.base import CheckpointMismatch, Learner
from engine.learner.checkpoint import atomic_folder
from engine.models.folder import copy_tokenizer
from engine.sink.run_folder import RunFolder

SCHEMA = 1
KEPT = 2


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint: ``model/`` is a Hugging Face folder, ``learner/`` what the learner goes on from."""

    path: Path
    step: int
    version: int
    finished: StepFinished

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def learner(self) -> Path:
        return self.path / "learner"


def save(path: Path, learner: Learner, *, version: int, finished: StepFinished, tokenizer_from: Path) -> Checkpoint:
    """Write a checkpoint; it is there completely or not at all. ``OSError`` (disk full) leaves older ones good."""
    state = {
        "schema": SCHEMA,
        "step": finished.step,
        "version": version,
        "finished": finished.model_dump(mode="json"),
    }
    with atomic_folder(path) as folder:
        learner.export(folder / "model")
        copy_tokenizer(tokenizer_from, folder / "model")
        learner.save(folder / "learner")
        (folder / "state.json").write_text(json.dumps(state))
    return Checkpoint(path, finished.step, version, finished)


def read(path: Path) -> Checkpoint:
    state = json.loads((path / "state.json").read_text())
    if state["schema"] != SCHEMA:
        raise CheckpointMismatch(f"{path}: schema {state['schema']}, this engine reads {SCHEMA}")
    return Checkpoint(path, state["step"], state["version"], StepFinished.model_validate(state["finished"]))


def all_of(folder: RunFolder, stage: str) -> list[Checkpoint]:
    """Complete checkpoints of a stage, oldest first; of two attempts at the same step the later one stands last."""
    found = [
        read(path)
        for attempt in folder.attempts()
        for path in folder.checkpoint(attempt, stage, 0).parent.glob("step-*")
        if (path / "state.json").is_file()
    ]
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def latest(folder: RunFolder, stage: str) -> Checkpoint | None:
    found = all_of(folder, stage)
    return found[-1] if found else None


def prune(folder: RunFolder, stage: str, *, keep: int = KEPT) -> None:
    """Remove all but the newest checkpoints of a stage."""
    for old in all_of(folder, stage)[:-keep]:
        shutil.rmtree(old.path)
