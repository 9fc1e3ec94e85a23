"""Answers in OpenAI's form. What is ours alone stands in each choice's ``starloom``, which other clients skip.

Whole: ``content`` is the text of the last turn; ``starloom`` has all turns with their calls. In a stream ``content`` is
what the model writes in every turn, and pieces without content tell in ``starloom`` what happens between them:
``calls``, ``results`` and ``finished``. Leaves out when they are sent: ``streaming.py``.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from engine.contract.trajectory import StopReason, Trajectory
from engine.serve.chat import Sampled
from engine.serve.text import cut_at

_CUT = frozenset({StopReason.length, StopReason.max_turns})


@dataclass(frozen=True, slots=True)
class Heading:
    """What all parts of one answer begin with."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def _body(self, kind: str, choices: list[dict[str, Any]], **more: object) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            **more,
        }

    def whole(self, made: Sampled, stops: Sequence[str]) -> dict[str, Any]:
        """The answer at once."""
        choices = [
            {
                "index": place,
                "message": {"role": "assistant", "content": cut_at(last_text(each), stops)},
                "finish_reason": finish_reason(each),
                "starloom": {**summary(each), "turns": turns(each)},
            }
            for place, each in enumerate(made.rollouts)
        ]
        return self._body("chat.completion", choices, usage=usage(made))

    def piece(
        self,
        index: int,
        delta: Mapping[str, str],
        *,
        finish: str | None = None,
        starloom: Mapping[str, object] | None = None,
    ) -> dict[str, Any]:
        """A part of a stream."""
        choice: dict[str, Any] = {"index": index, "delta": delta, "finish_reason": finish}
        if starloom is not None:
            choice["starloom"] = starloom
        return self._body("chat.completion.chunk", [choice])

    def used(self, made: Sampled) -> dict[str, Any]:
        """The part of a stream that tells what it took."""
        return self._body("chat.completion.chunk", [], usage=usage(made))


def usage(made: Sampled) -> dict[str, int]:
    """Tokens of the prompt, and those that the model sampled in all choices; answers of tools are neither."""
    prompt, sampled = made.prompt_tokens, sum(sum(each.sampled) for each in made.rollouts)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def last_text(made: Trajectory) -> str:
    """What the model wrote in its last turn."""
    return next(turn.text for turn in reversed(made.turns) if turn.role == "assistant")


def finish_reason(made: Trajectory) -> str:
    """``length`` for whoever was cut by a limit: of tokens, or of turns."""
    return "length" if made.stop_reason in _CUT else "stop"


def summary(made: Trajectory) -> dict[str, Any]:
    """How a rollout went. Seconds; tokens of the whole response, answers of tools included."""
    return {
        "stop_reason": made.stop_reason,
        "seconds": round(made.seconds, 3),
        "response_tokens": len(made.ids),
        "tool_calls": len(made.calls),
        "tool_errors": made.tool_errors,
    }


def turns(made: Trajectory) -> list[dict[str, Any]]:
    """Every turn of the model with its calls and what came of them."""
    return [
        {"text": turn.text, "calls": [call.model_dump() for call in turn.calls]}
        for turn in made.turns
        if turn.role == "assistant"
    ]
