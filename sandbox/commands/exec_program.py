"""`python -m sandbox exec FILE`: one program, its output and its end."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from sandbox.commands.running import BAD_INPUT, At, Isolation, Token, fail, with_sandbox
from sandbox.contract import ExecRequest, ExecResult, ExecStatus, Limits, Priority, first_fault


def _limit(name: str) -> Any:
    field = Limits.model_fields[name]
    return typer.Option(help=field.description, show_default=str(field.default))


def exec_program(
    file: Annotated[Path, typer.Argument(help="The program; - reads it from stdin.")],
    stdin: Annotated[Path | None, typer.Option(help="File that the program reads on its stdin.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
    wall_s: Annotated[float | None, _limit("wall_s")] = None,
    cpu_s: Annotated[float | None, _limit("cpu_s")] = None,
    memory_mb: Annotated[int | None, _limit("memory_mb")] = None,
    output_bytes: Annotated[int | None, _limit("output_bytes")] = None,
    processes: Annotated[int | None, _limit("processes")] = None,
    scratch_mb: Annotated[int | None, _limit("scratch_mb")] = None,
    at: At = None,
    token: Token = None,
    tier: Isolation = None,
) -> None:
    """Run one program. Exit code: 0 if its status is ok, else 1; 2 for bad input, 3 if the sandbox failed."""
    values = (wall_s, cpu_s, memory_mb, output_bytes, processes, scratch_mb)
    given = dict(zip(Limits.model_fields, values, strict=True))
    try:
        limits = Limits.model_validate({name: value for name, value in given.items() if value is not None})
        request = ExecRequest(
            code=_read(file), stdin=_read(stdin) if stdin else "", limits=limits, priority=Priority.INTERACTIVE
        )
    except (OSError, ValidationError) as error:
        fail(BAD_INPUT, _complaint(error))
    result = with_sandbox(
        lambda sandbox: sandbox.execute(request), at=at, token=token, slots=None if at else 1, tier=tier
    )
    if as_json:
        print(json.dumps(result.model_dump()))
    else:
        _show(result)
    raise typer.Exit(result.status is not ExecStatus.OK)


def _read(path: Path) -> str:
    data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    return data.decode("utf-8", "surrogateescape")


def _show(result: ExecResult) -> None:
    for stream, text in ((sys.stdout, result.stdout), (sys.stderr, result.stderr)):
        stream.buffer.write(text.encode("utf-8", "replace"))
        stream.flush()
    if result.detail:
        print(f"{result.status}: {result.detail}", file=sys.stderr)


def _complaint(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return "{}: {}".format(*first_fault(error))
    return str(error)
