"""``python -m engine parse-calls``: the turn loop's parser for whoever wants to see what it makes of a text.

    in   {"id", "text", "finish_reason"?, "tools"?, "max_calls"?}            a line each
    out  {"id", "calls": [{"name", "arguments"}], "errors": 2, "error_texts": [..]}   in the same order
         {"id", "error": {"line", "field", "message"}}                       for a line that is no such object

``error_texts`` is what the policy would be told. Leaves out running calls, and the rules: ``engine.rollout.toolcalls``.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.commands.terminal import WRONG

if TYPE_CHECKING:  # JSON schemas: only this command needs them
    from engine.rollout.tools.spec import ToolSpec

_ToolName = Literal["python", "python_io", "execute_python_code_with_standard_io"]
_ARGUMENTS: dict[_ToolName, tuple[str, ...]] = {
    "python": ("code",),
    "python_io": ("code", "input"),
    "execute_python_code_with_standard_io": ("code", "input"),
}
"""The tools that a line can name, with their arguments: all strings, all required. The last is the paper's."""


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    id: str | int
    text: str
    finish_reason: Literal["stop", "length", "abort"] = "stop"
    tools: tuple[_ToolName, ...] = tuple(_ARGUMENTS)
    max_calls: Annotated[int, Field(ge=0)] | None = None


def parse_calls() -> None:
    """Read tool calls as the turn loop does: JSON lines in, JSON lines out.

    A line is {"id", "text", "finish_reason"?, "tools"?, "max_calls"?}: the text of one assistant turn; why it ended
    (stop, length or abort); names among python(code), python_io(code, input) and the paper's
    execute_python_code_with_standard_io(code, input), all of them if not given; the most calls that a turn may make.
    Its answer is {"id", "calls", "errors", "error_texts"}. A line that is no such object is answered with
    {"id", "error": {"line", "field", "message"}}, and the exit code is 2 at the end.
    """
    flawless = True
    for answer in answers(sys.stdin.buffer):
        flawless = flawless and "error" not in answer
        typer.echo(json.dumps(answer))
    if not flawless:
        raise typer.Exit(WRONG)


def answers(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """One answer for each line that is not blank."""
    specs = _specs()
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield _answer(_Line.model_validate_json(line), specs)
            except ValidationError as error:
                yield _fault(number, line, error)


def _specs() -> "dict[_ToolName, ToolSpec]":
    from engine.rollout.tools.spec import ToolSpec

    specs: dict[_ToolName, ToolSpec] = {}
    for name, arguments in _ARGUMENTS.items():
        properties = {argument: {"type": "string"} for argument in arguments}
        specs[name] = ToolSpec(name, "", {"type": "object", "properties": properties, "required": list(arguments)})
    return specs


def _answer(line: _Line, specs: "dict[_ToolName, ToolSpec]") -> dict[str, Any]:
    from engine.rollout.toolcalls import CallError, ToolCall, parse_tool_calls

    tools = [specs[name] for name in line.tools]
    found = parse_tool_calls(line.text, tools, finish_reason=line.finish_reason, max_calls=line.max_calls)
    errors = [each.text for each in found if isinstance(each, CallError)]
    calls = [{"name": each.name, "arguments": each.arguments} for each in found if isinstance(each, ToolCall)]
    return {"id": line.id, "calls": calls, "errors": len(errors), "error_texts": errors}


def _fault(number: int, line: bytes, error: ValidationError) -> dict[str, Any]:
    """What is wrong with a line, the first thing only."""
    first = error.errors(include_url=False, include_context=False)[0]
    field = ".".join(map(str, first["loc"])) or None
    return {"id": _id_of(line), "error": {"line": number, "field": field, "message": first["msg"]}}


def _id_of(line: bytes) -> str | int | None:
    """The id of a line in which something else is wrong."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    found = fields.get("id") if isinstance(fields, dict) else None
    return found if isinstance(found, str | int) else None
