"""Weights through a file in memory: the learner writes safetensors, every engine on this machine reads it.

A file without the output layer is refused before any engine sees it (``base.refuse_without_head`` says why).

A memory file system that is too small (a container's /dev/shm often has 64 MiB) is not used; the run's
folder is then. Leaves out other hosts: they need a shared folder as ``fallback``, or another link.
"""

import asyncio
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from engine.learner.base import Learner
from engine.weights.base import IncompleteWeights, LearnerThread, TakesWeights, refuse_without_head

MEMORY = Path("/dev/shm")

_PREFIX = f"starloom-weights-{os.getuid()}-"
_COPIES = 2  # the new weights are written while the old ones may still be read
_HEAD_ROOM = 3  # a bf16 model trained in fp32 doubles, and its tied head is written out besides
_YOUNG_S = 60.0
_LONGEST_HEADER = 100 << 20


class FileLink:
    """A ``WeightLink`` through a folder of its own, removed by ``close`` or by the next link."""

    def __init__(
        self,
        engines: TakesWeights,
        *,
        learner_thread: LearnerThread,
        model_folder: Path,
        fallback: Path,
        memory: Path = MEMORY,
    ) -> None:
        self._engines = engines
        self._learner_thread = learner_thread
        size = sum(file.stat().st_size for file in model_folder.glob("*.safetensors"))
        parent = memory if _has_room(memory, size * _HEAD_ROOM * _COPIES) else fallback
        _sweep(parent)
        self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._lock = os.open(self.folder, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)  # says to other links that we live
        self._number = 0
        self._written: dict[Path, int] = {}
        self._closed = False

    async def publish(self, learner: Learner, version: int) -> None:
        """As in ``WeightLink``. Also raises ``OSError`` when the file cannot be written."""
        folder = await self.write(learner, version)
        await self._engines.load_weights(folder, version)
        await self.keep(version)

    async def write(self, learner: Learner, version: int) -> Path:
        """A new folder with the learner's weights, complete; it stays until ``keep`` of another version."""
        self._number += 1
        folder = self.folder / f"{self._number}-v{version}"
        await self._learner_thread(lambda: _write(learner.export, folder))
        self._written[folder] = version
        return folder

    async def keep(self, version: int) -> None:
        """Remove the folders of other versions."""
        for folder in [folder for folder, written in self._written.items() if written != version]:
            del self._written[folder]
            await asyncio.to_thread(shutil.rmtree, folder)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            # Whatever cannot be removed is swept by the next link: the lock goes with us.
            await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)
            os.close(self._lock)


def _write(export: Callable[[Path], None], folder: Path) -> None:
    folder.mkdir()
    export(folder)
    names = [name for file in sorted(folder.glob("*.safetensors")) for name in tensor_names(file)]
    if not names:
        raise IncompleteWeights(f"the export wrote no *.safetensors into {folder}")
    refuse_without_head(names, "the export wrote")


def tensor_names(file: Path) -> Sequence[str]:
    """Names in a safetensors header: 8 bytes of length, little-endian, then that much JSON."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if not 2 <= length <= _LONGEST_HEADER:
            raise IncompleteWeights(f"{file} is no safetensors file: its header would have {length} bytes")
        try:
            header = json.loads(opened.read(length))
        except ValueError as error:
            raise IncompleteWeights(f"{file} has a broken header: {error}") from error
    return [name for name in header if name != "__metadata__"]


def _has_room(memory: Path, needed: int) -> bool:
    return os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= needed


def _sweep(parent: Path) -> None:
    """Remove folders of links whose process was killed: nobody holds their lock."""
    for folder in _left_behind(parent):
        shutil.rmtree(folder, ignore_errors=True)  # another link may be sweeping it too


def _left_behind(parent: Path) -> Iterable[Path]:
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            lock = os.open(folder, os.O_RDONLY)
        except OSError:  # swept by another link in this moment
            continue
        try:
            # A young one may be between its making and its locking.
            if time.time() - os.fstat(lock).st_mtime > _YOUNG_S:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield folder
        except BlockingIOError:  # its link lives
            continue
        finally:
            os.close(lock)
