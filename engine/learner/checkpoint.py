"""Folders that are there completely or not at all, and the card that says whose checkpoint a folder holds.

Used by the learner and by whatever else writes checkpoints, so nothing heavy is imported here. Leaves out
what a checkpoint holds (``deepspeed_learner.py``) and which ones are kept (``engine.stages``).
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.learner.base import CheckpointMismatch

SCHEMA = 1
CARD = "checkpoint.json"


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside ``path`` to fill; at the end it is flushed to disk and takes ``path``'s name.

    Any error inside (a full disk, say) removes what was written, leaves an older ``path`` as it was and
    passes on. One writer at a time per ``path``. Linux cannot swap a folder for a full one in a single
    portable call: an older one is moved aside first, and ``settle`` moves it back if the writer is killed
    between the two renames.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    settle(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.mkdir()
    try:
        yield temporary
        _flush(temporary)
        _put_in_place(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def settle(path: Path) -> None:
    """Clear up after killed writers of ``path``: the newest complete folder then stands there."""
    for stale in path.parent.glob(f".{path.name}.*.tmp"):
        shutil.rmtree(stale, ignore_errors=True)
    aside = _aside(path)
    if aside.exists() and not path.exists():
        os.replace(aside, path)
    elif aside.exists():
        shutil.rmtree(aside)


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


def write_card(folder: Path, *, kind: str, model: ModelCard, updates: int) -> None:
    """``checkpoint.json``: small, and readable without torch."""
    card = {"schema": SCHEMA, "kind": kind, "model": asdict(model), "updates": updates}
    (folder / CARD).write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")


def check_card(folder: Path, *, kind: str, model: ModelCard) -> None:
    """Raise ``CheckpointMismatch`` unless ``folder`` is of this kind of learner and this model."""
    try:
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
        schema, theirs, their_kind = card["schema"], ModelCard(**card["model"]), card["kind"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointMismatch(f"{folder} is no checkpoint of this engine: {CARD}: {error!r}") from error
    if schema != SCHEMA:
        raise CheckpointMismatch(f"{folder} has checkpoint schema {schema}, this engine reads {SCHEMA}")
    if theirs.digest != model.digest:
        raise CheckpointMismatch(f"{folder} is a checkpoint of {theirs}; this learner holds {model}")
    if their_kind != kind:
        raise CheckpointMismatch(f"{folder} is a checkpoint of an {their_kind} learner; this is an {kind} learner")
