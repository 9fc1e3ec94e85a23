"""`python -m sandbox bench`: a sandbox's speed, waits and memory beside those of the plain way."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from sandbox.bench import report
from sandbox.bench.arms import WrongAnswer
from sandbox.bench.settings import FULL, QUICK, Pace
from sandbox.bench.whole import measure
from sandbox.commands.running import BAD_INPUT, UNAVAILABLE, At, Token, fail
from sandbox.contract import SandboxUnavailable
from sandbox.places import check_url
from sandbox.starting import interpreter

_WRONG = 1


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Within a minute: no open loop and no queue.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    calls: Annotated[int, typer.Option(min=100, help="Calls in the queue.")] = FULL.backlog_calls,
    at: At = None,
    token: Token = None,
) -> None:
    """Measure beside `subprocess.run`, all in one run, the arms taking turns; musts are judged in a table.

    Exit code: 0, also where a must is not reached; 1 if a program printed what it must not, 2 for bad input, 3 if
    the sandbox failed.
    """
    pace = QUICK if quick else replace(FULL, backlog_calls=calls)
    try:
        if at:
            check_url(at)
        found = _measured(interpreter(None), pace, at, token)
    except* ValueError as failed:  # a URL or a token
        fail(BAD_INPUT, str(failed.exceptions[0]))
    except* SandboxUnavailable as failed:
        fail(UNAVAILABLE, f"the sandbox is not available: {failed.exceptions[0]}")
    except* WrongAnswer as failed:
        fail(_WRONG, f"not measured: {failed.exceptions[0]}")
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        report.show(found, Console())


def _measured(python: Path, pace: Pace, at: str | None, token: str | None) -> dict[str, Any]:
    """Shows on stderr which part runs."""
    errors = Console(stderr=True)
    columns = SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task("looking at the machine")

        def say(step: str) -> None:
            progress.update(task, description=step)
            if not errors.is_terminal:
                errors.print(step)

        return asyncio.run(measure(python, pace, at, token, say))
