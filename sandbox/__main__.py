"""The sandbox from a shell: `python -m sandbox exec FILE`, `batch` and `serve`. Holds no rules of its own."""

import asyncio
import io
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO, TypeVar

import typer
from pydantic import ValidationError

from sandbox.client import SandboxClient, local_sandbox
from sandbox.contract import ExecRequest, ExecResult, ExecStatus, Limits, SandboxUnavailable, first_fault
from sandbox.gateway import serve
from sandbox.listening import CannotListen

app = typer.Typer(
    help="Run untrusted Python programs in a jail.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_FIELDS = {"id", "status", "stdout", "stderr", "exit_code", "wall_s", "queued_s", "error"}
_UNAVAILABLE, _BAD_INPUT = 3, 2
Answer = dict[str, Any]
T = TypeVar("T")
Slots = Annotated[int | None, typer.Option(min=1, help="Programs at once; default one per core.")]


def _limit(name: str) -> Any:
    field = Limits.model_fields[name]
    return typer.Option(help=field.description, show_default=str(field.default))


@app.command("exec")
def exec_(
    file: Annotated[Path, typer.Argument(help="The program; - reads it from stdin.")],
    stdin: Annotated[Path | None, typer.Option(help="File that the program reads on its stdin.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
    wall_s: Annotated[float | None, _limit("wall_s")] = None,
    cpu_s: Annotated[float | None, _limit("cpu_s")] = None,
    memory_mb: Annotated[int | None, _limit("memory_mb")] = None,
    output_bytes: Annotated[int | None, _limit("output_bytes")] = None,
    processes: Annotated[int | None, _limit("processes")] = None,
    scratch_mb: Annotated[int | None, _limit("scratch_mb")] = None,
) -> None:
    """Run one program. Exit code: 0 if its status is ok, else 1; 2 for bad input, 3 if the sandbox failed."""
    values = (wall_s, cpu_s, memory_mb, output_bytes, processes, scratch_mb)
    given = dict(zip(Limits.model_fields, values, strict=True))
    try:
        limits = Limits.model_validate({name: value for name, value in given.items() if value is not None})
        request = ExecRequest(code=_read(file), stdin=_read(stdin) if stdin else "", limits=limits)
    except (OSError, ValidationError) as error:
        _fail(_BAD_INPUT, _complaint(error))
    result = _run(lambda sandbox: sandbox.execute(request), slots=1)
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


@app.command()
def batch(slots: Slots = None) -> None:
    """Run programs from JSON lines on stdin: {"id", "code", "stdin"?, "limits"?}. Results in input order.

    A line that is not a request is answered with an error that names its line and field, and so is one that
    the sandbox failed to run. Exit code: 0, or 1 if there was such a line, or 3 if no sandbox could start.
    """
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")  # a bad byte spoils its line only
    flawless = _run(lambda sandbox: _batch(sandbox, sys.stdin, sys.stdout), slots)
    raise typer.Exit(not flawless)


async def _batch(sandbox: SandboxClient, source: TextIO, sink: TextIO) -> bool:
    """True if every line has a result. Reads ahead only as far as the slots can use it."""
    ahead: asyncio.Queue[asyncio.Task[Answer] | None] = asyncio.Queue(4 * sandbox.node.backend.slots)
    async with asyncio.TaskGroup() as group:

        async def read() -> None:
            async for number, line in _lines(source):
                await ahead.put(group.create_task(_answer(sandbox, number, line)))
            await ahead.put(None)

        group.create_task(read())
        flawless = True
        while task := await ahead.get():
            answer = await task
            flawless = flawless and "status" in answer
            print(json.dumps(answer), file=sink, flush=True)
    return flawless


async def _lines(source: TextIO) -> AsyncIterator[tuple[int, str]]:
    number = 0
    while line := await asyncio.to_thread(source.readline):
        number += 1
        if line.strip():
            yield number, line


async def _answer(sandbox: SandboxClient, number: int, line: str) -> Answer:
    fields: Any = None
    try:
        fields = json.loads(line)
        request = _request(fields)
    except (ValueError, RecursionError) as error:  # bad JSON and pydantic's refusals are both ValueErrors
        call_id = fields.get("id") if isinstance(fields, dict) else None
        return {"id": call_id, "error": {"line": number, **_named(error)}}
    try:
        result = await sandbox.execute(request)
    except SandboxUnavailable as error:  # only this call is lost; the others have their results
        message = f"the sandbox failed: {error}"
        return {"id": fields["id"], "error": {"line": number, "field": None, "message": message}}
    return {**result.model_dump(include=_FIELDS), "id": fields["id"]}  # a numeric id comes back as a number


def _request(fields: Any) -> ExecRequest:
    if isinstance(fields, dict):
        if "cells" in fields:
            raise _FieldError("cells", "cells need sessions, which are not available yet: send one `code`")
        if "id" not in fields:
            raise _FieldError("id", "Field required: results are matched by it")
        if type(fields["id"]) is int:  # numbers are fine as ids in JSONL; a bool is no number
            fields = {**fields, "id": str(fields["id"])}
    return ExecRequest.model_validate(fields)


class _FieldError(ValueError):
    """A refusal that names its field, like pydantic's."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def _named(error: Exception) -> Answer:
    """Which field is wrong, and how; the first one if there are several."""
    if isinstance(error, ValidationError):
        field, message = first_fault(error)
        return {"field": field, "message": message}
    if isinstance(error, _FieldError):
        return {"field": error.field, "message": str(error)}
    return {"field": None, "message": f"not JSON: {error}"}


def _complaint(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return "{}: {}".format(*first_fault(error))
    return str(error)


@app.command("serve")
def serve_(
    socket: Annotated[Path, typer.Option(help="Unix socket to listen on, in a folder that is yours alone.")],
    slots: Slots = None,
) -> None:
    """Run a node that other processes of this user reach at unix:SOCKET. SIGTERM lets its calls end, for 5 s at most.

    Prints one line when it takes calls. Exit code: 0 when told to stop; 2 for a socket that cannot be used, 3 if
    the sandbox could not start.
    """
    try:
        asyncio.run(serve(socket, slots=slots, ready=lambda line: print(line, flush=True)))
    except CannotListen as error:
        _fail(_BAD_INPUT, str(error))
    except SandboxUnavailable as error:
        _fail(_UNAVAILABLE, f"the sandbox is not available: {error}")


def _run(work: Callable[[SandboxClient], Awaitable[T]], slots: int | None) -> T:
    async def inside() -> T:
        async with local_sandbox(slots=slots) as sandbox:
            return await work(sandbox)

    try:
        return asyncio.run(inside())
    except* SandboxUnavailable as failed:
        _fail(_UNAVAILABLE, f"the sandbox is not available: {failed.exceptions[0]}")


def _fail(code: int, message: str) -> NoReturn:
    print(message, file=sys.stderr)
    raise typer.Exit(code)


if __name__ == "__main__":
    app()
