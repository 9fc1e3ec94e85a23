"""The calls of one assistant turn, run all at once, and the records of what came of them.

* **A tool's own exception** is an answer: status ``error``, with its type and message.
* **We failed** is an exception, never an answer: ``SandboxUnavailable`` stops the other calls and spoils the attempt.

Leaves out reading the calls (``toolcalls.py``), what tools do (``tools``) and where responses go (``agent.py``).
"""

import asyncio
import json
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from engine.contract.base import visible
from engine.contract.trajectory import ToolCallRecord
from engine.rollout.toolcalls import CallError, ToolCall, halves, left_out, parse_tool_calls, truncate_middle
from engine.rollout.tools.base import Tool, ToolContext, ToolOutcome
from sandbox.contract import ExecStatus, RequestRefused, SandboxUnavailable

PARSE_ERROR = "parse_error"

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class CallLimits(Protocol):
    """Calls a turn, characters of a response."""

    @property
    def max_calls_per_turn(self) -> int: ...

    @property
    def tool_response_chars(self) -> int: ...


async def answer_calls(
    text: str, *, tools: Sequence[Tool], context: ToolContext, limits: CallLimits
) -> tuple[ToolCallRecord, ...]:
    """Read and run every call of one finished assistant turn; records in the order of the calls."""
    return await run_calls(read_calls(text, tools, limits), tools=tools, context=context, limits=limits)


def read_calls(text: str, tools: Sequence[Tool], limits: CallLimits) -> tuple[ToolCall | CallError, ...]:
    """The calls of a turn that ended by itself, and what was wrong with those that are none."""
    specs = [tool.spec for tool in tools]
    return parse_tool_calls(text, specs, finish_reason="stop", max_calls=limits.max_calls_per_turn)


async def run_calls(
    calls: Sequence[ToolCall | CallError], *, tools: Sequence[Tool], context: ToolContext, limits: CallLimits
) -> tuple[ToolCallRecord, ...]:
    """Run calls at the same time; records in their order."""
    by_name = {tool.spec.name: tool for tool in tools}
    running = [_ran(call, by_name[call.name], context, limits) for call in calls if isinstance(call, ToolCall)]
    ran = iter(await _all_or_none(running))
    return tuple(next(ran) if isinstance(call, ToolCall) else _not_run(call, limits) for call in calls)


async def _all_or_none(work: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Results in order; when one fails or we are cancelled the others are stopped before it is passed on."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _not_run(error: CallError, limits: CallLimits) -> ToolCallRecord:
    return ToolCallRecord(name="", status=PARSE_ERROR, response=fitted(error.text, limits.tool_response_chars))


async def _ran(call: ToolCall, tool: Tool, context: ToolContext, limits: CallLimits) -> ToolCallRecord:
    came = await _answer(call, tool, context)
    return ToolCallRecord(
        name=call.name,
        arguments={name: visible(_as_text(value)) for name, value in call.arguments.items()},
        status=came.status,
        response=fitted(came.response, limits.tool_response_chars),
        error_type=came.error_type,
        queued_s=came.queued_s,
        wall_s=came.wall_s,
    )


async def _answer(call: ToolCall, tool: Tool, context: ToolContext) -> ToolOutcome:
    """What the tool answers. What it raises is an answer too, unless it says that the sandbox failed or refuses us."""
    try:
        came = await tool.call(call.arguments, context)
        if not isinstance(came, ToolOutcome):  # a user's tool is not held by our type checker
            raise TypeError(f"the tool answered {type(came).__name__}, expected ToolOutcome")
    except (SandboxUnavailable, RequestRefused):
        raise
    except Exception as error:
        _log.info("tool %s raised", call.name, exc_info=error)
        said = f"Tool error: {type(error).__name__}: {error}"
        return ToolOutcome(said, ExecStatus.ERROR, error_type=type(error).__name__)
    return came


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def fitted(text: str, limit_chars: int) -> str:
    """Foreign text as a response holds it: every character visible, at most ``limit_chars`` around a marker.

    Only what stays is looked at, so that megabytes hold nobody up.
    """
    if len(text) <= limit_chars:
        return truncate_middle(visible(text), limit_chars)
    head, tail = halves(limit_chars)
    first, last = visible(text[:head]), visible(text[len(text) - tail :])
    return first[:head] + left_out(len(text) - limit_chars) + last[len(last) - tail :]
