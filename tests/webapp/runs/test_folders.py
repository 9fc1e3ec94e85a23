"""The folder that an engine finds: whole or not there, and safe to make again."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.interop.run_folder import read_job
from engine.sink.run_folder import RunFolder
from tests.webapp.support import make_run
from webapp.datasets.models import Dataset, Problem
from webapp.runs import folders, services
from webapp.runs.folders import engine_holds, prepare, write_whole
from webapp.runs.models import Run

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_run(folder=str(tmp_path / "run"))


def test_the_engine_finds_its_job_and_the_recipe_as_written(run: Run) -> None:
    prepare(run.pk)
    assert read_job(Path(run.folder)) == services.job_of(run)
    assert RunFolder.open(Path(run.folder)).recipe_toml.read_text() == run.toml


def test_datasets_are_files_of_the_folder(run: Run) -> None:
    dataset = Dataset.objects.create(
        project=run.project, name="d", version=1, sha256="0" * 64, count=2, created_by=run.created_by
    )
    rows = [("1 + 1?", "2"), ("“ü” \u2028?", "\\frac{1}{2}")]
    for place, (text, answer) in enumerate(rows, start=1):
        Problem.objects.create(dataset=dataset, position=place, text=text, answer=answer)
    Run.objects.filter(pk=run.pk).update(datasets={"rl": dataset.pk, "eval": dataset.pk})
    prepare(run.pk)
    file = Path(run.folder) / "data" / f"{dataset.pk}.jsonl"
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(row["problem"], row["answer"]) for row in found] == rows
    problems = read_job(Path(run.folder)).recipe.stages[1].problems  # type: ignore[union-attr]
    assert str(problems.path) == str(file)  # type: ignore[union-attr]


def test_a_folder_that_is_there_is_left_as_it_is(run: Run) -> None:
    prepare(run.pk)
    (Path(run.folder) / "job.json").write_text("the engine's by now")
    prepare(run.pk)
    assert (Path(run.folder) / "job.json").read_text() == "the engine's by now"


def test_the_job_comes_last(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a job is complete; one without is made anew."""
    written: list[str] = []

    def note(path: Path, text: str) -> None:
        written.append(path.name)

    monkeypatch.setattr(folders, "write_whole", note)
    prepare(run.pk)
    assert written == ["recipe.toml", "job.json"]


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_whole(tmp_path / "a", "old")

    def full(*args: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        write_whole(tmp_path / "a", "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "old")]


def test_whether_an_engine_works_in_a_folder(run: Run) -> None:
    folder = RunFolder.create(Path(run.folder), services.job_of(run))
    assert not engine_holds(folder.path)
    with folder.lock():
        assert engine_holds(folder.path)
    assert not engine_holds(folder.path)
    with folder.lock():  # to have looked does not hold it
        pass
