"""What the policy asked for: tool calls in one assistant turn, and tool text cut to size (paper, 2.1).

A call is ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``. The block ends where its JSON ends, so
tag text inside a string (``print('</tool_call>')``) is text. Rules the paper leaves open, each held by a
test:

* **No repair.** JSON is taken as written or answered with an error: no quotes, commas or line breaks are
  mended, no code fence peeled off, no JSON string unpacked as arguments, no XML dialect read, no key that
  occurs twice chosen from. The policy learns the format from the error; a repair would hide the error from
  RoC's penalty.
* **Arguments** are exactly the tool's: a missing or unknown one, or one of another type, is an error. Further keys
  beside "name" and "arguments" are ignored. An empty program is a program.
* **Where a broken block ends:** at the next ``</tool_call>``, or before the next ``<tool_call>`` if that
  comes first.
* **Unclosed block:** nothing if generation was cut (``length``, ``abort``), otherwise an error. A closing tag
  alone is text, and tags are case-sensitive.
* **Reasoning:** a call inside ``<think>...</think>`` or ``<reason>...</reason>`` is a draft and neither runs
  nor fails. Reasoning that the turn never closes shields nothing. A turn whose prompt pre-fills ``<reason>``
  must be passed with that tag in front, since a closing tag without its opening one is text.
* **Answer and call in one turn:** the call runs.
* **Limit:** every block counts, broken ones too; each one over ``max_calls`` is answered, none is dropped in
  silence.

Leaves out checking arguments and running the calls (``engine.rollout.tools``) and rendering their responses (the
turn loop). Only text that the policy sampled may be passed in: what a tool printed is never parsed.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from engine.rollout.tools.spec import ToolSpec, kind, quoted

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_MARK = re.compile(r"<tool_call>|</?(?:think|reason)>")
_BLANK = re.compile(r"[ \t\r\n]*")
_CUT = frozenset({"length", "abort"})
_EXPECTED = 'Expected {"name": <tool>, "arguments": {...}} as one JSON object between <tool_call> and </tool_call>.'


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call fit to run."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CallError:
    """A call that cannot run; ``text`` is what the policy gets back as the tool response."""

    text: str


@dataclass(frozen=True, slots=True)
class _Block:
    """One ``<tool_call>`` block: its JSON value or what was wrong with it, and where the text goes on."""

    value: object
    problem: str | None
    closed: bool
    end: int


def parse_tool_calls(
    text: str, tools: Sequence[ToolSpec], *, finish_reason: str = "stop", max_calls: int | None = None
) -> tuple[ToolCall | CallError, ...]:
    """Calls and call errors of one sampled turn, in text order."""
    cut = finish_reason in _CUT
    blocks = [block for block in _blocks(text) if block.closed or not cut]
    by_name = {tool.name: tool for tool in tools}
    limit = len(blocks) if max_calls is None else max_calls
    over = CallError(f"Tool call not run: limit reached, calls in one turn: {limit}.")
    return tuple(_answer(block, by_name) if place < limit else over for place, block in enumerate(blocks))


def truncate_middle(text: str, limit_chars: int) -> str:
    """``text`` with its middle left out: ``limit_chars`` of it stay, half at each end, around a marker."""
    if limit_chars < 0:
        raise ValueError(f"limit_chars must be 0 or more, is {limit_chars}")
    if len(text) <= limit_chars:
        return text
    head, tail = halves(limit_chars)
    return text[:head] + left_out(len(text) - limit_chars) + text[len(text) - tail :]


def halves(limit_chars: int) -> tuple[int, int]:
    """Characters that stay before and after the marker."""
    tail = limit_chars // 2
    return limit_chars - tail, tail


def left_out(chars: int) -> str:
    """The marker."""
    return f"\n[... {chars} characters left out ...]\n"


def _blocks(text: str) -> list[_Block]:
    """All blocks but those inside closed reasoning."""
    blocks: list[_Block] = []
    shield: str | None = None  # the tag that would close the reasoning we are in
    shielded_from = position = 0
    while mark := _MARK.search(text, position):
        tag, position = mark[0], mark.end()
        if tag == _OPEN:
            blocks.append(_read_block(text, position, shield))
            position = blocks[-1].end
        elif tag == shield:
            del blocks[shielded_from:]  # drafts
            shield = None
        elif shield is None and not tag.startswith("</"):
            shield, shielded_from = tag.replace("<", "</"), len(blocks)
    return blocks


def _read_block(text: str, start: int, shield: str | None) -> _Block:
    """The block whose opening tag ends at ``start``."""
    start = _skip_blank(text, start)
    rest = text[start:]  # the decoder's errors count lines from the beginning of what it is given: never of all
    try:
        value, length = _DECODER.raw_decode(rest)
    except RecursionError:
        return _broken_block(text, start, shield, "the JSON is nested too deeply")
    except json.JSONDecodeError as error:
        near = rest[max(0, error.pos - 20) : error.pos + 20]
        problem = f"malformed JSON: {error.msg} at character {error.pos}, near {near!r}"
        return _broken_block(text, start, shield, problem)
    except ValueError as error:  # what our own hooks and int() refuse
        return _broken_block(text, start, shield, str(error))
    after = _skip_blank(text, start + length)
    if text.startswith(_CLOSE, after):
        return _Block(value, None, closed=True, end=after + len(_CLOSE))
    return _broken_block(text, after, shield, "text after the JSON object where </tool_call> should be")


def _broken_block(text: str, start: int, shield: str | None, problem: str) -> _Block:
    """A block without usable JSON, ended by the first tag that can end it."""
    ends = [tag for tag in (_CLOSE, _OPEN, shield) if tag is not None]
    mark = re.compile("|".join(map(re.escape, ends))).search(text, start)
    if mark is None:
        return _Block(None, f"{problem}; no closing </tool_call>", closed=False, end=len(text))
    return _Block(None, problem, closed=True, end=mark.end() if mark[0] == _CLOSE else mark.start())


def _skip_blank(text: str, start: int) -> int:
    blank = _BLANK.match(text, start)
    return blank.end() if blank else start


def _answer(block: _Block, tools: Mapping[str, ToolSpec]) -> ToolCall | CallError:
    if block.problem is not None:
        return CallError(f"Tool call error: {block.problem}. {_EXPECTED}")
    value = block.value
    if not isinstance(value, dict):
        return CallError(f"Tool call error: the call is {kind(value)}. {_EXPECTED}")
    name, arguments = value.get("name"), value.get("arguments")
    if not isinstance(name, str):
        return CallError(f'Tool call error: "name" is {kind(name)}. {_EXPECTED}')
    if name not in tools:
        return CallError(f"Tool call error: unknown tool {quoted(name)}. Known tools: {', '.join(tools)}.")
    if not isinstance(arguments, dict):
        return CallError(f'Tool call error: "arguments" is {kind(arguments)}, expected an object. {_EXPECTED}')
    if problem := tools[name].problem(arguments):
        return CallError(f"Tool call error: {problem}. {tools[name].signature()}")
    return ToolCall(name, arguments)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; a key that occurs twice is refused, since picking one would be a guess."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {quoted(key)} occurs twice")
        found[key] = value
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_constant)
