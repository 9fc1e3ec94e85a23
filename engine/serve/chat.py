"""From a chat request to rollouts: prompt, place in the queue, turn loop; our failures become errors that say so.

* A conversation is rendered from its text. What an earlier answer was sampled as is not known any more, so its ids may
  be others than then; within one rollout nothing is ever encoded again.
* More than ``most_in_flight`` rollouts, running and waiting, are refused before anything of them is begun.
* Whoever stops waiting (a client that went away) cancels the rollout; nothing of it is left in engine or sandbox.
* An engine or sandbox that failed is an error, never an answer; why is for our log, not for strangers. The pool tries
  a rollout again, unless somebody has been told its beginning already: another beginning would not fit it.

Leaves out HTTP (``door.py``) and what a client is sent (``answers.py``, ``streaming.py``).
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from engine.contract.trajectory import Trajectory
from engine.data.render import Renderer
from engine.rollout.agent import RolloutTask, TurnLimits, run_rollout
from engine.rollout.base import EngineUnavailable
from engine.rollout.listening import Listener
from engine.rollout.place import Place
from engine.rollout.pool import EnginePool, Failed
from engine.rollout.scheduling.base import NeverFits, Size
from engine.rollout.tools.base import Sandbox, Tool
from engine.serve.errors import busy, too_long, unavailable
from engine.serve.wire import ChatMessage, ChatRequest, conversation, system_text

_log = logging.getLogger(__name__)

MOST_CHARACTERS_A_TOKEN = 256
"""No vocabulary that we know has a longer token: what is longer than the context at that rate is not encoded."""


class Follower(Listener, Protocol):
    """A listener who is told the end too."""

    begun: bool
    """Whether it has heard anything that it cannot take back."""

    def finished(self, made: Trajectory) -> None:
        """The rollout is over."""


@dataclass(frozen=True, slots=True)
class Agent:
    """What answers: engines, tools and limits."""

    name: str
    pool: EnginePool
    renderer: Renderer
    tools: Sequence[Tool]
    sandbox: Sandbox
    limits: TurnLimits


@dataclass(frozen=True, slots=True)
class Sampled:
    """What an answer is made of: rollouts of one prompt."""

    prompt_tokens: int
    rollouts: list[Trajectory]


class Chat:
    """Answers conversations; used from one event loop."""

    def __init__(self, agent: Agent, *, most_in_flight: int) -> None:
        self.agent = agent
        self._most_in_flight = most_in_flight
        self._in_flight = 0

    async def sample(
        self, asked: ChatRequest, *, followers: Sequence[Follower] = (), chunk_tokens: int | None = None
    ) -> Sampled:
        """``asked.n`` rollouts of a conversation. Raises ``ApiError`` if one of them could not be had."""
        with self._room(asked.n):
            prompt = await self._prompt(asked.messages)
            rollouts = await self._rollouts(asked, prompt, followers, chunk_tokens)
        return Sampled(len(prompt), rollouts)

    async def _prompt(self, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
        """Ids of a conversation that leaves room for an answer."""
        context = self.agent.limits.context_tokens
        characters = sum(len(message.content) for message in messages)
        if characters > context * MOST_CHARACTERS_A_TOKEN:
            raise too_long(f"the messages have {characters} characters, this model's context is {context} tokens")
        ids = await asyncio.to_thread(self._render, messages)
        if len(ids) >= context:
            raise too_long(
                f"the messages are {len(ids)} tokens long, this model's context of {context} has no room left"
            )
        return ids

    def _render(self, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
        return tuple(self.agent.renderer.chat(conversation(messages), system=system_text(messages)))

    async def _rollouts(
        self,
        asked: ChatRequest,
        prompt: tuple[int, ...],
        followers: Sequence[Follower],
        chunk_tokens: int | None,
    ) -> list[Trajectory]:
        limits = self._limits(asked, chunk_tokens)
        longest = min(len(prompt) + limits.max_response_tokens, limits.context_tokens)
        size = Size(problem="", prompt_tokens=len(prompt), max_tokens=longest)

        async def one(task: RolloutTask, place: Place) -> Trajectory:
            return await self._roll(task, place, limits, followers[task.replica] if followers else None)

        tasks = [_task(asked, prompt, replica) for replica in range(asked.n)]
        try:
            done = await self.agent.pool.run(tasks, one, size=lambda _: size)
        except NeverFits as error:
            raise too_long(str(error)) from error
        except EngineUnavailable as error:
            _log.warning("an answer was lost: %s", error)
            raise unavailable("no engine is there") from error
        if lost := [each for each in done if isinstance(each, Failed)]:
            _log.warning("an answer was lost: %s", lost[0].reason)
            raise unavailable("an engine or the sandbox failed")
        return [each for each in done if isinstance(each, Trajectory)]

    async def _roll(self, task: RolloutTask, place: Place, limits: TurnLimits, follower: Follower | None) -> Trajectory:
        if follower is not None and follower.begun:
            raise unavailable("an engine or the sandbox failed in the middle of the answer")
        made = await run_rollout(
            task,
            generate=place.generate,
            sandbox=self.agent.sandbox,
            renderer=self.agent.renderer,
            tools=self.agent.tools,
            limits=limits,
            listen=follower,
        )
        if follower is not None:
            follower.finished(made)
        return made

    def _limits(self, asked: ChatRequest, chunk_tokens: int | None) -> TurnLimits:
        ours = self.agent.limits
        most = min(ours.max_response_tokens, asked.most_tokens or ours.max_response_tokens)
        return replace(ours, max_response_tokens=most, chunk_tokens=chunk_tokens)

    @contextmanager
    def _room(self, rollouts: int) -> Iterator[None]:
        if self._in_flight + rollouts > self._most_in_flight:
            raise busy(f"{self._in_flight} answers are under way, {self._most_in_flight} is the most: come again")
        self._in_flight += rollouts
        try:
            yield
        finally:
            self._in_flight -= rollouts


def _task(asked: ChatRequest, prompt: tuple[int, ...], replica: int) -> RolloutTask:
    return RolloutTask(
        stage="serve",
        step=0,
        group="",
        replica=replica,
        problem_id="",
        problem="",
        gold="",
        temperature=asked.temperature,
        prompt_ids=prompt,
    )
