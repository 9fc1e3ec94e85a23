"""The turn loop: one problem in, one trajectory out, token ids never re-encoded (paper, 2.1).

Rules that the paper leaves open, each held by a test:

* **Budget.** Prompt and response fit the context, the response fits ``max_response_tokens``. With nothing
  left no request is sent and the rollout ends as ``length``. A tool response that leaves no room for the
  model to go on is not appended: the last token of a trajectory is always the model's.
* **A cut turn makes no calls.** When generation ends for ``length``, calls that the text happens to hold
  are not run.
* **Last turn.** Calls made in turn ``max_turns`` are run and counted like any other, so that tool calls and
  tool errors mean the same everywhere; their responses are kept in the record and not appended. The rollout
  ends as ``max_turns``.
* **An end mark that was not sampled** (an engine that strips it) is appended with mask 0 in front of tool
  responses.
* **One policy.** All turns are sampled by one weight version. Should new weights come between two turns, the
  attempt is spoiled by us.
* **A tool's own exception** is an answer: status ``error``, with its type and message.
* **We failed** is an exception, never an answer: ``SandboxUnavailable``, ``EngineUnavailable``, for a generation
  that was aborted ``RolloutAborted``, for turns of two versions ``MixedVersions``. Nothing of such an attempt
  survives, so a late reply has nowhere to go.

Leaves out where rollouts run and when they are tried again (``pool.py``), parsing (``toolcalls.py``), what tools do
(``tools``) and rewards.
"""

import asyncio
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from engine.contract.base import visible
from engine.contract.trajectory import StopReason, ToolCallRecord, Trajectory, Turn
from engine.rollout.base import EngineUnavailable, FinishReason, GenerateRequest, Generation
from engine.rollout.toolcalls import CallError, ToolCall, parse_tool_calls, truncate_middle
from engine.rollout.tools.base import RolloutScope, Sandbox, Tool, ToolContext, ToolOutcome
from sandbox.contract import ExecStatus, Limits, RequestRefused, SandboxUnavailable

PARSE_ERROR = "parse_error"

_ANSWER = re.compile(r"<answer>.*?</answer>", re.DOTALL)

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class RolloutAborted(EngineUnavailable):
    """The engine gave a generation up halfway: nothing to score, to be done again."""


class MixedVersions(EngineUnavailable):
    """New weights came between two turns: such a rollout is of no policy, to be done again."""


class TurnRenderer(Protocol):
    """What the loop needs of ``engine.data.render.Renderer``."""

    end_id: int

    def prompt(self, problem: str) -> list[int]: ...

    def tool_turn(self, responses: Sequence[str]) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


Generate = Callable[[GenerateRequest], Awaitable[Generation]]


@dataclass(frozen=True, slots=True)
class RolloutTask:
    """One rollout to do: which, of what, and how hot. ``temperature`` 0 is greedy."""

    stage: str
    step: int
    group: str
    replica: int
    problem_id: str
    problem: str
    gold: str
    temperature: float = 1.0
    u: float = 1.0


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """How long a rollout may get and what its tool calls may use. Tokens, turns, calls, characters."""

    context_tokens: int
    max_response_tokens: int
    max_turns: int
    max_calls_per_turn: int
    tool_response_chars: int
    sandbox: Limits = field(default_factory=Limits)


@dataclass(slots=True)
class _Response:
    """The response as it grows: three columns of equal length and the turns that point into them."""

    ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def add_assistant(self, made: Generation, text: str, calls: Sequence[ToolCallRecord]) -> None:
        start = len(self.ids)
        self.ids += made.ids
        self.logprobs += made.logprobs
        self.sampled += [True] * len(made.ids)
        self.versions.append(made.version)
        self.turns.append(
            Turn(role="assistant", start=start, end=len(self.ids), text=visible(text), calls=tuple(calls))
        )

    def add_tool(self, ids: Sequence[int], text: str) -> None:
        start = len(self.ids)
        self.ids += ids
        self.logprobs += [0.0] * len(ids)
        self.sampled += [False] * len(ids)
        self.turns.append(Turn(role="tool", start=start, end=len(self.ids), text=text))

    def stop_reason(self) -> StopReason:
        """Of a rollout whose last turn made no call."""
        text = "\n".join(turn.text for turn in self.turns if turn.role == "assistant")
        return StopReason.answered if _ANSWER.search(text) else StopReason.no_answer


async def run_rollout(
    task: RolloutTask,
    *,
    generate: Generate,
    sandbox: Sandbox,
    renderer: TurnRenderer,
    tools: Sequence[Tool],
    limits: TurnLimits,
) -> Trajectory:
    """One rollout from its prompt to its stop reason; reward and everything after it are left unset."""
    began = time.monotonic()
    async with RolloutScope() as scope:
        context = ToolContext(sandbox, limits.sandbox, scope)
        loop = _Loop(task, generate, renderer, tools, context, limits, tuple(renderer.prompt(task.problem)))
        stop = await loop.converse()
    response = loop.response
    return Trajectory(
        stage=task.stage,
        step=task.step,
        group=task.group,
        replica=task.replica,
        problem_id=task.problem_id,
        problem=task.problem,
        gold=task.gold,
        prompt_ids=loop.prompt,
        ids=tuple(response.ids),
        sampled=tuple(response.sampled),
        logprobs=tuple(response.logprobs),
        turns=tuple(response.turns),
        stop_reason=stop,
        first_version=response.versions[0] if response.versions else 0,
        last_version=response.versions[-1] if response.versions else 0,
        u=task.u,
        seconds=time.monotonic() - began,
    )


@dataclass(slots=True)
class _Loop:
    """One rollout under way."""

    task: RolloutTask
    generate: Generate
    renderer: TurnRenderer
    tools: Sequence[Tool]
    context: ToolContext
    limits: TurnLimits
    prompt: tuple[int, ...]
    response: _Response = field(default_factory=_Response)

    @property
    def budget(self) -> int:
        return min(self.limits.max_response_tokens, self.limits.context_tokens - len(self.prompt))

    @property
    def left(self) -> int:
        return self.budget - len(self.response.ids)

    async def converse(self) -> StopReason:
        """Take turns until a rule ends the rollout."""
        if self.left <= 0:
            _log.info("group %s: a prompt of %d tokens leaves no room", self.task.group, len(self.prompt))
        while self.left > 0:
            made = await self._sample()
            text = _turn_text(made, self.renderer)
            if made.finish is FinishReason.length:
                self.response.add_assistant(made, text, ())
                break
            calls = await answer_calls(text, tools=self.tools, context=self.context, limits=self.limits)
            self.response.add_assistant(made, text, calls)
            if not calls:
                return self.response.stop_reason()
            if len(self.response.versions) == self.limits.max_turns:
                return StopReason.max_turns
            replies = [call.response for call in calls]
            tool_ids = _tool_ids(made, replies, self.renderer)
            if len(tool_ids) >= self.left:
                break
            self.response.add_tool(tool_ids, "\n".join(replies))
        return StopReason.length

    async def _sample(self) -> Generation:
        """One turn. Raises if the engine gave it up or did not do what was asked."""
        request = GenerateRequest(
            prompt_ids=[*self.prompt, *self.response.ids],
            max_tokens=self.left,
            temperature=self.task.temperature,
            stop_token_ids=(self.renderer.end_id,),
            replica=self.task.replica,
        )
        made = await self.generate(request)
        if made.finish is FinishReason.abort:
            raise RolloutAborted(f"generation aborted after {len(made.ids)} tokens")
        if len(made.ids) != len(made.logprobs) or len(made.ids) > self.left:
            got = f"{len(made.ids)} with {len(made.logprobs)} log-probabilities"
            raise EngineUnavailable(f"asked for at most {self.left} tokens, got {got}")
        first = self.response.versions[0] if self.response.versions else made.version
        if made.version != first:
            raise MixedVersions(f"turns sampled by weight versions {first} and {made.version}")
        return made


def _turn_text(made: Generation, renderer: TurnRenderer) -> str:
    """What the model wrote, without the end mark."""
    ended = bool(made.ids) and made.ids[-1] == renderer.end_id
    return renderer.decode(made.ids[:-1] if ended else made.ids)


def _tool_ids(made: Generation, replies: Sequence[str], renderer: TurnRenderer) -> list[int]:
    """What follows the turn; starts with the end mark if the engine kept it to itself."""
    ended = bool(made.ids) and made.ids[-1] == renderer.end_id
    return [*([] if ended else [renderer.end_id]), *renderer.tool_turn(replies)]


async def answer_calls(
    text: str, *, tools: Sequence[Tool], context: ToolContext, limits: TurnLimits
) -> tuple[ToolCallRecord, ...]:
    """Run every call of one finished assistant turn at the same time; records in the order of the calls."""
    by_name = {tool.spec.name: tool for tool in tools}
    specs = [tool.spec for tool in tools]
    calls = parse_tool_calls(text, specs, finish_reason="stop", max_calls=limits.max_calls_per_turn)
    return tuple(await _all_or_none([_record(call, by_name, context, limits) for call in calls]))


async def _all_or_none(work: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Results in order; when one fails or we are cancelled the others are stopped before it is passed on."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _record(
    call: ToolCall | CallError, tools: Mapping[str, Tool], context: ToolContext, limits: TurnLimits
) -> ToolCallRecord:
    if isinstance(call, CallError):
        return ToolCallRecord(name="", status=PARSE_ERROR, response=_fit(call.text, limits))
    came = await _answer(call, tools[call.name], context)
    return ToolCallRecord(
        name=call.name,
        arguments={name: visible(_as_text(value)) for name, value in call.arguments.items()},
        status=came.status,
        response=_fit(came.response, limits),
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


def _fit(text: str, limits: TurnLimits) -> str:
    return truncate_middle(visible(text), limits.tool_response_chars)
