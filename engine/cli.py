"""The command line of the engine: check, run, resume, report.

Exit codes: 0 finished, 1 failed, 2 wrong recipe or folder, 3 stopped on request. Leaves out everything that a run
does: ``engine.stages``.
"""

import asyncio
import contextlib
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from engine.contract.commands import Command, CommandKind
from engine.contract.events import Event
from engine.contract.job import JobSpec, RecipeError, load_recipe
from engine.environment import prepare_environment
from engine.sink.run_folder import RunFolder, RunFolderError
from engine.view.progress import LiveView
from engine.view.report import write_report

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Train and study agents that reason with code.")

FAILED, WRONG, STOPPED = 1, 2, 3

RecipeArgument = Annotated[Path, typer.Argument(help="Recipe, TOML.", show_default=False)]
FolderArgument = Annotated[Path, typer.Argument(help="Folder of a run.", show_default=False)]


def refuse(error: Exception) -> typer.Exit:
    typer.secho(str(error), err=True, fg="red")
    return typer.Exit(WRONG)


@app.command()
def check(recipe: RecipeArgument) -> None:
    """Check a recipe; name every wrong field."""
    try:
        found = load_recipe(recipe)
    except RecipeError as error:
        raise refuse(error) from error
    typer.echo(f"{recipe}: good ({found.name}: {' -> '.join(stage.name for stage in found.stages)})")


@app.command()
def run(
    recipe: RecipeArgument,
    out: Annotated[Path, typer.Option(help="Run folder to make.")],
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that is already in --out.")] = False,
) -> None:
    """Run a recipe from its beginning."""
    try:
        if resume and (out / "job.json").exists():
            folder = RunFolder.open(out)
        else:
            found = load_recipe(recipe)
            job = JobSpec(run_id=uuid.uuid4().hex, created_at=time.time(), digest=found.digest, recipe=found)
            folder = RunFolder.create(out, job, recipe.read_text(encoding="utf-8"))
    except (RecipeError, RunFolderError) as error:
        raise refuse(error) from error
    go(folder)


@app.command("resume")
def resume_run(folder: FolderArgument) -> None:
    """Go on with a run from its last checkpoint."""
    try:
        opened = RunFolder.open(folder)
    except RunFolderError as error:
        raise refuse(error) from error
    go(opened)


@app.command()
def report(folder: FolderArgument) -> None:
    """Write the HTML report of a run folder, also of a run that is going on."""
    try:
        typer.echo(f"report: {write_report(RunFolder.open(folder).path).resolve().as_uri()}")
    except RunFolderError as error:
        raise refuse(error) from error


def go(folder: RunFolder) -> None:
    """Run one attempt with the terminal view, then write the report and say where it is."""
    typer.echo(f"run folder: {folder.path}")
    try:
        with folder.lock(), LiveView(f"{folder.path}") as view:
            outcome = asyncio.run(attempt(folder, view))
    except RunFolderError as error:
        raise refuse(error) from error
    except (KeyboardInterrupt, asyncio.CancelledError):
        outcome = "stopped"
    except Exception as error:
        typer.secho(f"run failed: {type(error).__name__}: {error}", err=True, fg="red")
        typer.echo(f"trace: {folder.logs}; go on with: python -m engine resume {folder.path}", err=True)
        raise typer.Exit(FAILED) from error
    typer.echo(f"report: {write_report(folder.path).resolve().as_uri()}")
    if outcome == "stopped":
        typer.echo(f"stopped; go on with: python -m engine resume {folder.path}")
        raise typer.Exit(STOPPED)


async def attempt(folder: RunFolder, on_event: Callable[[Event], None]) -> str:
    prepare_environment()
    from engine.stages.context import (
        Inbox,
    )  # torch behind these: the first line is on the terminal before they load
    from engine.stages.pipeline import run_attempt

    inbox = Inbox()
    with signals_as_commands(inbox.put):
        return await run_attempt(folder, inbox, [on_event])


@contextlib.contextmanager
def signals_as_commands(put: Callable[[Command], None]) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM asks for a stop at the end of the step, the next one interrupts it."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    asked = False

    def on_signal(name: str) -> None:
        nonlocal asked
        if asked and task is not None:
            task.cancel()
        asked = True
        put(Command(kind=CommandKind.stop, by=f"signal {name}"))

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number.name)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
