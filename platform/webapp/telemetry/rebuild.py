"""A run from its folder alone: the run's row from ``job.json``, everything else from the events.

Leaves out reading the folder (``engine.interop.run_folder``) and the command line (``management/commands/ingest.py``).
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from django.db import transaction

from engine.contract.delivery import Batch
from engine.contract.job import JobSpec
from engine.contract.problems import FileProblems
from engine.contract.stages import EvalStage, RlStage
from engine.interop.run_folder import read_job
from webapp.accounts.models import Project, User
from webapp.config.ids import derived_id
from webapp.datasets.models import Dataset
from webapp.runs import services
from webapp.runs.folders import engine_holds
from webapp.runs.models import Run, StageRun, Transition
from webapp.runs.states import WITH_ENGINE, State
from webapp.telemetry.door import LATEST, storable
from webapp.telemetry.ingest import batches_taken_in

NO_END = "no end was told"
_OURS = re.compile(r"run_[0-9a-hjkmnp-tv-z]{26}")


class NotAdopted(Exception):
    """A folder that cannot become a run here; the message says why and what to do."""


def adopt(folder: Path, *, owner: User, project: Project | None = None) -> Run:
    """The run of a folder, made if it is not there. Raises ``NotAdopted`` and ``RunFolderUnreadable``."""
    folder = folder.resolve()
    job = read_job(folder)
    if not 0 <= job.created_at < LATEST:
        raise NotAdopted(f"{folder / 'job.json'}: created_at: expected Unix time in seconds, got {job.created_at}")
    run_id = job.run_id if _OURS.fullmatch(job.run_id) else derived_id("run", job.created_at, job.run_id)
    with transaction.atomic():
        known = Run.objects.select_for_update(no_key=True).filter(pk=run_id).first()
        return make_run(run_id, job, folder, owner, project) if known is None else found_again(known, folder)


def make_run(run_id: str, job: JobSpec, folder: Path, owner: User, project: Project | None) -> Run:
    """It begins as one that has told nothing; what it tells then counts."""
    from webapp.accounts.services import default_project

    toml = folder / "recipe.toml"
    run = Run(
        id=run_id,
        project=project or default_project(owner),
        name=storable(job.recipe.name),
        spec=storable(job.recipe.model_dump(mode="json")),
        toml=storable(toml.read_text(encoding="utf-8", errors="replace")) if toml.exists() else "",
        digest=job.digest[:64],
        datasets=datasets_of(job),
        folder=str(folder),
        state=State.failed,
        state_reason=NO_END,
        created_by=owner,
        created_at=datetime.fromtimestamp(job.created_at, UTC),
    )
    stages = services.planned_stages(run, job.recipe)
    run.total_steps = sum(stage.steps for stage in stages if stage.kind != "eval")
    run.save(force_insert=True)
    StageRun.objects.bulk_create(stages)
    reason = f"read in from {folder}"
    Transition.objects.create(run=run, before="", after=run.state, reason=reason, actor=owner.username)
    return run


def datasets_of(job: JobSpec) -> dict[str, str]:
    """Stage name -> dataset, where its problems lie in a file named after one that is here."""
    named = {
        stage.name: stage.problems.path.stem
        for stage in job.recipe.stages
        if isinstance(stage, RlStage | EvalStage) and isinstance(stage.problems, FileProblems)
    }
    known = set(Dataset.objects.filter(pk__in=named.values()).values_list("pk", flat=True))
    return {stage: dataset for stage, dataset in named.items() if dataset in known}


def found_again(run: Run, folder: Path) -> Run:
    """A folder may have been moved; two folders of the same run cannot both be it."""
    if run.folder != str(folder):
        if (Path(run.folder) / "job.json").exists():
            raise NotAdopted(f"{run.pk} is there already, with the folder {run.folder}: remove one of the two folders")
        run.folder = str(folder)
        services.save_change(run)
    return run


def read_in(run: Run) -> Iterator[Batch]:
    """Take in what is not there yet, batch by batch; in the end a run whose engine is gone unheard has failed."""
    yield from batches_taken_in(run.pk)
    run.refresh_from_db()
    if run.state in WITH_ENGINE - {State.starting} and not engine_holds(Path(run.folder)):
        services.engine_gone(run.pk, run.launches, NO_END)
        run.refresh_from_db()
