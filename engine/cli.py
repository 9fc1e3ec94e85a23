"""The command line of the engine: check, run, resume, report.

Exit codes: 0 finished, 1 failed, 2 wrong recipe, folder or setting, 3 stopped on request, 4 dismissed by the platform
(another launch of the run has taken over). With STARLOOM_PLATFORM_URL and STARLOOM_RUN_TOKEN in the environment a run
is shipped to that platform and takes its commands. Needs no terminal. Leaves out everything that a run does:
``engine.stages``.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from ulid import ULID

from engine.contract.commands import Command, CommandKind
from engine.contract.events import Event
from engine.contract.job import JobSpec, RecipeError, load_recipe
from engine.environment import prepare_environment
from engine.sink.platform_client import Address, PlatformClient, WrongAddress
from engine.sink.run_folder import RunFolder, RunFolderError
from engine.sink.shipper import Pace, Shipper
from engine.stages.commands import Inbox, Superseded
from engine.view.progress import LiveView
from engine.view.report import write_report

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Train and study agents that reason with code.")

FAILED, WRONG, STOPPED, DISMISSED = 1, 2, 3, 4

HAND_OVER_S = 60.0
"""Seconds that a launch of the platform waits for the engine of the one before to end."""

RecipeArgument = Annotated[Path, typer.Argument(help="Recipe, TOML.", show_default=False)]
FolderArgument = Annotated[Path, typer.Argument(help="Folder of a run.", show_default=False)]
SandboxOption = Annotated[
    str | None,
    typer.Option(
        "--sandbox",
        envvar="STARLOOM_SANDBOX",
        metavar="URL",
        help="Sandbox node to use, unix:/path/to/socket; a private one otherwise.",
        show_default=False,
    ),
]
FlushOption = Annotated[
    float,
    typer.Option(
        "--flush",
        envvar="STARLOOM_FLUSH_S",
        min=0,
        metavar="SECONDS",
        help="Longest wait at the end for a platform that does not have everything yet.",
    ),
]


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
    sandbox: SandboxOption = None,
    flush: FlushOption = Pace.flush_s,
) -> None:
    """Run a recipe from its beginning."""
    try:
        if resume and (out / "job.json").exists():
            folder = RunFolder.open(out)
        else:
            found = load_recipe(recipe)
            run_id = f"run_{str(ULID()).lower()}"
            job = JobSpec(run_id=run_id, created_at=time.time(), digest=found.digest, recipe=found)
            folder = RunFolder.create(out, job, recipe.read_text(encoding="utf-8"))
    except (RecipeError, RunFolderError) as error:
        raise refuse(error) from error
    go(folder, sandbox, flush)


@app.command("resume")
def resume_run(folder: FolderArgument, sandbox: SandboxOption = None, flush: FlushOption = Pace.flush_s) -> None:
    """Go on with a run from its last checkpoint; a run that was only prepared (job.json) begins."""
    try:
        opened = RunFolder.open(folder)
    except RunFolderError as error:
        raise refuse(error) from error
    go(opened, sandbox, flush)


@app.command()
def report(folder: FolderArgument) -> None:
    """Write the HTML report of a run folder, also of a run that is going on."""
    try:
        typer.echo(f"report: {write_report(RunFolder.open(folder).path).resolve().as_uri()}")
    except RunFolderError as error:
        raise refuse(error) from error


def go(folder: RunFolder, sandbox: str | None, flush_s: float) -> None:
    """Run one attempt with the terminal view, then write the report and say where it is."""
    try:
        shipper = make_shipper(folder, flush_s)
        say(f"run folder: {folder.path}")
        with folder.lock(wait_s=HAND_OVER_S if shipper else 0), LiveView(f"{folder.path}") as view:
            outcome = asyncio.run(attempt(folder, view, sandbox, shipper))
    except (RunFolderError, WrongAddress) as error:
        raise refuse(error) from error
    except Superseded as error:
        say(f"ended: {error}", error=True)
        raise typer.Exit(DISMISSED) from error
    except (KeyboardInterrupt, asyncio.CancelledError):
        outcome = "stopped"
    except Exception as error:
        say(f"run failed: {type(error).__name__}: {error}", error=True)
        say(f"trace: {folder.logs}; go on with: python -m engine resume {folder.path}", error=True)
        say_what_was_left(folder, shipper)
        raise typer.Exit(FAILED) from error
    say_what_was_left(folder, shipper)
    say(f"report: {write_report(folder.path).resolve().as_uri()}")
    if outcome == "stopped":
        say(f"stopped; go on with: python -m engine resume {folder.path}")
        raise typer.Exit(STOPPED)


def make_shipper(folder: RunFolder, flush_s: float) -> Shipper | None:
    """A shipper, if the environment names a platform. Raises ``WrongAddress``."""
    address = Address.taken_from(os.environ)
    if address is None:
        return None
    return Shipper(folder, PlatformClient(address, folder.job.run_id), pace=Pace(flush_s=flush_s))


def say_what_was_left(folder: RunFolder, shipper: Shipper | None) -> None:
    if shipper is not None and not shipper.delivered:
        say(
            "the platform does not have everything of this run yet; the folder does: resume the run, or on the "
            f"platform's machine: python manage.py ingest {folder.path}",
            error=True,
        )


def say(message: str, *, error: bool = False) -> None:
    """A line for whoever reads; that nobody does any more (a launcher that died) changes nothing for the run."""
    with contextlib.suppress(OSError):
        typer.secho(message, err=error, fg="red" if error else None)


async def attempt(
    folder: RunFolder, on_event: Callable[[Event], None], sandbox: str | None, shipper: Shipper | None
) -> str:
    inbox = Inbox()
    with signals_as_commands(inbox.put):
        prepare_environment()
        from engine.stages.pipeline import run_attempt  # torch behind it: the first line is told before that loads

        return await run_attempt(folder, inbox, [on_event], sandbox=sandbox, shipper=shipper)


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
