"""One trajectory as a person reads it: assistant turns in order, each with its text and its tool calls in place.

What the model got back stands with the call that it answers, so tool turns are not sections of their own. Pure: rows
in, what the template places out. Leaves out queries (``trajectories.queries``) and the list
(``views/trajectories.py``).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from django.utils.safestring import SafeString

from webapp.trajectories.models import ToolCall, Turn
from webapp.ui import highlight, wording
from webapp.ui.inert import PAGE_CHARACTERS, Folded, fold

_CALL_BLOCK = re.compile(r"<tool_call>.*?</tool_call>", re.DOTALL)
_MOST_BLOCKS = 200


@dataclass(frozen=True, slots=True)
class CallView:
    """A tool call: what was asked, what came of it. ``anchor`` is its address in the page."""

    anchor: str
    call: ToolCall
    code: SafeString | None
    code_cut: bool
    others: tuple[tuple[str, Folded], ...]
    sampled: Folded | None
    response: Folded
    words: str

    @property
    def ok(self) -> bool:
        return self.call.status == "ok"


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of the model, or one of its calls."""

    text: Folded | None = None
    call: CallView | None = None


@dataclass(frozen=True, slots=True)
class TurnView:
    """An assistant turn. ``unheard``: its calls were run, their responses did not go back to the model. ``before`` and
    ``after``: the anchors that a reader steps to."""

    anchor: str
    number: int
    role: str
    tokens: int
    pieces: tuple[Piece, ...]
    unheard: bool
    before: str
    after: str


def turns_of(turns: Sequence[tuple[Turn, Sequence[ToolCall]]]) -> list[TurnView]:
    """The turns of a transcript; a tool turn shows by itself only where no call stands for it."""
    shown = [place for place, (turn, _) in enumerate(turns) if turn.role == "assistant" or not _answers(turns, place)]
    return [_turn(turns, place, number, len(shown)) for number, place in enumerate(shown, start=1)]


def _answers(turns: Sequence[tuple[Turn, Sequence[ToolCall]]], place: int) -> bool:
    """Whether the turn is what the calls of the one before it were answered."""
    return place > 0 and bool(turns[place - 1][1])


def _turn(turns: Sequence[tuple[Turn, Sequence[ToolCall]]], place: int, number: int, count: int) -> TurnView:
    turn, calls = turns[place]
    follows = turns[place + 1][0].role if place + 1 < len(turns) else ""
    return TurnView(
        anchor=f"t{number}",
        number=number,
        role=turn.role,
        tokens=turn.end - turn.start,
        pieces=tuple(_pieces(turn.text, calls, f"t{number}")),
        unheard=bool(calls) and follows in ("", "assistant"),
        before=f"t{number - 1}" if number > 1 else "",
        after=f"t{number + 1}" if number < count else "verdict",
    )


def _pieces(text: str, calls: Sequence[ToolCall], anchor: str) -> Iterator[Piece]:
    """Calls in place of their blocks; where the blocks do not match the calls, exactly what was sampled comes first."""
    blocks = list(_CALL_BLOCK.finditer(text)) if calls and len(calls) <= _MOST_BLOCKS else []
    if len(blocks) != len(calls):
        yield from _text(text)
        for number, call in enumerate(calls, start=1):
            yield Piece(call=_call(call, f"{anchor}-tool{number}", None))
        return
    end = 0
    for number, (block, call) in enumerate(zip(blocks, calls, strict=True), start=1):
        yield from _text(text[end : block.start()])
        yield Piece(call=_call(call, f"{anchor}-tool{number}", block.group()))
        end = block.end()
    yield from _text(text[end:])


def _text(text: str) -> Iterator[Piece]:
    if text.strip():
        yield Piece(text=fold(text.strip("\n")))


def _call(call: ToolCall, anchor: str, sampled: str | None) -> CallView:
    arguments = call.arguments if isinstance(call.arguments, dict) else {}
    program = str(arguments.get("code", ""))
    others = tuple((str(name), fold(str(value))) for name, value in arguments.items() if name != "code" and value)
    return CallView(
        anchor=anchor,
        call=call,
        code=highlight.code(program[:PAGE_CHARACTERS], "python") if program else None,
        code_cut=len(program) > PAGE_CHARACTERS,
        others=others,
        sampled=fold(sampled) if sampled is not None else None,
        response=fold(call.response),
        words=wording.CALL_STATUSES.get(call.status, call.status),
    )


def plain_text(turns: Sequence[tuple[Turn, Sequence[ToolCall]]], problem: str) -> str:
    """The whole trajectory as text: every message as it was stored, calls within the turn that made them."""
    parts = [f"=== problem\n{problem}\n"]
    for number, (turn, calls) in enumerate(turns, start=1):
        parts.append(f"=== message {number}: {turn.role}\n{turn.text}\n")
        for place, call in enumerate(calls, start=1):
            kind = f", {call.error_type}" if call.error_type else ""
            parts.append(f"--- response to call {place}: {call.status}{kind}\n{call.response}\n")
    return "\n".join(parts)
