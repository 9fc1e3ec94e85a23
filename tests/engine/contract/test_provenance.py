"""Code, packages and data that a run is determined by: taken when its job is made, compared when it is resumed."""

import hashlib
from importlib.metadata import Distribution
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.contract import provenance
from engine.contract.job import Provenance, Recipe, RecipeError
from engine.contract.provenance import differences, digest_of_code, digest_of_packages, new_job, provenance_of

THEN = Provenance(code="a" * 64, lock="b" * 64, data={"/p.jsonl": "c" * 64})
Found = list[SimpleNamespace]


def recipe(problems: Path | None = None) -> Recipe:
    stage: dict[str, object] = {"name": "exam", "kind": "eval", "max_response_tokens": 8}
    if problems is not None:
        stage["problems"] = {"kind": "file", "path": str(problems)}
    return Recipe.model_validate({"name": "test", "model": {"kind": "tiny-qwen3"}, "stages": [stage]})


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    for name in ("engine/a.py", "engine/inner/b.py", "sandbox/c.py", "other/d.py", "engine/e.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


def fresh(root: Path) -> str:
    return digest_of_code.__wrapped__(root)


# --- a job ---


def test_a_job_carries_the_provenance_of_its_recipe() -> None:
    job = new_job(recipe(), "run-1")
    assert (job.run_id, job.digest, job.provenance) == ("run-1", recipe().digest, provenance_of(recipe()))
    assert new_job(recipe(), "run-1", created_at=1.5).created_at == 1.5


def test_problem_files_are_known_by_the_digest_of_their_bytes(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b"problems")
    job = new_job(recipe(path), "run-1")
    assert job.provenance is not None
    assert job.provenance.data == {str(path): hashlib.sha256(b"problems").hexdigest()}


def test_a_problem_file_that_cannot_be_read_is_refused_when_the_job_is_made(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as refused:
        new_job(recipe(tmp_path / "gone.jsonl"), "run-1")
    expected = f"stages.0.problems.path: {tmp_path}/gone.jsonl cannot be read: No such file or directory"
    assert refused.value.problems == [expected]


# --- differences ---


def test_nothing_differs_from_itself() -> None:
    assert differences(THEN, THEN) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"code": "d" * 64}, "code: another engine (digest aaaaaaaaaaaa -> dddddddddddd)"),
        ({"lock": "d" * 64}, "packages: others are installed, or other versions (digest bbbbbbbbbbbb -> dddddddddddd)"),
        ({"data": {"/p.jsonl": "d" * 64}}, "data: /p.jsonl has changed (digest cccccccccccc -> dddddddddddd)"),
        ({"data": {}}, "data: /p.jsonl cannot be read any more"),
    ],
)
def test_a_difference_is_told_in_words(change: dict[str, object], said: str) -> None:
    assert differences(THEN, THEN.model_copy(update=change)) == [said]


def test_a_problem_file_that_is_gone_on_resume_is_a_difference_and_no_failure(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b"problems")
    then = provenance_of(recipe(path))
    path.unlink()
    assert differences(then, provenance_of(recipe(path))) == [f"data: {path} cannot be read any more"]


# --- digests ---


@pytest.mark.parametrize("name", ["engine/a.py", "engine/inner/b.py", "sandbox/c.py"])
def test_every_source_counts(sources: Path, name: str) -> None:
    before = fresh(sources)
    (sources / name).write_text("changed")
    assert fresh(sources) != before


def test_a_renamed_source_is_another(sources: Path) -> None:
    before = fresh(sources)
    (sources / "engine/a.py").rename(sources / "engine/z.py")
    assert fresh(sources) != before


@pytest.mark.parametrize("name", ["other/d.py", "engine/e.txt"])
def test_nothing_else_counts(sources: Path, name: str) -> None:
    before = fresh(sources)
    (sources / name).write_text("changed")
    assert fresh(sources) == before


def test_the_place_of_the_sources_does_not_count(sources: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    moved.mkdir()
    before = fresh(sources)
    for package in ("engine", "sandbox"):
        (sources / package).rename(moved / package)
    assert fresh(moved) == before


def test_the_digest_of_the_code_is_of_this_code() -> None:
    assert (provenance.SOURCES / "engine/contract/provenance.py").samefile(provenance.__file__)


def installed(**versions: str) -> Found:
    return [SimpleNamespace(metadata={"Name": name}, version=version) for name, version in versions.items()]


def packages(found: Found, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(provenance, "distributions", lambda: found)
    return digest_of_packages.__wrapped__()


def test_another_version_is_another_lock_and_the_order_and_spelling_of_names_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = packages(installed(Torch_Vision="1", torch="2"), monkeypatch)
    assert packages(installed(**{"torch": "2", "torch-vision": "1"}), monkeypatch) == one
    assert packages(installed(**{"torch": "2.1", "torch-vision": "1"}), monkeypatch) != one


def test_the_packages_are_those_that_are_installed() -> None:
    assert isinstance(next(iter(provenance.distributions())), Distribution)
