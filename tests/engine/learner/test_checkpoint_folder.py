"""Folders that appear complete or not at all, and cards that refuse another model's checkpoint."""

import json
from pathlib import Path

import pytest

from engine.learner.base import CheckpointMismatch
from engine.learner.checkpoint import CARD, ModelCard, atomic_folder, check_card, settle, write_card

SMALL = ModelCard.of("Tiny", {"hidden_size": 8, "num_hidden_layers": 1}, {"a": (2, 3), "b": (4,)})
LARGE = ModelCard.of("Tiny", {"hidden_size": 16, "num_hidden_layers": 1}, {"a": (2, 3), "b": (8,)})


def write(path: Path, text: str) -> None:
    with atomic_folder(path) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "file").write_text(text)


def fail_while_writing(path: Path) -> None:
    with atomic_folder(path) as folder:
        (folder / "half").write_text("x")
        raise OSError("no space")


def read(path: Path) -> str:
    return (path / "inner" / "file").read_text()


def test_a_folder_appears_and_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "checkpoint"
    write(path, "first")
    write(path, "second")
    assert read(path) == "second"
    assert list(path.parent.iterdir()) == [path]


def test_nothing_is_visible_before_the_end(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "c") as folder:
        assert not (tmp_path / "c").exists()
        assert folder.parent == tmp_path


def test_an_error_leaves_the_older_folder_and_no_litter(tmp_path: Path) -> None:
    write(tmp_path / "c", "good")
    with pytest.raises(OSError, match="no space"):
        fail_while_writing(tmp_path / "c")
    assert read(tmp_path / "c") == "good"
    assert list(tmp_path.iterdir()) == [tmp_path / "c"]


def test_a_writer_killed_between_its_renames_is_cleared_up(tmp_path: Path) -> None:
    write(tmp_path / "c", "good")
    (tmp_path / "c").rename(tmp_path / ".c.old")
    (tmp_path / ".c.77.tmp").mkdir()
    settle(tmp_path / "c")
    assert read(tmp_path / "c") == "good"
    assert list(tmp_path.iterdir()) == [tmp_path / "c"]


def test_a_writer_killed_after_its_renames_is_cleared_up(tmp_path: Path) -> None:
    write(tmp_path / ".c.old", "old")
    write(tmp_path / "c", "new")
    write(tmp_path / "c", "newer")
    assert read(tmp_path / "c") == "newer"
    assert list(tmp_path.iterdir()) == [tmp_path / "c"]


def test_the_own_card_is_accepted(tmp_path: Path) -> None:
    write_card(tmp_path, kind="RL", model=SMALL, updates=3)
    check_card(tmp_path, kind="RL", model=SMALL)


def test_another_model_is_refused_and_both_are_named(tmp_path: Path) -> None:
    write_card(tmp_path, kind="RL", model=SMALL, updates=3)
    with pytest.raises(CheckpointMismatch) as refused:
        check_card(tmp_path, kind="RL", model=LARGE)
    assert "hidden size 8" in str(refused.value)
    assert "hidden size 16" in str(refused.value)
    assert "10 parameters" in str(refused.value)


def test_another_stage_kind_is_refused(tmp_path: Path) -> None:
    write_card(tmp_path, kind="SFT", model=SMALL, updates=3)
    with pytest.raises(CheckpointMismatch, match="of an SFT learner; this is an RL learner"):
        check_card(tmp_path, kind="RL", model=SMALL)


def test_another_schema_is_refused(tmp_path: Path) -> None:
    write_card(tmp_path, kind="SFT", model=SMALL, updates=3)
    card = json.loads((tmp_path / CARD).read_text())
    (tmp_path / CARD).write_text(json.dumps({**card, "schema": 99}))
    with pytest.raises(CheckpointMismatch, match="schema 99, this engine reads 1"):
        check_card(tmp_path, kind="SFT", model=SMALL)


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"schema": 1, "kind": "RL", "model": {"x": 1}}'])
def test_what_is_no_card_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / CARD).write_text(content)
    with pytest.raises(CheckpointMismatch, match="is no checkpoint of this engine"):
        check_card(tmp_path, kind="RL", model=SMALL)
