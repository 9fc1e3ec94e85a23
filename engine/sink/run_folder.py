"""The run folder: where everything of one run lies, and who may write there.

    job.json  recipe.toml  run.lock  report.html  model/  data/  logs/
    attempts/0001/events.jsonl
    attempts/0001/trajectories/<stage>/step-00012.parquet
    attempts/0001/checkpoints/<stage>/step-00012/

The folder alone tells the whole run. Leaves out the files' contents: ``event_log.py`` and
``trajectories.py``.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from engine.contract.job import JobSpec, describe
from engine.sink.disk import fsync_folder, replace_file

SCHEMA_VERSION = 1

_LOOK_S = 0.1


class RunFolderError(Exception):
    """A folder that cannot be used as asked; the message says what to do instead."""


class RunFolderBusy(RunFolderError):
    """Another engine works in the folder."""


class RunFolder:
    """Paths and ownership of one run's folder. Made by ``create`` or ``open``, which check it first."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, job: JobSpec, recipe_toml: str | None = None) -> Self:
        """Lay out a new folder. One with anything in it is refused: someone may want that run back."""
        if path.exists() and not path.is_dir():
            raise RunFolderError(f"{path} is a file; a run needs a folder of its own")
        if path.is_dir() and any(path.iterdir()):
            raise RunFolderError(f"{path} is not empty: use --resume to go on with that run, or name another folder")
        folder = cls(path)
        folder.lay_out()
        if recipe_toml is not None:
            replace_file(folder.recipe_toml, lambda temporary: _write_text(temporary, recipe_toml))
        # job.json last: a folder that has one is complete.
        replace_file(folder.job_json, lambda temporary: _write_text(temporary, job.model_dump_json(indent=2) + "\n"))
        return folder

    @classmethod
    def open(cls, path: Path) -> Self:
        """An existing run's folder. Does not need what the job names, such as a model elsewhere."""
        folder = cls(path)
        version = folder._raw_job.get("schema_version")
        if version != SCHEMA_VERSION:
            raise RunFolderError(
                f"{folder.job_json} has schema version {version!r}, this engine reads {SCHEMA_VERSION}: "
                "use the Starloom that made the folder"
            )
        return folder

    def lay_out(self) -> None:
        """Make the sub-folders that are missing: who launches a run need not make them."""
        for part in (self.model, self.data, self.logs, self.path / "attempts"):
            part.mkdir(parents=True, exist_ok=True)

    @cached_property
    def _raw_job(self) -> dict[str, Any]:
        try:
            raw = json.loads(self.job_json.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise RunFolderError(f"{self.path} is no run folder: it has no job.json") from error
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise RunFolderError(f"{self.job_json} is not JSON: {error}") from error
        if not isinstance(raw, dict):
            raise RunFolderError(f"{self.job_json} should hold a JSON object, it holds a {type(raw).__name__}")
        return raw

    @cached_property
    def job(self) -> JobSpec:
        """The job, checked in full (a model folder that it names has to be there)."""
        try:
            return JobSpec.model_validate_json(json.dumps(self._raw_job))
        except ValidationError as error:
            raise RunFolderError(f"{self.job_json}:\n" + "\n".join(f"  {line}" for line in describe(error))) from error

    @contextmanager
    def lock(self, wait_s: float = 0.0) -> Iterator[None]:
        """Own the folder for the life of this process; a second engine is refused with the pid of the first.

        ``wait_s`` is how long an engine that is about to end may take. The kernel drops the lock when the process
        ends, however it ends, so nothing stale is ever left. A child that is forked without exec shares it until it
        ends.
        """
        descriptor = os.open(self.path / "run.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._take_within(descriptor, wait_s)
            yield
        finally:
            os.close(descriptor)

    def _take_within(self, descriptor: int, wait_s: float) -> None:
        give_up = time.monotonic() + wait_s
        while True:
            try:
                self._take(descriptor)
            except RunFolderBusy:
                if time.monotonic() >= give_up:
                    raise
                time.sleep(_LOOK_S)  # flock has no time-out of its own
            else:
                return

    def _take(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise RunFolderBusy(f"{self.path}: an engine is already running here, pid {pid}; stop it first") from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)

    def next_attempt(self) -> int:
        """Make the folder of a new attempt. ``mkdir`` decides: two attempts never get the same number."""
        while True:
            number = max(self.attempts(), default=0) + 1
            try:
                self.attempt(number).mkdir(parents=True)
            except FileExistsError:
                continue  # another process took this number since we looked
            fsync_folder(self.path / "attempts")
            return number

    def attempts(self) -> list[int]:
        """Numbers of the attempts, ascending."""
        root = self.path / "attempts"
        names = [entry.name for entry in root.iterdir() if entry.is_dir()] if root.is_dir() else []
        return sorted(int(name) for name in names if name.isdecimal())

    @property
    def job_json(self) -> Path:
        return self.path / "job.json"

    @property
    def recipe_toml(self) -> Path:
        return self.path / "recipe.toml"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def attempt(self, number: int) -> Path:
        return self.path / "attempts" / f"{number:04d}"

    def events(self, attempt: int) -> Path:
        return self.attempt(attempt) / "events.jsonl"

    def trajectories(self, attempt: int, stage: str, step: int) -> Path:
        return self.attempt(attempt) / "trajectories" / stage / f"step-{step:05d}.parquet"

    def checkpoint(self, attempt: int, stage: str, step: int) -> Path:
        return self.attempt(attempt) / "checkpoints" / stage / f"step-{step:05d}"

    def relative(self, path: Path) -> str:
        """A path in the folder as events name it, so that the folder can be moved."""
        return path.relative_to(self.path).as_posix()

    def inside(self, name: str) -> Path:
        """The file that an event names; refused when it leads out, as folders are passed around."""
        path = (self.path / name).resolve()
        if not path.is_relative_to(self.path.resolve()):
            raise RunFolderError(f"{name!r} leads out of the run folder {self.path}")
        return path


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
