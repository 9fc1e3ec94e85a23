"""The command line of the engine: check, plan, run, resume, report, explain-roc, bench; others in ``engine.commands``.

Exit codes: 0 finished, 1 failed, 2 wrong recipe, folder or setting, 3 stopped on request or (``bench``) not run here, 4
dismissed by the platform (another launch of the run has taken over). With STARLOOM_PLATFORM_URL and STARLOOM_RUN_TOKEN
in the environment a run is shipped to that platform and takes its commands. Needs no terminal. Leaves out everything
that a run does: ``engine.stages``.
"""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from ulid import ULID

from engine.commands.options import SandboxOption
from engine.commands.parse_calls import parse_calls
from engine.commands.serve import serve
from engine.commands.simulate import simulate
from engine.commands.terminal import FAILED, refuse, say
from engine.contract.commands import Command, CommandKind
from engine.contract.events import Event
from engine.contract.job import Recipe, RecipeError, load_recipe
from engine.contract.provenance import new_job
from engine.downsample import what_if
from engine.environment import prepare_environment
from engine.sink.platform_client import Address, PlatformClient, WrongAddress
from engine.sink.run_folder import RunFolder, RunFolderError
from engine.sink.shipper import Pace, Shipper
from engine.stages.commands import Inbox, Superseded
from engine.view.explain import as_json, deviation_lines, parse_settings, print_explanation, read_group
from engine.view.progress import LiveView
from engine.view.report import write_report

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Train and study agents that reason with code.")
bench = typer.Typer(no_args_is_help=True, help="Measure parts of the engine on this machine.")
app.add_typer(bench, name="bench")
app.command("parse-calls")(parse_calls)
app.command("serve")(serve)
app.command("simulate")(simulate)

STOPPED, DISMISSED = 3, 4
NOT_RUN = 3

HAND_OVER_S = 60.0
"""Seconds that a launch of the platform waits for the engine of the one before to end."""

RecipeArgument = Annotated[Path, typer.Argument(help="Recipe, TOML.", show_default=False)]
FolderArgument = Annotated[Path, typer.Argument(help="Folder of a run.", show_default=False)]
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


def load_with_tools(path: Path) -> Recipe:
    """A recipe whose tools are there. Raises ``RecipeError``."""
    from engine.rollout.tools.registry import ToolsRefused, load_tools  # jsonschema: other commands do without

    found = load_recipe(path)
    try:
        load_tools(found.tools)
    except ToolsRefused as error:
        raise RecipeError(str(path), error.problems) from error
    return found


@app.command()
def check(recipe: RecipeArgument) -> None:
    """Check a recipe and import the tools that it names; name every wrong field."""
    try:
        found = load_with_tools(recipe)
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
            found = load_with_tools(recipe)
            run_id = f"run_{str(ULID()).lower()}"
            job = new_job(found, run_id)
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


@app.command("explain-roc")
def explain_roc(
    file: Annotated[Path, typer.Argument(help="A group's record, JSON, or JSONL of many.", show_default=False)],
    group: Annotated[str | None, typer.Option(help="Group to pick from many.", show_default=False)] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="What if: kind, keep or a setting of the rule; repeatable."),
    ] = None,
    plain: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Explain which rollouts of a group were kept, step by step. Exits 1 for a record that contradicts itself."""
    try:
        record = read_group(file, group)
        other = what_if(record, parse_settings(settings)) if settings else None
    except ValueError as error:
        raise refuse(error) from error
    if plain:
        typer.echo(json.dumps(as_json(record, other)))
    else:
        print_explanation(record, other)
    for line in (wrong := deviation_lines(record)):
        say(line, error=True)
    if wrong:
        raise typer.Exit(FAILED)


@app.command()
def plan(
    recipe: RecipeArgument,
    device_memory_gb: Annotated[
        float | None,
        typer.Option(min=0, metavar="N", help="Memory of one device, 10^9 bytes: say what fits.", show_default=False),
    ] = None,
    plain: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say how much memory a recipe needs: each learner rank and each rollout engine, by what takes it."""
    from engine.bench.architecture import UnknownModel
    from engine.bench.plan import plan_recipe
    from engine.bench.plan_table import plans_as_json, print_plans

    try:
        plans = plan_recipe(load_recipe(recipe))
    except (RecipeError, UnknownModel) as error:
        raise refuse(error) from error
    if plain:
        typer.echo(json.dumps(plans_as_json(plans, device_memory_gb)))
    else:
        print_plans(plans, device_memory_gb)


class Device(StrEnum):
    cpu = "cpu"
    cuda = "cuda"


@bench.command("learner")
def bench_learner(
    device: Annotated[Device, typer.Option(help="What to measure on; ROCm calls a GPU cuda too.")],
    plain: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JSON there too.", show_default=False)] = None,
) -> None:
    """Time GRPO steps of a random-weight Qwen3, on an idle machine. Exits 3, and says why, where it cannot be run."""
    prepare_environment()
    from engine.bench import learner  # torch and DeepSpeed: seconds
    from engine.bench.learner_table import print_bench

    reason = learner.not_run(device.value)
    found = learner.bench_learner(device.value) if reason is None else {"ran": False, "reason": reason}
    if out is not None:
        out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if plain:
        typer.echo(json.dumps(found))
    elif reason is None:
        print_bench(found)
    if reason is not None:
        say(f"not run: {reason}", error=True)
        raise typer.Exit(NOT_RUN)


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
