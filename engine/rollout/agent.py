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
* **Chunks.** A turn may be sampled ``chunk_tokens`` at a time, each request going on from the ids so far
  (ADR 15). Between two chunks, and between two turns, a rollout can be halted and gone on with later. One whose
  tools keep something for it (a session) is not halted, since it would lose that: it ends as if nobody had asked.
* **One policy.** All that is sampled between a start, or a going on, and the next halt is of one weight version.
  Should new weights come in between, the attempt is spoiled by us. Which version sampled what is on record.
* **We failed** is an exception, never an answer: ``SandboxUnavailable``, ``EngineUnavailable``, for a generation
  that was aborted ``RolloutAborted``, for turns of two versions ``MixedVersions``. Nothing of such an attempt
  survives, so a late reply has nowhere to go.

Leaves out where rollouts run and when they are tried again (``pool.py``), reading and running calls (``toolcalls.py``,
``calls.py``), what tools do (``tools``) and rewards.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from engine.contract.trajectory import StopReason, ToolCallRecord, Trajectory
from engine.rollout.base import EngineUnavailable, FinishReason, GenerateRequest, Generation
from engine.rollout.calls import read_calls, run_calls
from engine.rollout.listening import Listener, Unheard
from engine.rollout.response import Begun, Response
from engine.rollout.tools.base import RolloutScope, Sandbox, Tool, ToolContext
from sandbox.contract import Limits

AT_ONCE_CHARS = 16_384
"""Text that is read or rendered on the event loop: milliseconds, whatever is in it."""

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class RolloutAborted(EngineUnavailable):
    """The engine gave a generation up halfway: nothing to score, to be done again."""


class MixedVersions(EngineUnavailable):
    """New weights came between two turns: such a rollout is of no policy, to be done again."""


class Halted(Exception):
    """The rollout was asked to halt and can be gone on with: no failure."""

    def __init__(self, begun: Begun) -> None:
        super().__init__(f"halted after {len(begun.ids)} tokens")
        self.begun = begun


class TurnRenderer(Protocol):
    """What the loop needs of ``engine.data.render.Renderer``."""

    end_id: int

    def prompt(self, problem: str) -> list[int]: ...

    def tool_turn(self, responses: Sequence[str]) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


Generate = Callable[[GenerateRequest], Awaitable[Generation]]


@dataclass(frozen=True, slots=True)
class RolloutTask:
    """One rollout to do: which, of what, and how hot. ``temperature`` 0 is greedy.

    ``prompt_ids`` is its prompt if given; otherwise ``problem`` is rendered.
    """

    stage: str
    step: int
    group: str
    replica: int
    problem_id: str
    problem: str
    gold: str
    temperature: float = 1.0
    u: float = 1.0
    prompt_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """How long a rollout may get and what its tool calls may use. Tokens, turns, calls, characters.

    ``chunk_tokens`` are sampled at a time; None is a whole turn.
    """

    context_tokens: int
    max_response_tokens: int
    max_turns: int
    max_calls_per_turn: int
    tool_response_chars: int
    sandbox: Limits = field(default_factory=Limits)
    chunk_tokens: int | None = None


async def run_rollout(
    task: RolloutTask,
    *,
    generate: Generate,
    sandbox: Sandbox,
    renderer: TurnRenderer,
    tools: Sequence[Tool],
    limits: TurnLimits,
    listen: Listener | None = None,
    stop: asyncio.Event | None = None,
    begun: Begun | None = None,
) -> Trajectory:
    """One rollout from its prompt, or from where it was halted, to its stop reason; rewards are left unset.

    ``listen`` is told what happens. Once ``stop`` is set the rollout halts where it can: raises ``Halted`` with what to
    give as ``begun`` to go on.
    """
    async with RolloutScope() as scope:
        loop = _Loop(
            task=task,
            begun=begun or Begun(tuple(renderer.prompt(task.problem) if task.prompt_ids is None else task.prompt_ids)),
            generate=generate,
            renderer=renderer,
            tools=tools,
            context=ToolContext(sandbox, limits.sandbox, scope),
            limits=limits,
            listen=listen or Unheard(),
            stop=stop or asyncio.Event(),
        )
        ended = await loop.converse()
    return loop.trajectory(ended)


@dataclass(slots=True)
class _Loop:
    """One rollout under way, from ``begun`` on."""

    task: RolloutTask
    begun: Begun
    generate: Generate
    renderer: TurnRenderer
    tools: Sequence[Tool]
    context: ToolContext
    limits: TurnLimits
    listen: Listener
    stop: asyncio.Event
    response: Response = field(init=False)
    version: int | None = None
    """Of the weights that sample since ``begun``."""
    began_at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.response = Response.of(self.begun)

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.begun.prompt_ids

    @property
    def left(self) -> int:
        budget = min(self.limits.max_response_tokens, self.limits.context_tokens - len(self.prompt))
        return budget - len(self.response.ids)

    @property
    def seconds(self) -> float:
        return self.begun.seconds + time.monotonic() - self.began_at

    async def converse(self) -> StopReason:
        """Take turns until a rule ends the rollout."""
        if self.left <= 0:
            _log.info("group %s: a prompt of %d tokens leaves no room", self.task.group, len(self.prompt))
        while self.left > 0:
            whole = await self._sample_turn()
            text = self._turn_text()
            if not whole:
                self.response.close_turn(text, ())
                break
            calls = await self._answer(text)
            self.response.close_turn(text, calls)
            if not calls:
                return self._stop_reason()
            if self.response.assistant_turns == self.limits.max_turns:
                return StopReason.max_turns
            if not await self._append([call.response for call in calls]):
                break
        return StopReason.length

    async def _sample_turn(self) -> bool:
        """Sample a turn to its end, or go on with a halted one; whether the policy itself ended it."""
        while True:
            self._halt_if_asked()
            most = min(self.left, self.limits.chunk_tokens or self.left)
            made = await self._sample(most)
            self.response.add_sampled(made)
            self.listen.sampled(made.ids)
            if made.finish is FinishReason.stop:
                return True
            if len(made.ids) < most or self.left == 0:
                return False

    def _halt_if_asked(self) -> None:
        if self.stop.is_set() and not self.context.scope.keeps:
            raise Halted(self.response.halted(self.prompt, self.seconds))

    async def _sample(self, most: int) -> Generation:
        """At most ``most`` tokens. Raises if the engine gave them up or did not do what was asked."""
        request = GenerateRequest(
            prompt_ids=[*self.prompt, *self.response.ids],
            max_tokens=most,
            temperature=self.task.temperature,
            stop_token_ids=(self.renderer.end_id,),
            replica=self.task.replica,
            turn_tokens=len(self.response.ids) - self.response.turn_start,
        )
        made = await self.generate(request)
        if made.finish is FinishReason.abort:
            raise RolloutAborted(f"generation aborted after {len(made.ids)} tokens")
        told = len(made.ids) if made.logprobs is None else len(made.logprobs)
        if len(made.ids) != told or len(made.ids) > most:
            got = f"{len(made.ids)} with {told} log-probabilities"
            raise EngineUnavailable(f"asked for at most {most} tokens, got {got}")
        if self.version is None:
            self.version = made.version
        if made.version != self.version:
            raise MixedVersions(f"turns sampled by weight versions {self.version} and {made.version}")
        return made

    async def _answer(self, text: str) -> tuple[ToolCallRecord, ...]:
        """What a whole turn asked of its tools, and what they answered."""
        calls = await _aside(len(text), lambda: read_calls(text, self.tools, self.limits))
        if not calls:
            return ()
        self.listen.called(calls)
        records = await run_calls(calls, tools=self.tools, context=self.context, limits=self.limits)
        self.listen.answered(records)
        return records

    async def _append(self, replies: Sequence[str]) -> bool:
        """Append the tools' responses; whether there is room for them and for more."""
        if len(replies) >= self.left:  # none is without a token: not even rendered
            return False
        rendered = await _aside(sum(map(len, replies)), lambda: self.renderer.tool_turn(replies))
        end = self.renderer.end_id
        tool_ids = [*([] if self.response.ids[-1:] == [end] else [end]), *rendered]
        if len(tool_ids) >= self.left:
            return False
        self.response.add_tool(tool_ids, "\n".join(replies))
        return True

    def _turn_text(self) -> str:
        """What the model wrote in the open turn, without the end mark."""
        ids = self.response.open_ids
        return self.renderer.decode(ids[:-1] if ids[-1:] == [self.renderer.end_id] else ids)

    def _stop_reason(self) -> StopReason:
        """Of a rollout whose last turn made no call."""
        text = self.response.sampled_text
        answered = 0 <= text.find("<answer>") < text.rfind("</answer>")
        return StopReason.answered if answered else StopReason.no_answer

    def trajectory(self, ended: StopReason) -> Trajectory:
        task, response, steps = self.task, self.response, self.response.policy_steps
        return Trajectory(
            stage=task.stage,
            step=task.step,
            group=task.group,
            replica=task.replica,
            problem_id=task.problem_id,
            problem=task.problem,
            gold=task.gold,
            prompt_ids=self.prompt,
            ids=tuple(response.ids),
            sampled=tuple(response.sampled),
            logprobs=tuple(response.logprobs),
            turns=tuple(response.turns),
            stop_reason=ended,
            first_version=steps[0][1] if steps else 0,
            last_version=steps[-1][1] if steps else 0,
            policy_steps=tuple(steps) if len(steps) > 1 else (),
            u=task.u,
            seconds=self.seconds,
        )


async def _aside(chars: int, work: Callable[[], _T]) -> _T:
    """The result of work on so many characters; on many of them a thread does it, so that nobody else waits."""
    return work() if chars <= AT_ONCE_CHARS else await asyncio.to_thread(work)
