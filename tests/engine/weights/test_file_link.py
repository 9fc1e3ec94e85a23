"""Weights through a file: complete, private, and gone afterwards, also when a process was killed."""

import asyncio
import fcntl
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.weights.base import IncompleteWeights
from engine.weights.file_link import MEMORY, FileLink, tensor_names

TIED = {"model.embed_tokens.weight": 1, "lm_head.weight": 1}


def write_safetensors(folder: Path, names) -> None:
    header = {name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * n, 4 * n + 4]} for n, name in enumerate(names)}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(4 * len(header)))


@dataclass
class Exporting:
    """All that the link needs of a learner."""

    export: Callable[[Path], object]


def writing(*names: str) -> Exporting:
    return Exporting(lambda folder: write_safetensors(folder, names))


class Engines:
    """Remembers what it was given, and whether it was there to be read."""

    def __init__(self) -> None:
        self.got: list[tuple[Path, int, list[str]]] = []

    async def load_weights(self, folder: Path, version: int) -> None:
        self.got.append((folder, version, list(tensor_names(folder / "model.safetensors"))))


@pytest.fixture
def engines() -> Engines:
    return Engines()


@pytest.fixture
def make(tmp_path: Path, engines: Engines):
    (tmp_path / "model").mkdir()
    write_safetensors(tmp_path / "model", TIED)
    (tmp_path / "memory").mkdir()

    def build(**settings) -> FileLink:
        folders = {
            "learner_thread": asyncio.to_thread,
            "model_folder": tmp_path / "model",
            "fallback": tmp_path,
            "memory": tmp_path / "memory",
        }
        return FileLink(engines, **{**folders, **settings})

    return build


async def test_weights_are_written_then_loaded_and_the_old_ones_removed(make, engines) -> None:
    link = make()
    for version in (1, 2):
        await link.publish(writing(*TIED), version)
    assert [(version, names) for _, version, names in engines.got] == [(1, list(TIED)), (2, list(TIED))]
    assert [folder.exists() for folder, _, _ in engines.got] == [False, True]
    assert link.folder.stat().st_mode & 0o777 == 0o700
    await link.close()
    await link.close()
    assert not link.folder.exists()


async def test_weights_without_the_tied_head_reach_no_engine(make, engines) -> None:
    link = make()
    with pytest.raises(IncompleteWeights, match=r"without lm_head\.weight.*tied"):
        await link.publish(writing("model.embed_tokens.weight"), 1)
    assert engines.got == []
    await link.close()


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, (5).to_bytes(8, "little") + b"{nope"])
async def test_a_broken_file_reaches_no_engine(make, engines, content) -> None:
    link = make()
    with pytest.raises(IncompleteWeights):
        await link.publish(Exporting(lambda folder: (folder / "model.safetensors").write_bytes(content)), 1)
    with pytest.raises(IncompleteWeights, match=r"no \*\.safetensors"):
        await link.publish(Exporting(lambda folder: None), 1)
    assert engines.got == []
    await link.close()


async def test_the_loop_stays_free_while_weights_are_written(make) -> None:
    link, turning = make(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def export(folder: Path) -> None:
        asyncio.run_coroutine_threadsafe(turn(), loop).result(10)
        write_safetensors(folder, TIED)

    async def turn() -> None:
        turning.set()

    await link.publish(Exporting(export), 1)
    assert turning.is_set()
    await link.close()


async def test_a_memory_file_system_without_room_is_not_used(make, tmp_path) -> None:
    link = make()
    assert link.folder.parent == tmp_path / "memory"
    huge = tmp_path / "huge"
    huge.mkdir()
    with (huge / "model.safetensors").open("wb") as file:
        file.truncate(1 << 43)  # sparse
    other, third = make(model_folder=huge), make(memory=tmp_path / "missing")
    assert other.folder.parent == third.folder.parent == tmp_path
    for one in (link, other, third):
        await one.close()


async def test_folders_of_the_killed_are_swept_and_of_the_living_kept(make, tmp_path) -> None:
    """A killed process holds no lock; one that lives does, in whatever process namespace."""
    prefix = f"starloom-weights-{os.getuid()}-"
    dead, living, young = (tmp_path / "memory" / f"{prefix}{name}" for name in ("dead", "living", "young"))
    for folder in (dead, living, young):
        folder.mkdir()
        write_safetensors(folder, TIED)
    lock = os.open(living, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    hour_ago = time.time() - 3600
    for folder in (dead, living):
        os.utime(folder, (hour_ago, hour_ago))
    link = make()
    assert [folder.exists() for folder in (dead, living, young)] == [False, True, True]
    os.close(lock)
    await link.close()


def test_memory_is_where_linux_has_it() -> None:
    assert Path("/dev/shm") == MEMORY
