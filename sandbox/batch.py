"""Programs as JSON lines, one result for each, in the order of the lines: `python -m sandbox batch`, `POST /v1/batch`.

A line is {"id", "code", "stdin"?, "cells"?, "limits"?}. Its answer is one of two, told apart by `status`:

    {"id", "status", "stdout", "stderr", "exit_code", "wall_s", "queued_s", "error"}   what the program did; error is
                                                      null or what it claims: {"type", "message", "line" of the program}
    {"id", "error": {"line", "field", "message"}}     nothing ran: the line (by its number, from 1) is no such object,
                                                      or the sandbox failed, and `field` is null

`cells` are earlier cells of the same session, which is private to the line: they run first, in order, whatever comes
of them, and the answer is that of `code` alone. A bad line spoils no other.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError

from sandbox.client import SandboxClient
from sandbox.contract import (
    MOST_REQUEST_BYTES,
    ExecRequest,
    ExecResult,
    Limits,
    RequestRefused,
    SandboxUnavailable,
    first_fault,
)
from sandbox.contract.request import AnyText
from sandbox.parsing import FieldRefused, json_in

_FIELDS = {"status", "stdout", "stderr", "exit_code", "wall_s", "queued_s", "error"}
_LEAST_AHEAD = 16
Answer = dict[str, Any]


def _name(value: object) -> str | int:
    if isinstance(value, str) or type(value) is int:  # a bool is no number
        return value
    raise ValueError("Input should be a string or a whole number")


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str | int, PlainValidator(_name)]
    code: AnyText
    stdin: AnyText = ""
    cells: tuple[AnyText, ...] | None = None
    limits: Limits = Field(default_factory=Limits)


async def run_batch(
    sandbox: SandboxClient, chunks: AsyncIterator[bytes], emit: Callable[[Answer], Awaitable[None]]
) -> bool:
    """Answer every line of a stream; true if each has a result. Reads ahead only as far as the slots can use it.

    Raises `SandboxUnavailable` before the first line, later only what `chunks` and `emit` raise.
    """
    try:
        return await _run_batch(sandbox, chunks, emit)
    except ExceptionGroup as group:
        raise group.exceptions[0] from group


async def _run_batch(
    sandbox: SandboxClient, chunks: AsyncIterator[bytes], emit: Callable[[Answer], Awaitable[None]]
) -> bool:
    slots = sum(node.slots for node in (await sandbox.status()).nodes)
    ahead: asyncio.Queue[asyncio.Task[Answer] | None] = asyncio.Queue(max(_LEAST_AHEAD, 4 * slots))
    async with asyncio.TaskGroup() as group:

        async def read() -> None:
            async for number, line in lines(chunks):
                await ahead.put(group.create_task(_answer(sandbox, number, line)))
            await ahead.put(None)

        group.create_task(read())
        flawless = True
        while task := await ahead.get():
            answer = await task
            flawless = flawless and "status" in answer
            await emit(answer)
    return flawless


async def lines(chunks: AsyncIterator[bytes], most: int = MOST_REQUEST_BYTES) -> AsyncIterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers from 1. Of one that is longer than `most`, `most` + 1 bytes."""
    number, line = 1, b""
    async for chunk in chunks:
        first, *others = chunk.split(b"\n")
        line += first[: most + 1 - len(line)]
        for piece in others:
            if line.strip():
                yield number, line
            number, line = number + 1, piece[: most + 1]
    if line.strip():
        yield number, line


async def _answer(sandbox: SandboxClient, number: int, line: bytes) -> Answer:
    name: Any = None
    try:
        fields = _fields(line)
        name = fields.get("id") if isinstance(fields, dict) else None
        result = await _run(sandbox, _checked(fields))
    except FieldRefused as error:
        return _no_result(name, number, error.field, error.reason)
    except RequestRefused as error:
        return _no_result(name, number, None, str(error))
    except SandboxUnavailable as error:  # only this call is lost; the others have their results
        return _no_result(name, number, None, f"the sandbox failed: {error}")
    return {"id": name, **result.model_dump(include=_FIELDS)}


def _fields(line: bytes) -> Any:
    if len(line) > MOST_REQUEST_BYTES:
        raise FieldRefused(None, f"the line is longer than {MOST_REQUEST_BYTES} bytes")
    return json_in(line)


def _checked(fields: Any) -> _Line:
    try:
        return _Line.model_validate(fields)
    except ValidationError as error:
        raise FieldRefused(*first_fault(error)) from error


async def _run(sandbox: SandboxClient, line: _Line) -> ExecResult:
    if line.cells is None:
        return await sandbox.execute(ExecRequest(code=line.code, stdin=line.stdin, limits=line.limits))
    async with sandbox.session(limits=line.limits) as session:
        for cell in line.cells:
            await session.execute(cell)
        return await session.execute(line.code, line.stdin)


def _no_result(name: Any, number: int, field: str | None, message: str) -> Answer:
    return {"id": name, "error": {"line": number, "field": field, "message": message}}
