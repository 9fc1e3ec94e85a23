"""Folders that are there completely or not at all, and the card that says whose checkpoint a folder holds.

Used by the learner and by whatever else writes checkpoints, so nothing heavy is imported here. Leaves out
what a checkpoint holds (``state.py``) and which ones are kept (``engine.stages.commit``).
"""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from engine.learner.base import CheckpointMismatch

SCHEMA = 2
CARD = "checkpoint.json"


class AtomicFolder:
    """A folder that is filled beside ``path`` and takes its name by one rename when it is finished.

    Begun by being made; then ``temporary`` is filled, on any thread; then ``finish`` or ``abandon`` ends it. Until
    ``finish`` an older ``path`` stays as it was. One writer at a time per ``path``. Linux cannot swap a folder for a
    full one in a single portable call: an older one is moved aside first, and ``settle`` moves it back if the writer is
    killed between the two renames.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        settle(path)
        self.path = path
        self.temporary = _temporary(path)
        self.temporary.mkdir()

    def finish(self) -> None:
        """Flush everything to disk and put it in its place. After an error it can only be abandoned."""
        _flush(self.temporary)
        _put_in_place(self.temporary, self.path)

    def abandon(self) -> None:
        """Remove what was written. May be called twice, and does nothing after ``finish``."""
        shutil.rmtree(self.temporary, ignore_errors=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """An ``AtomicFolder`` that is filled in one block: finished at its end, abandoned by any error inside."""
    folder = AtomicFolder(path)
    try:
        yield folder.temporary
        folder.finish()
    except BaseException:
        folder.abandon()
        raise


def remove_folder(path: Path) -> None:
    """Remove a folder so that it is never seen half removed: first its name goes, then what it holds."""
    doomed = _temporary(path)
    os.replace(path, doomed)
    shutil.rmtree(doomed)


def settle(path: Path) -> None:
    """Clear up after killed writers of ``path``: the newest complete folder then stands there."""
    for stale in path.parent.glob(f".{path.name}.*.tmp"):
        shutil.rmtree(stale, ignore_errors=True)
    aside = _aside(path)
    if aside.exists() and not path.exists():
        os.replace(aside, path)
    elif aside.exists():
        shutil.rmtree(aside)


def settle_all(parent: Path) -> None:
    """The same for every folder in ``parent`` that a killed writer has left something of."""
    for left in [*parent.glob(".*.tmp"), *parent.glob(".*.old")]:
        settle(parent / left.name.removeprefix(".").split(".")[0])


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _put_in_place(temporary: Path, path: Path) -> None:
    aside = _aside(path)
    if path.exists():
        os.replace(path, aside)
    try:
        os.replace(temporary, path)
    except OSError:
        if aside.exists():
            os.replace(aside, path)
        raise
    _flush_one(path.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _flush(folder: Path) -> None:
    """Contents before names: a rename must never become durable before what it names."""
    for place, _, files in os.walk(folder, topdown=False):
        for name in files:
            _flush_one(Path(place, name))
        _flush_one(Path(place))


def _flush_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def safetensors_errors_as_os_errors(path: Path) -> Iterator[None]:
    """Safetensors gives the system's error number, such as ``ENOSPC`` for a full disk, in its message only."""
    try:
        yield
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        raise OSError(int(number[1]) if number else errno.EIO, f"could not be written: {error}", str(path)) from error


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What a model and its checkpoint have in common; ``digest`` covers every weight's name and shape."""

    architecture: str
    hidden_size: int
    layers: int
    parameters: int
    digest: str

    @classmethod
    def of(cls, architecture: str, config: Mapping[str, object], shapes: Mapping[str, Sequence[int]]) -> "ModelCard":
        """From a Hugging Face config and the shapes of all parameters by name."""
        lines = [f"{name} {'x'.join(map(str, shape))}" for name, shape in sorted(shapes.items())]
        return cls(
            architecture=architecture,
            hidden_size=int(str(config.get("hidden_size", 0))),
            layers=int(str(config.get("num_hidden_layers", 0))),
            parameters=sum(_numel(shape) for shape in shapes.values()),
            digest=hashlib.sha256("\n".join([architecture, *lines]).encode()).hexdigest(),
        )

    def __str__(self) -> str:
        return (
            f"{self.architecture} of hidden size {self.hidden_size}, {self.layers} layers, "
            f"{self.parameters:,} parameters (digest {self.digest[:12]})"
        )


def _numel(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def write_card(folder: Path, *, model: ModelCard, contents: Mapping[str, Any]) -> None:
    """``checkpoint.json``: schema, model, and what else the writer has to say; readable without torch."""
    card = {"schema": SCHEMA, "model": asdict(model), **contents}
    (folder / CARD).write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")


def read_card(folder: Path, *, model: ModelCard) -> dict[str, Any]:
    """The card of ``folder``. Raises ``CheckpointMismatch`` unless it is of this schema and this model."""
    try:
        card: dict[str, Any] = json.loads((folder / CARD).read_text(encoding="utf-8"))
        schema = card["schema"]
        if schema != SCHEMA:
            raise CheckpointMismatch(f"{folder} has checkpoint schema {schema}, this engine reads {SCHEMA}")
        theirs = ModelCard(**card["model"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointMismatch(f"{folder} is no checkpoint of this engine: {CARD}: {error!r}") from error
    if theirs.digest != model.digest:
        raise CheckpointMismatch(f"{folder} is a checkpoint of {theirs}; this learner holds {model}")
    return card
