"""The only writer of a run's state: every change in one place, in one transaction, with reason and actor.

Views, tasks, the agent and ingest only call in here. Who changes a run locks its row first (``locked``), changes it in
memory and saves it once (``save_change``), all in one transaction: nobody saves what he read before another's change.
Leaves out the rows made from events (``telemetry.fold``) and how an engine is started (``launchers.py``).
"""

import json
import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from pydantic import ValidationError

from engine.contract.base import visible
from engine.contract.commands import Command as EngineCommand
from engine.contract.commands import CommandKind
from engine.contract.job import JobSpec, Recipe
from engine.contract.models import FolderModel
from engine.contract.problems import FileProblems
from engine.contract.provenance import new_job
from engine.contract.stages import EvalStage, RlStage
from engine.interop.run_folder import RunFolderUnreadable
from webapp.accounts.models import Project, User
from webapp.config.ids import new_id
from webapp.datasets.models import Dataset
from webapp.recipes.models import RecipeVersion
from webapp.recipes.pointers import errors_by_pointer, too_many_steps, unstorable
from webapp.runs import tasks, tokens
from webapp.runs.launchers import Launch
from webapp.runs.models import Attempt, Command, Run, StageRun, Transition
from webapp.runs.states import ALLOWED, ENDED, State, allowed_commands, may_change

logger = logging.getLogger(__name__)

PLATFORM, ENGINE = "platform", "engine"


class Refused(Exception):
    """Something that cannot be done now; the message says why, ``code`` is for programs."""

    def __init__(self, message: str, code: str = "refused") -> None:
        super().__init__(message)
        self.code = code


class WrongFields(Exception):
    """Fields that cannot be: JSON pointer into the recipe -> what was expected."""

    def __init__(self, errors: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{place}: {said}" for place, said in errors.items()))
        self.errors = dict(errors)


def check_recipe(data: Mapping[str, Any]) -> Recipe:
    """A recipe from JSON-like data; relative paths of models are taken from the folder for models. Raises
    ``WrongFields`` with a pointer for every wrong field."""
    try:
        recipe = Recipe.model_validate(data, context={"folder": settings.VAR.models})
    except ValidationError as error:
        raise WrongFields({**errors_by_pointer(error, data), **foreign_model(data)}) from error
    except OSError as error:
        raise WrongFields({"/model/path": f"cannot be looked at: {error.strerror}"}) from error
    if wrong := {**dict(unstorable(recipe)), **too_many_steps(recipe.stages)}:
        raise WrongFields(wrong)
    refuse_foreign_paths(recipe)
    return recipe


def refuse_foreign_paths(recipe: Recipe) -> None:
    """Problems come from datasets, models from the folder for models: a recipe must not read the server's files."""
    wrong = {
        f"/stages/{place}/problems/path": "files cannot be named here: upload them as a dataset and choose it"
        for place, stage in enumerate(recipe.stages)
        if isinstance(stage, RlStage | EvalStage) and isinstance(stage.problems, FileProblems)
    }
    if isinstance(recipe.model, FolderModel):
        wrong |= foreign_model({"model": {"kind": "folder", "path": str(recipe.model.path)}})
    if wrong:
        raise WrongFields(wrong)


def foreign_model(data: Mapping[str, Any]) -> dict[str, str]:
    """What is said of a model folder that lies elsewhere: the same whether it exists or not."""
    model = data.get("model") if isinstance(data, Mapping) else None
    path = model.get("path") if isinstance(model, Mapping) and model.get("kind") == "folder" else None
    models: Path = settings.VAR.models.resolve()
    if not isinstance(path, str) or "\0" in path or (models / path).resolve().is_relative_to(models):
        return {}
    return {"/model/path": f"model folders have to lie in {models}"}


def create_run(
    *,
    user: User,
    project: Project,
    recipe: Recipe,
    toml: str,
    name: str = "",
    version: RecipeVersion | None = None,
    datasets: Mapping[str, Dataset] | None = None,
    run_id: str | None = None,
) -> Run:
    """A run of ``recipe``, queued. ``datasets``: stage name -> the dataset its problems come from. ``run_id``: an id
    of ours that was given out before; whoever comes with it again finds the run that is there."""
    chosen = dict(datasets or {})
    refuse_wrong_datasets(recipe, project, chosen)
    run_id = run_id or new_id("run")
    values = {
        "project": project,
        "name": name or recipe.name,
        "recipe_version": version,
        "spec": recipe.model_dump(mode="json"),
        "toml": toml,
        "digest": recipe.digest,
        "datasets": {stage: dataset.id for stage, dataset in chosen.items()},
        "folder": str(settings.VAR.runs / run_id),
        "created_by": user,
        "total_steps": sum(stage.steps for stage in recipe.stages if not isinstance(stage, EvalStage)),
    }
    with transaction.atomic():
        run, made = Run.objects.get_or_create(id=run_id, defaults=values)
        if not made:
            return run
        StageRun.objects.bulk_create(planned_stages(run, recipe))
        Transition.objects.create(run=run, before="", after=State.queued, reason="created", actor=user.username)
        enqueue(run)
    return run


def refuse_wrong_datasets(recipe: Recipe, project: Project, datasets: Mapping[str, Dataset]) -> None:
    asking = {stage.name for stage in recipe.stages if isinstance(stage, RlStage | EvalStage)}
    wrong = {f"/datasets/{name}": "no rl or eval stage of this name" for name in datasets if name not in asking}
    for name, dataset in datasets.items():
        if dataset.project_id != project.pk:
            wrong[f"/datasets/{name}"] = "no such dataset in this project"
    if wrong:
        raise WrongFields(wrong)


def planned_stages(run: Run, recipe: Recipe) -> list[StageRun]:
    """The run's stages; ``offset`` puts the steps of all of them on one axis."""
    planned, offset = [], 0
    for position, stage in enumerate(recipe.stages):
        steps = stage.count if isinstance(stage, EvalStage) else stage.steps
        planned.append(
            StageRun(run=run, position=position, name=stage.name, kind=stage.kind, steps=steps, offset=offset)
        )
        offset += 0 if isinstance(stage, EvalStage) else steps
    return planned


def job_of(run: Run) -> JobSpec:
    """What the engine is given: the recipe, with datasets as files of the run folder, which are there already."""
    spec = json.loads(json.dumps(run.spec))
    for stage in spec["stages"]:
        if dataset := run.datasets.get(stage["name"]):
            stage["problems"] = {"kind": "file", "path": str(Path(run.folder) / "data" / f"{dataset}.jsonl")}
    return new_job(Recipe.model_validate(spec), run.id, created_at=run.created_at.timestamp())


def locked(run_id: str) -> Run:
    """The run's row, locked until the end of the transaction. Raises ``Run.DoesNotExist``."""
    # What never changes is not written again with every batch: it is deferred, so `save` leaves it out.
    return Run.objects.select_for_update(no_key=True).defer("spec", "toml").get(pk=run_id)


def change_state(
    run: Run, after: State, *, reason: str, actor: str, heard: bool = False, at: datetime | None = None
) -> None:
    """Move a locked run to another state and record that; the caller saves the run. Raises ``Refused``."""
    before = State(run.state)
    if before == after:
        return
    if not may_change(before, after, heard=heard):
        raise Refused(f"a run that is {before} cannot become {after}", code="wrong_state")
    when = at or timezone.now()
    run.state, run.state_reason, run.state_at = after, reason, when
    run.ended_at = when if after in ENDED else None
    if after is State.running and run.started_at is None:
        run.started_at = when
    if after in ENDED:
        run.phase = ""
        give_up_commands(run, f"the run is {after}")
    Transition.objects.create(run=run, before=before, after=after, reason=reason, actor=actor, at=when)


def hear(run: Run, after: State, *, at: datetime, reason: str = "") -> None:
    """Believe what the engine tells of a locked run; the caller saves it. A run that was asked to stop stays
    `stopping` until its engine has ended."""
    if run.state == State.stopping and after not in ENDED:
        return
    if (run.state, after) in ((State.stopping, State.stopped), (State.pausing, State.paused)):
        reason = run.state_reason  # why somebody asked says more than that somebody did
    change_state(run, after, reason=reason, actor=ENGINE, heard=True, at=at)


def hear_started(run: Run, *, at: datetime) -> None:
    """The engine of a locked run is at work; a pause that was asked for while it started still waits for it."""
    pause = waiting(run).filter(kind="pause").first()
    if pause is None:
        hear(run, State.running, at=at)
    elif run.state != State.pausing:
        hear(run, State.running, at=at)
        _pause(run, pause)


def save_change(run: Run, tell: Callable[[str], None] | None = None) -> None:
    """Save a locked run as its next revision; live pages are told after commit."""
    run.revision += 1
    run.save()
    transaction.on_commit(lambda: (tell or announce)(run.pk))


def announce(run_id: str) -> None:
    """Tell live pages that something of the run is new (which asks them to look, and carries nothing)."""
    from webapp.live.announce import announce_run

    announce_run(run_id)


def enqueue(run: Run) -> None:
    """Have the engine started after commit; a roll-back starts nothing. Valkey gone: `care` asks again."""
    transaction.on_commit(lambda: tasks.start_run.delay(run.pk), robust=True)


def next_launch(run_id: str) -> Launch | None:
    """Turn a queued run into a starting one and say what to start; for one that is already starting, the same launch
    again (a task may be delivered twice). None when there is nothing to start."""
    with transaction.atomic():
        run = locked(run_id)
        if run.state == State.queued:
            run.launches += 1
            run.past_attempts = run.attempt
            run.heartbeat_at = timezone.now()
            change_state(run, State.starting, reason="", actor=PLATFORM)
            save_change(run)
        elif run.state != State.starting:
            return None
    token = tokens.make(run.pk, run.launches)
    environment = {"STARLOOM_PLATFORM_URL": settings.PLATFORM_URL, "STARLOOM_RUN_TOKEN": token}
    return Launch(run.pk, run.launches, Path(run.folder), environment)


def could_not_start(run_id: str, reason: str) -> None:
    """Tell that no engine was started, for good."""
    with transaction.atomic():
        run = locked(run_id)
        if run.state in (State.queued, State.starting):
            change_state(run, State.failed, reason=reason, actor=PLATFORM)
            save_change(run)


def send_command(run_id: str, kind: str, *, by: str, reason: str = "") -> Command:
    """Ask something of a run. The command is done at once where no engine is needed, else it waits for the engine.

    The same command that waits already is returned, not doubled. Raises ``Refused`` when it makes no sense now.
    """
    with transaction.atomic():
        run = locked(run_id)
        same = waiting(run).filter(kind=kind).first()
        if same is not None:
            return same
        state = State(run.state)
        if kind not in ALLOWED or state not in ALLOWED[kind]:
            may = ", ".join(allowed_commands(state)) or "nothing"
            raise Refused(f"{kind}: the run is {state}; possible now: {may}", code="wrong_state")
        command = Command(run=run, kind=kind, by=by, reason=visible(reason), launch=run.launches)
        _COMMANDS[kind](run, command)
        command.save()
        save_change(run)
    return command


def _done(command: Command) -> None:
    command.status, command.ended_at = Command.Status.applied, timezone.now()


def _stop(run: Run, command: Command) -> None:
    """A queued run is stopped at once; an engine stops at the end of its step."""
    if run.state == State.queued:
        _done(command)
        change_state(run, State.stopped, reason=command.reason or f"stopped by {command.by}", actor=command.by)
    else:
        change_state(run, State.stopping, reason=command.reason or f"asked by {command.by}", actor=command.by)


def _pause(run: Run, command: Command) -> None:
    """While an engine starts, the command waits; the state is told when the run is running."""
    if run.state == State.running:
        change_state(run, State.pausing, reason=command.reason or f"asked by {command.by}", actor=command.by)


def _resume(run: Run, command: Command) -> None:
    """A held engine goes on; a run without one is queued for another attempt."""
    if run.state in ENDED:
        _done(command)
        run.past_attempts = run.attempt
        change_state(run, State.queued, reason=f"resumed by {command.by}", actor=command.by)
        enqueue(run)


def _checkpoint(run: Run, command: Command) -> None:
    """Nothing changes but that the command waits."""


def _kill(run: Run, command: Command) -> None:
    _done(command)
    number = run.launches
    transaction.on_commit(lambda: tasks.kill_engine.delay(run.pk, number), robust=True)
    change_state(run, State.stopping, reason=command.reason or f"killed by {command.by}", actor=command.by)


_COMMANDS = {"stop": _stop, "pause": _pause, "resume": _resume, "checkpoint": _checkpoint, "kill": _kill}


def waiting(run: Run) -> QuerySet[Command]:
    """Commands that the engine of the current launch has yet to answer, oldest first."""
    return run.commands.filter(status=Command.Status.accepted, launch=run.launches)


def waiting_commands(run: Run) -> tuple[EngineCommand, ...]:
    """The same as the engine is told."""
    return tuple(EngineCommand(kind=CommandKind(each.kind), by=each.by, id=each.pk) for each in waiting(run))


def answer_command(run: Run, command_id: str, *, applied: bool, note: str = "") -> None:
    """Record what the engine made of a command; one that is no command of the platform (a signal) has no row."""
    status = Command.Status.applied if applied else Command.Status.rejected
    run.commands.filter(pk=command_id, status=Command.Status.accepted).update(
        status=status, note=note, ended_at=timezone.now()
    )


def give_up_commands(run: Run, why: str) -> None:
    """Reject what still waits for an engine that is gone; a stop has what it wanted."""
    waiting = run.commands.filter(status=Command.Status.accepted)
    waiting.filter(kind="stop").update(status=Command.Status.applied, ended_at=timezone.now())
    waiting.exclude(kind="stop").update(status=Command.Status.rejected, note=why, ended_at=timezone.now())


def engine_gone(run_id: str, launch: int, how: str) -> None:
    """The engine of a launch has ended. ``how``: exit code or signal in words. A run whose engine told how it ended
    keeps that; one whose engine said nothing has failed, unless it was asked to stop. Takes in the rest of the run
    folder before it judges, so call it outside a transaction."""
    unread = take_in_the_rest(run_id)
    with transaction.atomic():
        run = locked(run_id)
        if run.launches != launch or run.state in ENDED or run.state == State.queued:
            return
        asked = run.state == State.stopping
        reason = f"{run.state_reason} ({how})" if asked else f"the engine ended without a word: {how}"
        after = State.stopped if asked else State.failed
        end_attempt(run, after, reason)
        change_state(run, after, reason="; ".join(filter(None, (reason, unread))), actor=PLATFORM)
        save_change(run)


def take_in_the_rest(run_id: str) -> str:
    """Take in what the run folder holds and the engine had not sent yet; why that was not possible, if so. An engine
    that died before its first word left nothing, and a folder that cannot be read must not keep its run alive."""
    from webapp.telemetry.door import Unacceptable
    from webapp.telemetry.ingest import take_in_folder

    if not Path(Run.objects.get(pk=run_id).folder).joinpath("job.json").exists():
        return ""
    try:
        take_in_folder(run_id)
    except (RunFolderUnreadable, Unacceptable, OSError) as error:
        logger.warning("run %s: the rest of its folder was not taken in: %s", run_id, error)
        return f"not all of the run folder could be read: {error}"
    return ""


def end_attempt(run: Run, outcome: State, message: str) -> None:
    """Say how an attempt of the current launch ended that told no end itself."""
    Attempt.objects.filter(run=run, number=run.attempt, number__gt=run.past_attempts, outcome="").update(
        outcome=outcome, message=message, ended_at=timezone.now()
    )
