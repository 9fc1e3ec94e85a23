"""Makes the run folder that an engine finds: the job and the datasets that it names. Safe to repeat.

The layout is ``engine.sink.run_folder``'s; what is made here is ``job.json``, ``recipe.toml`` and
``data/<dataset>.jsonl``, the rest is the engine's. Also says whether an engine works in a folder.
"""

import fcntl
import json
import os
import tempfile
from pathlib import Path

from webapp.datasets.models import Problem
from webapp.runs import services
from webapp.runs.models import Run


def prepare(run_id: str) -> None:
    """Write what is not there yet; ``job.json`` last, for a folder that has one is complete. Raises ``OSError``."""
    run = Run.objects.get(pk=run_id)
    folder = Path(run.folder)
    if (folder / "job.json").exists():
        return
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for dataset in sorted(set(run.datasets.values())):
        write_whole(folder / "data" / f"{dataset}.jsonl", problem_lines(dataset))
    write_whole(folder / "recipe.toml", run.toml)
    write_whole(folder / "job.json", services.job_of(run).model_dump_json(indent=2) + "\n")


def problem_lines(dataset_id: str) -> str:
    """The dataset as the engine reads problem files."""
    rows = Problem.objects.filter(dataset=dataset_id).values_list("text", "answer")
    return "".join(json.dumps({"problem": text, "answer": answer}) + "\n" for text, answer in rows.iterator())


def write_whole(path: Path, text: str) -> None:
    """All of the file or nothing, also when two tasks write it at the same time."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(text)
        temporary.chmod(0o644)  # mkstemp gives 0600; an engine may run as somebody else
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def engine_holds(folder: Path) -> bool:
    """Whether an engine works in the folder: it holds a lock there as long as it lives."""
    try:
        descriptor = os.open(folder / "run.lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
