"""The run folder: made once, opened with care, owned by one engine."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from engine.contract.job import JobSpec
from engine.sink.run_folder import RunFolder, RunFolderBusy, RunFolderError

ROOT = Path(__file__).parents[3]


def test_what_was_created_can_be_opened(tmp_path: Path, job: JobSpec) -> None:
    RunFolder.create(tmp_path / "run", job, 'name = "laptop"\n')
    folder = RunFolder.open(tmp_path / "run")
    assert folder.job == job
    assert folder.recipe_toml.read_text() == 'name = "laptop"\n'
    assert all(part.is_dir() for part in (folder.model, folder.data, folder.logs))


def test_an_empty_folder_is_taken(tmp_path: Path, job: JobSpec) -> None:
    assert RunFolder.create(tmp_path, job).job == job


def test_a_folder_with_anything_in_it_is_refused_and_untouched(tmp_path: Path, job: JobSpec) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="not empty: use --resume"):
        RunFolder.create(tmp_path, job)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_is_no_run_folder(tmp_path: Path, job: JobSpec) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(RunFolderError, match="is a file"):
        RunFolder.create(tmp_path / "run", job)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no run folder: it has no job.json"),
        ("{", "is not JSON"),
        ("[]", "should hold a JSON object, it holds a list"),
        ('{"schema_version": 2}', "schema version 2, this engine reads 1"),
        ("{}", "schema version None"),
    ],
)
def test_other_folders_are_refused_with_the_reason(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "job.json").write_text(content)
    with pytest.raises(RunFolderError, match=message):
        RunFolder.open(tmp_path)


def test_a_damaged_job_names_its_wrong_fields(folder: RunFolder) -> None:
    raw = json.loads(folder.job_json.read_text())
    raw["recipe"]["seed"] = -1
    del raw["run_id"]
    folder.job_json.write_text(json.dumps(raw))
    with pytest.raises(RunFolderError, match=r"(?s)run_id: Field required.*recipe\.seed"):
        _ = RunFolder.open(folder.path).job


def test_attempts_never_share_a_folder(folder: RunFolder) -> None:
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda _: RunFolder.open(folder.path).next_attempt(), range(40)))
    assert sorted(numbers) == folder.attempts() == list(range(1, 41))


def test_paths(folder: RunFolder) -> None:
    path = folder.trajectories(1, "rl-1", 12)
    assert folder.relative(path) == "attempts/0001/trajectories/rl-1/step-00012.parquet"
    assert folder.inside(folder.relative(path)) == path
    assert folder.relative(folder.checkpoint(2, "sft", 50)) == "attempts/0002/checkpoints/sft/step-00050"


@pytest.mark.parametrize("name", ["../other/job.json", "/etc/passwd"])
def test_a_name_that_leads_out_is_refused(folder: RunFolder, name: str) -> None:
    with pytest.raises(RunFolderError, match="leads out"):
        folder.inside(name)


def test_a_second_engine_is_refused_with_the_pid_of_the_first(folder: RunFolder) -> None:
    program = (
        "import sys; from pathlib import Path; from engine.sink.run_folder import RunFolder\n"
        "with RunFolder.open(Path(sys.argv[1])).lock():\n"
        "    print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(folder.path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "locked\n"
        with pytest.raises(RunFolderBusy, match=f"pid {first.pid}"), folder.lock():
            pass
        first.kill()
        first.wait()
    with folder.lock():  # the kernel gave it back when the first was killed
        pass


def test_the_lock_can_be_taken_again_after_it_is_given_back(folder: RunFolder) -> None:
    for _ in range(2):
        with folder.lock():
            pass


def test_an_engine_that_is_about_to_end_is_waited_for(folder: RunFolder) -> None:
    with ThreadPoolExecutor(1) as pool, ExitStack() as first:
        first.enter_context(folder.lock())

        def second() -> bool:
            with RunFolder.open(folder.path).lock(wait_s=30):
                return True

        waiting = pool.submit(second)
        assert not waiting.done()
        first.close()
        assert waiting.result(10)


def test_missing_sub_folders_are_made_and_others_stay(tmp_path: Path, folder: RunFolder) -> None:
    for part in (folder.model, folder.logs, folder.path / "attempts"):
        part.rmdir()
    (folder.data / "problems.jsonl").write_text("mine")
    RunFolder.open(folder.path).lay_out()
    assert folder.model.is_dir()
    assert folder.logs.is_dir()
    assert (folder.data / "problems.jsonl").read_text() == "mine"
