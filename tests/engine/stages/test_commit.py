"""What a checkpoint holds, that it is there whole or not at all, and which ones are kept."""

import errno
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.contract.events import StepFinished
from engine.contract.job import JobSpec, Recipe
from engine.contract.stages import SftStage
from engine.learner.base import CheckpointMismatch
from engine.sink.disk import SinkFull
from engine.sink.run_folder import RunFolder
from engine.stages import commit
from engine.stages.commit import Checkpoint
from tests.engine.stages.text_learner import TextLearner

Write = Callable[..., Checkpoint]


def stage(**fields: object) -> SftStage:
    return SftStage.model_validate({"name": "sft", "kind": "sft", "steps": 9, **fields})


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    recipe = Recipe(name="test", model={"kind": "tiny-qwen3"}, stages=(stage(),))  # type: ignore[arg-type]
    job = JobSpec(run_id="r", created_at=0.0, digest=recipe.digest, recipe=recipe)
    made = RunFolder.create(tmp_path / "run", job)
    (made.model / "tokenizer.json").write_text("{}")
    made.next_attempt()
    return made


@pytest.fixture
def write(folder: RunFolder) -> Write:
    def written(step: int, *, learner: TextLearner | None = None, **metrics: float | None) -> Checkpoint:
        writing = commit.begin(
            folder.checkpoint(1, "sft", step),
            learner or TextLearner(f"weights {step}"),
            version=10 + step,
            finished=StepFinished(stage="sft", step=step, metrics=metrics),
            pending={"cursor": step},
            tokenizer_from=folder.model,
        )
        return writing.finish()

    return written


def steps(folder: RunFolder) -> list[int]:
    return [checkpoint.step for checkpoint in commit.all_of(folder, "sft")]


def test_a_checkpoint_is_read_as_it_was_written(write: Write, folder: RunFolder) -> None:
    written = write(3, loss=0.5)
    assert commit.latest(folder, "sft") == written
    assert (written.version, written.pending, written.finished.metrics) == (13, {"cursor": 3}, {"loss": 0.5})


def test_it_holds_model_and_tokenizer_learner_and_state(write: Write) -> None:
    path = write(1).path
    files = sorted(f.relative_to(path).as_posix() for f in path.rglob("*") if f.is_file())
    assert files == ["learner/state", "model/model.safetensors", "model/tokenizer.json", "state.json"]


def test_what_is_written_is_the_learner_when_it_began(folder: RunFolder) -> None:
    learner = TextLearner("then")
    learner.gate.clear()
    finished = StepFinished(stage="sft", step=1)
    path = folder.checkpoint(1, "sft", 1)
    writing = commit.begin(path, learner, version=1, finished=finished, pending={}, tokenizer_from=folder.model)
    learner.text = "later"
    assert commit.latest(folder, "sft") is None
    learner.gate.set()
    assert (writing.finish().learner / "state").read_text() == "then"


def test_a_disk_that_fills_up_is_named_and_leaves_the_older_checkpoint_and_no_litter(
    write: Write, folder: RunFolder
) -> None:
    write(1)
    full = TextLearner(error=OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(SinkFull, match=r"checkpoints/sft: the disk is full"):
        write(2, learner=full)
    parent = folder.checkpoint(1, "sft", 0).parent
    assert [path.name for path in parent.iterdir()] == ["step-00001"]


def test_a_disk_that_is_full_at_once_is_named_too(
    write: Write, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(TextLearner, "save", full)
    with pytest.raises(SinkFull, match="the disk is full"):
        write(1)
    assert list(folder.checkpoint(1, "sft", 0).parent.iterdir()) == []


def test_another_schema_is_refused_and_both_are_named(write: Write) -> None:
    path = write(1).path
    state = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps({**state, "schema": 1}))
    with pytest.raises(CheckpointMismatch, match="schema 1, this engine reads 2"):
        commit.read(path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema": 2, "finished": {}}'])
def test_a_damaged_state_is_refused_and_named(write: Write, content: str) -> None:
    path = write(1).path
    (path / "state.json").write_text(content)
    with pytest.raises(CheckpointMismatch, match=r"step-00001/state.json is damaged"):
        commit.read(path)


def test_what_is_no_json_is_refused_before_anything_is_written(folder: RunFolder) -> None:
    path, finished = folder.checkpoint(1, "sft", 1), StepFinished(stage="sft", step=1)
    for pending in ({"nan": float("nan")}, {"set": {1}}):
        with pytest.raises((ValueError, TypeError), match="JSON"):
            commit.begin(
                path, TextLearner(), version=1, finished=finished, pending=pending, tokenizer_from=folder.model
            )
    assert not path.parent.exists()


def test_what_the_stage_carries_over_is_what_it_was_when_the_checkpoint_began(folder: RunFolder) -> None:
    path, finished, pending = folder.checkpoint(1, "sft", 1), StepFinished(stage="sft", step=1), {"seen": [1]}
    writing = commit.begin(
        path, TextLearner(), version=1, finished=finished, pending=pending, tokenizer_from=folder.model
    )
    pending["seen"].append(2)
    assert writing.finish().pending == commit.read(path).pending == {"seen": [1]}


def test_the_newest_are_kept(write: Write, folder: RunFolder) -> None:
    for step in range(1, 6):
        write(step)
    commit.prune(folder, stage(), keep=2)
    assert steps(folder) == [4, 5]


def test_the_best_is_kept_besides(write: Write, folder: RunFolder) -> None:
    for step, reward in enumerate([0.1, 0.9, 0.3, 0.2], start=1):
        write(step, reward=reward)
    commit.prune(folder, stage(best_by="reward"), keep=1)
    assert steps(folder) == [2, 4]


def test_the_smallest_is_best_after_a_minus(write: Write, folder: RunFolder) -> None:
    for step, loss in enumerate([0.3, 0.1, 0.9, 0.2], start=1):
        write(step, loss=loss)
    commit.prune(folder, stage(best_by="-loss"), keep=1)
    assert steps(folder) == [2, 4]


def test_of_equally_good_ones_the_older_is_kept(write: Write, folder: RunFolder) -> None:
    for step in (1, 2, 3):
        write(step, reward=0.5)
    commit.prune(folder, stage(best_by="reward"), keep=1)
    assert steps(folder) == [1, 3]


@pytest.mark.parametrize("by", ["reward", "-reward"])
def test_a_missing_or_infinite_metric_is_never_best(write: Write, folder: RunFolder, by: str) -> None:
    write(1)
    write(2, reward=float("nan"))
    write(3, reward=float("inf"))
    write(4, reward=float("-inf"))
    write(5, reward=0.0)
    write(6)
    commit.prune(folder, stage(best_by=by), keep=1)
    assert steps(folder) == [5, 6]


def test_without_any_such_metric_nothing_is_best(write: Write, folder: RunFolder) -> None:
    write(1)
    write(2)
    commit.prune(folder, stage(best_by="reward"), keep=1)
    assert steps(folder) == [2]


def test_a_pinned_one_stays_for_good(write: Write, folder: RunFolder) -> None:
    (write(1).path / "PINNED").touch()
    for step in (2, 3):
        write(step)
    commit.prune(folder, stage(), keep=1)
    assert steps(folder) == [1, 3]


def test_the_one_that_is_gone_on_from_stays(write: Write, folder: RunFolder) -> None:
    resumed = write(1)
    for step in (2, 3):
        write(step)
    commit.prune(folder, stage(), keep=1, besides=resumed)
    assert steps(folder) == [1, 3]


def test_other_stages_keep_theirs(write: Write, folder: RunFolder) -> None:
    for step in (1, 2):
        write(step)
    commit.prune(folder, stage(name="other"), keep=1)
    assert steps(folder) == [1, 2]


Score = st.none() | st.floats(allow_nan=False, allow_infinity=False)


@given(scores=st.lists(Score, min_size=1, max_size=8), smallest=st.booleans())
def test_the_best_is_the_first_that_no_other_beats(scores: list[float | None], smallest: bool) -> None:
    checkpoints = [
        Checkpoint(Path(str(n)), n, n, StepFinished(stage="sft", step=n, metrics={"m": score}), {})
        for n, score in enumerate(scores)
    ]
    found = commit.best(checkpoints, "-m" if smallest else "m")
    finite = [score for score in scores if score is not None]
    expected = scores.index(min(finite) if smallest else max(finite)) if finite else None
    assert (found.step if found else None) == expected
