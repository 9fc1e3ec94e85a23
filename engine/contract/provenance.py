"""What a run is determined by besides its recipe: code, packages, data. Taken when a job is made, compared on resume.

A difference is something to be told, never a reason to refuse: whoever mends a bug resumes on other code on purpose.
Leaves out the machine (processor, GPU, driver) and the files of a starting model.
"""

import hashlib
import re
import time
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

from engine.contract.job import JobSpec, Provenance, Recipe, RecipeError
from engine.contract.problems import FileProblems
from engine.contract.stages import EvalStage, RlStage

SOURCES = Path(__file__).parents[2]
PACKAGES = ("engine", "sandbox")


def new_job(recipe: Recipe, run_id: str, *, created_at: float | None = None) -> JobSpec:
    """A job made now (or at ``created_at``, Unix seconds), with its provenance.

    Raises ``RecipeError`` that names every problem file that cannot be read.
    """
    data, unreadable = _data_of(recipe)
    if unreadable:
        raise RecipeError(recipe.name, unreadable)
    return JobSpec(
        run_id=run_id,
        created_at=time.time() if created_at is None else created_at,
        digest=recipe.digest,
        recipe=recipe,
        provenance=Provenance(code=digest_of_code(SOURCES), lock=digest_of_packages(), data=data),
    )


def provenance_of(recipe: Recipe) -> Provenance:
    """As it is now. A problem file that cannot be read is left out, for ``differences`` to tell."""
    data, _ = _data_of(recipe)
    return Provenance(code=digest_of_code(SOURCES), lock=digest_of_packages(), data=data)


def differences(then: Provenance, now: Provenance) -> list[str]:
    """What is no longer as it was, in words; empty if nothing is."""
    found = []
    if then.code != now.code:
        found.append(f"code: another engine ({_change(then.code, now.code)})")
    if then.lock != now.lock:
        found.append(f"packages: others are installed, or other versions ({_change(then.lock, now.lock)})")
    for path, digest in then.data.items():
        if path not in now.data:
            found.append(f"data: {path} cannot be read any more")
        elif digest != now.data[path]:
            found.append(f"data: {path} has changed ({_change(digest, now.data[path])})")
    return found


def _change(then: str, now: str) -> str:
    return f"digest {then[:12]} -> {now[:12]}"


@cache
def digest_of_code(root: Path) -> str:
    """SHA-256 over names and contents of the engine's and the sandbox's sources under ``root``; taken once."""
    total = hashlib.sha256()
    for path in sorted(path for package in PACKAGES for path in (root / package).rglob("*.py")):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(root).as_posix()} {content}\n".encode())
    return total.hexdigest()


@cache
def digest_of_packages() -> str:
    """SHA-256 over ``name==version`` of what is installed beside this interpreter; taken once."""
    installed = {_requirement(str(found.metadata["Name"]), found.version) for found in distributions()}
    return hashlib.sha256("\n".join(sorted(installed)).encode()).hexdigest()


def _requirement(name: str, version: str) -> str:
    """With the name as package indexes compare it: https://peps.python.org/pep-0503/#normalized-names."""
    return f"{re.sub(r'[-_.]+', '-', name).lower()}=={version}"


def _data_of(recipe: Recipe) -> tuple[dict[str, str], list[str]]:
    """Digests of the problem files by path, and one line for each that cannot be read."""
    digests, unreadable = {}, []
    for place, stage in enumerate(recipe.stages):
        if isinstance(stage, RlStage | EvalStage) and isinstance(stage.problems, FileProblems):
            path = stage.problems.path
            try:
                with path.open("rb") as file:
                    digests[str(path)] = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                unreadable.append(f"stages.{place}.problems.path: {path} cannot be read: {error.strerror}")
    return digests, unreadable
