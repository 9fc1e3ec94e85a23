"""`python -m sandbox selfcheck`: shows which isolation this machine allows, and proves it."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from sandbox.backend.tiers import JAILED, PRIMITIVES, JailedTier, Machine, examine
from sandbox.commands.running import UNAVAILABLE, fail
from sandbox.contract import SandboxUnavailable
from sandbox.selfcheck import Report, check_machine, checks_of
from sandbox.starting import interpreter

_ROOT = Path(__file__).parents[2]
_FAILED = 1
_NOBODY = 65534


class Wanted(StrEnum):
    """Which tiers to try."""

    FULL = "full"
    CONTAINER = "container"
    ALL = "all"


def selfcheck(
    tier: Annotated[Wanted, typer.Option(help="Isolation to try.")] = Wanted.ALL,
    user: Annotated[int, typer.Option(min=1, help="As root: the user id to try it under as well.")] = _NOBODY,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Try what this machine allows, then run the whole exam on each tier that can be had; about half a minute.

    As root also as an ordinary user, in a process of its own. Exit code: 0 if all checks pass, 1 if one fails, 3 if
    no tier can be had.
    """
    tiers = JAILED if tier is Wanted.ALL else (_jailed(tier),)
    screen = Console(stderr=as_json)
    try:
        python = interpreter(None)
        report = asyncio.run(_own_part(python, tiers, screen))
    except SandboxUnavailable as error:
        fail(UNAVAILABLE, f"the sandbox is not available: {error}")
    found = report.to_json()
    views = [found]
    if os.geteuid() == 0:
        with screen.status(f"The same as user {user}"):
            views.append(_as_ordinary_user(user, tier, python))
    if as_json:
        print(json.dumps(found | {"ordinary_user": views[1] if len(views) > 1 else None}))
    else:
        screen.print(_verdicts(views))
        _tell_failures(screen, views)
    raise typer.Exit(_exit_code(views))


def _jailed(tier: Wanted) -> JailedTier:
    return "full" if tier is Wanted.FULL else "container"


async def _own_part(python: Path, tiers: tuple[JailedTier, ...], screen: Console) -> Report:
    machine = await examine(python)
    screen.print(_primitives(machine))
    columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=screen, transient=True) as progress:
        total = sum(checks_of(tier, machine) for tier in tiers if not machine.missing(tier))
        task = progress.add_task("Starting", total=total)
        return await check_machine(
            python, machine, tiers, lambda verdict: progress.update(task, advance=1, description=verdict.name[:24])
        )


def _as_ordinary_user(user: int, tier: Wanted, python: Path) -> dict[str, Any]:
    """The report of the same command under another user id. Raises nothing: a failure is what it found."""
    reads = {_ROOT, *_homes(Path(sys.executable)), *_homes(python)}
    command = [sys.executable, "-m", "sandbox", "selfcheck", "--tier", tier.value, "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "sandbox.ordinary_user", str(user), ":".join(map(str, reads)), *command],
        cwd=_ROOT,
        env=os.environ | {"HOME": "/tmp", "STARLOOM_SANDBOX_PYTHON": str(python)},
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout:
        return {"user_id": user, "tiers": [], "passed": False, "failed": done.stderr.strip()[-2000:]}
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def _homes(python: Path) -> tuple[Path, Path]:
    """The environment of an interpreter, and what that was made from."""
    return python.parents[1], Path(os.path.realpath(python)).parents[1]


def _primitives(machine: Machine) -> Table:
    table = Table("primitive", "needed for", "keeps programs from", "here", title="What this machine allows")
    for each in PRIMITIVES:
        lacks = machine.findings[each.name]
        here = f"[red]{escape(lacks)}[/]" if lacks else "[green]works[/]"
        table.add_row(each.name, ", ".join(each.tiers), each.stops, here)
    version = machine.memory_by_cgroup
    here = f"[green]version {version}[/]" if version else "[yellow]not writable: limits per process only[/]"
    table.add_row("cgroups for memory, processes", "full, where there", "many processes taking it all", here)
    return table


def _verdicts(views: Iterable[dict[str, Any]]) -> Table:
    table = Table("user", "tier", "programs", "sessions", "gaps as documented", "left", title="Exams")
    for view in views:
        for tier in view["tiers"]:
            cells = [_count(tier["verdicts"], part) for part in ("program", "session", "gap", "nothing left")]
            if tier["unavailable"]:
                cells = ["[yellow]not possible here[/]", "", "", ""]
            table.add_row(str(view["user_id"]), tier["tier"], *cells)
    return table


def _count(verdicts: list[dict[str, str]], part: str) -> str:
    complaints = [verdict["complaint"] for verdict in verdicts if verdict["part"] == part]
    if not complaints:
        return "-"
    passed = complaints.count("")
    return f"[{'green' if passed == len(complaints) else 'red'}]{passed} of {len(complaints)}[/]"


def _tell_failures(screen: Console, views: Iterable[dict[str, Any]]) -> None:
    for view in views:
        if why := view.get("failed"):
            screen.print(f"As user {view['user_id']} it could not be tried: {why}", style="red", markup=False)
        for tier in view["tiers"]:
            if tier["unavailable"]:
                screen.print(f"User {view['user_id']}: {tier['unavailable']}", style="yellow", markup=False)
            for verdict in tier["verdicts"]:
                if verdict["complaint"]:
                    text = f"User {view['user_id']}, {tier['tier']}: {verdict['part']} {verdict['name']}"
                    screen.print(f"{text}: {verdict['complaint']}", style="red", markup=False)


def _exit_code(views: list[dict[str, Any]]) -> int:
    """A user who can have no tier is no failure while another can."""
    tiers = [tier for view in views for tier in view["tiers"]]
    if any("failed" in view for view in views) or any(each["complaint"] for tier in tiers for each in tier["verdicts"]):
        return _FAILED
    return 0 if any(tier["isolation"] for tier in tiers) else UNAVAILABLE
