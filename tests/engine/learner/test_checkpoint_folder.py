"""Folders that appear complete or not at all, and cards that refuse another model's checkpoint."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.learner.base import CheckpointMismatch
from engine.learner.checkpoint import (
    CARD,
    AtomicFolder,
    ModelCard,
    atomic_folder,
    read_card,
    remove_folder,
    settle,
    settle_all,
    write_card,
)

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


def test_it_is_filled_and_finished_on_another_thread(tmp_path: Path) -> None:
    folder = AtomicFolder(tmp_path / "c")

    def rest() -> None:
        (folder.temporary / "file").write_text("x")
        folder.finish()

    with ThreadPoolExecutor() as other:
        other.submit(rest).result()
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["file"]
    assert list(tmp_path.iterdir()) == [tmp_path / "c"]


def test_an_abandoned_folder_leaves_nothing_and_may_be_abandoned_again(tmp_path: Path) -> None:
    folder = AtomicFolder(tmp_path / "c")
    (folder.temporary / "half").write_text("x")
    folder.abandon()
    folder.abandon()
    assert list(tmp_path.iterdir()) == []


def test_a_finished_folder_is_not_abandoned(tmp_path: Path) -> None:
    folder = AtomicFolder(tmp_path / "c")
    folder.finish()
    folder.abandon()
    assert (tmp_path / "c").is_dir()


def test_a_folder_loses_its_name_before_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "c", "old")

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        remove_folder(tmp_path / "c")
    monkeypatch.undo()
    assert not (tmp_path / "c").exists()
    settle_all(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_whatever_killed_writers_left_in_a_folder_is_cleared_up(tmp_path: Path) -> None:
    write(tmp_path / "b", "good")
    (tmp_path / "b").rename(tmp_path / ".b.old")
    for left in (".a.77.tmp", ".b.77.tmp"):
        (tmp_path / left).mkdir()
    settle_all(tmp_path)
    assert list(tmp_path.iterdir()) == [tmp_path / "b"]


def test_the_own_card_is_accepted_and_gives_what_was_said(tmp_path: Path) -> None:
    write_card(tmp_path, model=SMALL, contents={"updates": 3})
    assert read_card(tmp_path, model=SMALL)["updates"] == 3


def test_another_model_is_refused_and_both_are_named(tmp_path: Path) -> None:
    write_card(tmp_path, model=SMALL, contents={})
    with pytest.raises(CheckpointMismatch) as refused:
        read_card(tmp_path, model=LARGE)
    assert "hidden size 8" in str(refused.value)
    assert "hidden size 16" in str(refused.value)
    assert "10 parameters" in str(refused.value)


def test_another_schema_is_refused_and_both_are_named(tmp_path: Path) -> None:
    (tmp_path / CARD).write_text(json.dumps({"schema": 99}))
    with pytest.raises(CheckpointMismatch, match="schema 99, this engine reads 2"):
        read_card(tmp_path, model=SMALL)


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"schema": 2, "model": {"x": 1}}'])
def test_what_is_no_card_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / CARD).write_text(content)
    with pytest.raises(CheckpointMismatch, match="is no checkpoint of this engine"):
        read_card(tmp_path, model=SMALL)
