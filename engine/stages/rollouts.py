"""What stages ask of the rollout side: a pool to sample from, serve these weights, answer this call.

Owns the engines of a run, and what it learns of response lengths. They start in the background, because an SFT stage
does not need them; the first who does waits. Leaves out sampling a batch (``sampling.py``), how a rollout goes
(``engine.rollout.agent``) and who runs where (``engine.rollout.pool``).
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from engine.contract.job import Recipe
from engine.contract.stages import RolloutStage
from engine.data.render import Renderer
from engine.learner.base import Learner
from engine.rollout.agent import TurnLimits
from engine.rollout.base import EngineUnavailable
from engine.rollout.calls import answer_calls
from engine.rollout.engine_factory import make_engines
from engine.rollout.pool import EnginePool
from engine.rollout.scheduling.lengths import LengthModel
from engine.rollout.scheduling.registry import make_scheduler
from engine.rollout.tools.base import RolloutScope, Sandbox, Tool, ToolContext
from engine.sink.run_folder import RunFolder
from engine.weights.base import LearnerThread, WeightLink
from engine.weights.broadcast_link import BroadcastLink
from engine.weights.file_link import FileLink

_log = logging.getLogger(__name__)


class Rollouts:
    """The rollout engines of a run, used as an async context manager."""

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        sandbox: Sandbox,
        renderer: Renderer,
        *,
        tools: Sequence[Tool],
        learner_thread: LearnerThread,
    ) -> None:
        self.recipe = recipe
        self.sandbox = sandbox
        self.renderer = renderer
        self.tools = tools
        resources = recipe.rollout
        self._pool = EnginePool(
            make_engines(recipe, folder, renderer),
            scheduler=make_scheduler(resources.scheduler, max_running=resources.max_running, lengths=LengthModel()),
            retries=resources.retries,
            start_timeout_s=resources.start_timeout_s,
        )
        self._link = make_link(recipe, folder, self._pool, learner_thread)
        self._starting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._starting = asyncio.create_task(self._pool.start())
        self._starting.add_done_callback(_tell_failed_start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._starting is not None:
            self._starting.cancel()
            with suppress(asyncio.CancelledError, EngineUnavailable):  # told already to whoever waited for it
                await self._starting
        await self._link.close()
        await self._pool.close()

    async def ready(self) -> EnginePool:
        """The pool with every engine started. Raises ``EngineUnavailable`` if one did not come up."""
        if self._starting is None:
            raise RuntimeError("rollouts are used inside `async with`")
        await asyncio.shield(self._starting)
        return self._pool

    async def publish(self, learner: Learner, version: int) -> None:
        """Every engine serves the learner's weights as ``version`` when this returns.

        An engine that is restarted before the next weights may have the learner export these once more. So before the
        learner is closed, say by ``load_weights`` where they are from then on.
        """
        await self.ready()
        await self._link.publish(learner, version)

    async def load_weights(self, folder: Path, version: int) -> None:
        """Every engine serves the weights of a model folder as ``version`` when this returns.

        One that has this version already is left as it is; restarted, it reads the folder.
        """
        await (await self.ready()).load_weights(folder, version)

    @property
    def lengths(self) -> LengthModel:
        """What this run has learned of response lengths. Replaced where a run goes on, between two batches."""
        return self._pool.scheduler.lengths

    @lengths.setter
    def lengths(self, lengths: LengthModel) -> None:
        self._pool.scheduler.lengths = lengths

    async def load(self) -> dict[str, dict[str, float]]:
        """Load figures by engine, see ``EnginePool.load``."""
        return await self._pool.load()

    async def tool_response(self, text: str) -> str:
        """What the turn loop would answer to the call in an assistant turn's text (SFT data)."""
        limits = TurnLimits(
            context_tokens=self.recipe.model.context_tokens,
            max_response_tokens=self.recipe.model.context_tokens,
            max_turns=1,
            max_calls_per_turn=1,
            tool_response_chars=RolloutStage.model_fields["tool_response_chars"].default,
            sandbox=self.recipe.sandbox.limits,
        )
        async with RolloutScope() as scope:
            context = ToolContext(self.sandbox, limits.sandbox, scope)
            calls = await answer_calls(text, tools=self.tools, context=context, limits=limits)
        return calls[0].response


def _tell_failed_start(starting: "asyncio.Task[None]") -> None:
    """At once, not when an RL stage first needs the engines: an SFT stage may run for hours before that."""
    if not starting.cancelled() and (error := starting.exception()) is not None:
        _log.error("rollout engines did not start, the first stage that samples will fail: %s", error)


def make_link(recipe: Recipe, folder: RunFolder, pool: EnginePool, learner_thread: LearnerThread) -> WeightLink:
    """The way that the recipe names for new weights."""
    files = FileLink(pool, learner_thread=learner_thread, model_folder=folder.model, fallback=folder.path)
    if recipe.rollout.weights == "file":
        return files
    return BroadcastLink(pool, files, learner_thread=learner_thread)
