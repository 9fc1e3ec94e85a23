"""What stages ask of the rollout side: sample these problems, serve these weights, answer this call.

Owns the engines of a run. They start in the background, because an SFT stage does not need them; the first who does
waits. Leaves out how a rollout goes (``engine.rollout.agent``) and who runs where (``engine.rollout.pool``).
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from engine.contract.job import Recipe, RolloutStage
from engine.contract.trajectory import Trajectory
from engine.data.problem import Problem
from engine.data.render import Renderer
from engine.learner.base import Learner
from engine.rollout.agent import RolloutTask, TurnLimits, answer_calls, run_rollout
from engine.rollout.base import EngineCapacity, EngineUnavailable, RolloutEngine
from engine.rollout.pool import EnginePool, Failed
from engine.rollout.scripted_engine import ScriptedEngine
from engine.rollout.scripted_policy import arithmetic_policy
from engine.rollout.tools.base import RolloutScope, Sandbox, Tool, ToolContext
from engine.rollout.vllm_engine import VllmEngine
from engine.sink.run_folder import RunFolder
from engine.stages.randomness import stream
from engine.weights.base import LearnerThread, WeightLink
from engine.weights.broadcast_link import BroadcastLink
from engine.weights.file_link import FileLink

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ask:
    """One rollout that a stage wants. ``u`` is the stored uniform of down-sampling."""

    problem: Problem
    stage: str
    step: int
    group: str
    replica: int
    u: float


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
        self._recipe = recipe
        self._sandbox = sandbox
        self._renderer = renderer
        self._tools = tools
        resources = recipe.rollout
        self._pool = EnginePool(
            [make_engine(recipe, folder, renderer, number) for number in range(resources.engines)],
            max_running=resources.max_running,
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

    async def sample(
        self, asks: Sequence[Ask], stage: RolloutStage, *, temperature: float | None = None
    ) -> list[Trajectory]:
        """Finished rollouts; those that our own failures spoiled are left out. Raises when all of them were."""
        pool = await self.ready()
        limits = self._limits(stage)
        hot = stage.temperature if temperature is None else temperature

        async def one(task: RolloutTask, engine: RolloutEngine) -> Trajectory:
            return await run_rollout(
                task,
                generate=engine.generate,
                sandbox=self._sandbox,
                renderer=self._renderer,
                tools=self._tools,
                limits=limits,
            )

        tasks = [task_of(ask, hot) for ask in asks]
        done = await pool.run(tasks, one, max_tokens=self._longest(asks, stage))
        finished = [each for each in done if isinstance(each, Trajectory)]
        failures = [each for each in done if isinstance(each, Failed)]
        if failures and not finished:
            raise EngineUnavailable(f"all {len(failures)} rollouts were lost, the last by: {failures[-1].reason}")
        return finished

    def _limits(self, stage: RolloutStage) -> TurnLimits:
        return TurnLimits(
            context_tokens=self._recipe.model.context_tokens,
            max_response_tokens=stage.max_response_tokens,
            max_turns=stage.max_turns,
            max_calls_per_turn=stage.max_calls_per_turn,
            tool_response_chars=stage.tool_response_chars,
            sandbox=self._recipe.sandbox.limits,
        )

    def _longest(self, asks: Sequence[Ask], stage: RolloutStage) -> int:
        """Longest prompt and response: what admission reserves in the KV cache."""
        prompts = {ask.problem.text for ask in asks}
        longest = max((len(self._renderer.prompt(text)) for text in prompts), default=0)
        return min(longest + stage.max_response_tokens, self._recipe.model.context_tokens)

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

    async def metrics(self) -> dict[str, dict[str, float]]:
        """Load figures by engine."""
        return await self._pool.metrics()

    async def tool_response(self, text: str) -> str:
        """What the turn loop would answer to the call in an assistant turn's text (SFT data)."""
        limits = TurnLimits(
            context_tokens=self._recipe.model.context_tokens,
            max_response_tokens=self._recipe.model.context_tokens,
            max_turns=1,
            max_calls_per_turn=1,
            tool_response_chars=RolloutStage.model_fields["tool_response_chars"].default,
            sandbox=self._recipe.sandbox.limits,
        )
        async with RolloutScope() as scope:
            context = ToolContext(self._sandbox, limits.sandbox, scope)
            calls = await answer_calls(text, tools=self._tools, context=context, limits=limits)
        return calls[0].response


def _tell_failed_start(starting: "asyncio.Task[None]") -> None:
    """At once, not when an RL stage first needs the engines: an SFT stage may run for hours before that."""
    if not starting.cancelled() and (error := starting.exception()) is not None:
        _log.error("rollout engines did not start, the first stage that samples will fail: %s", error)


def task_of(ask: Ask, temperature: float) -> RolloutTask:
    return RolloutTask(
        stage=ask.stage,
        step=ask.step,
        group=ask.group,
        replica=ask.replica,
        problem_id=ask.problem.id,
        problem=ask.problem.text,
        gold=ask.problem.answer,
        temperature=temperature,
        u=ask.u,
    )


def make_link(recipe: Recipe, folder: RunFolder, pool: EnginePool, learner_thread: LearnerThread) -> WeightLink:
    """The way that the recipe names for new weights."""
    files = FileLink(pool, learner_thread=learner_thread, model_folder=folder.model, fallback=folder.path)
    if recipe.rollout.weights == "file":
        return files
    return BroadcastLink(pool, files, learner_thread=learner_thread)


def make_engine(recipe: Recipe, folder: RunFolder, renderer: Renderer, number: int) -> RolloutEngine:
    """Engine ``number`` of the run, not started yet. Each attempt draws other samples than the one before."""
    resources = recipe.rollout
    if resources.kind == "scripted":
        return make_scripted_engine(recipe, renderer, f"scripted-{number}")
    return VllmEngine(
        f"vllm-{number}",
        model_folder=folder.model,
        runtime_folder=folder.logs,
        kv_cache_mb=resources.kv_cache_mb,
        max_model_tokens=recipe.model.context_tokens,
        max_running=resources.max_running,
        start_timeout_s=resources.start_timeout_s,
        dtype="bfloat16" if resources.precision == "bf16" else "float32",
        seed=stream(recipe.seed, "engine", *folder.attempts()).getrandbits(31),
    )


def make_scripted_engine(recipe: Recipe, renderer: Renderer, name: str) -> RolloutEngine:
    """An engine without a model, with room for 32 rollouts as long as the recipe's context."""
    context = recipe.model.context_tokens
    capacity = EngineCapacity(kv_blocks=2 * context + 1, block_tokens=16, max_model_tokens=context)
    return ScriptedEngine(name, arithmetic_policy(renderer), capacity=capacity, seed=recipe.seed)
