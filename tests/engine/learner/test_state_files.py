"""What a stored state refuses: another model, another schema, files that are not as they were written."""

import errno
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from engine.learner.base import CheckpointMismatch
from engine.learner.checkpoint import CARD, ModelCard
from engine.learner.state import TENSORS, LearnerState, read_state, write_state

SMALL = ModelCard.of("Tiny", {"hidden_size": 8, "num_hidden_layers": 1}, {"a": (2, 3)})
LARGE = ModelCard.of("Tiny", {"hidden_size": 16, "num_hidden_layers": 1}, {"a": (2, 6)})


@pytest.fixture
def state() -> LearnerState:
    tensors = {"master/a": torch.arange(6.0).view(2, 3), "rng/cpu/0": torch.get_rng_state()}
    return LearnerState(tensors, {"updates": 7, "ranks": 1, "step": {"a": 7}})


@pytest.fixture
def folder(tmp_path: Path, state: LearnerState) -> Path:
    write_state(tmp_path / "learner", state, SMALL)
    return tmp_path / "learner"


def test_what_was_written_is_read(folder: Path, state: LearnerState) -> None:
    found = read_state(folder, SMALL)
    assert found.numbers == state.numbers
    assert found.tensors.keys() == state.tensors.keys()
    assert all(torch.equal(found.tensors[name], state.tensors[name]) for name in state.tensors)


def test_a_state_is_two_files_and_neither_is_a_pickle(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == [CARD, TENSORS]
    assert json.loads((folder / CARD).read_text())["numbers"]["updates"] == 7


def test_another_model_is_refused_and_both_are_named(folder: Path) -> None:
    with pytest.raises(CheckpointMismatch, match=r"hidden size 8.*this learner holds.*hidden size 16"):
        read_state(folder, LARGE)


def test_another_schema_is_refused_and_both_are_named(folder: Path) -> None:
    card = json.loads((folder / CARD).read_text())
    (folder / CARD).write_text(json.dumps({**card, "schema": 1}))
    with pytest.raises(CheckpointMismatch, match="schema 1, this engine reads 2"):
        read_state(folder, SMALL)


def test_a_truncated_file_is_refused(folder: Path) -> None:
    path = folder / TENSORS
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointMismatch, match=f"{TENSORS} is damaged: .* bytes"):
        read_state(folder, SMALL)


def test_a_single_changed_bit_is_refused(folder: Path) -> None:
    path = folder / TENSORS
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointMismatch, match=f"{TENSORS} is damaged: .* SHA-256"):
        read_state(folder, SMALL)


def test_a_missing_file_is_refused(folder: Path) -> None:
    (folder / TENSORS).unlink()
    with pytest.raises(CheckpointMismatch, match="is damaged: FileNotFoundError"):
        read_state(folder, SMALL)


@contextmanager
def no_file_over(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_write_that_the_system_refuses_says_why_in_its_number(tmp_path: Path, state: LearnerState) -> None:
    with no_file_over(1000), pytest.raises(OSError, match="could not be written") as refused:
        write_state(tmp_path / "learner", state, SMALL)
    assert refused.value.errno == errno.EFBIG
