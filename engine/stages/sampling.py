"""One batch of rollouts on the engines of a run, and when it is over: with the last of them, or with most.

* ``wait``: with the last.
* ``carry``: when groups that are whole hold ``share`` of the batch. The others halt where they can, to go on later.
* ``cut``: when ``share`` of the batch has ended. The others are stopped and left out.

Leaves out who runs where (``engine.rollout.pool``), how a rollout goes (``engine.rollout.agent``) and what becomes of
what was halted (``rounds.py``).
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.contract.job import Recipe
from engine.contract.stages import CarryStragglers, CutStragglers, RolloutStage, Stragglers, WaitForAll
from engine.contract.trajectory import Trajectory
from engine.data.problem import Problem
from engine.rollout.agent import Halted, RolloutTask, TurnLimits, run_rollout
from engine.rollout.base import EngineUnavailable
from engine.rollout.place import Place
from engine.rollout.pool import Failed
from engine.rollout.response import Begun
from engine.rollout.scheduling.base import Size
from engine.stages.rollouts import Rollouts


@dataclass(frozen=True, slots=True)
class Ask:
    """One rollout that a stage wants. ``u`` is the stored uniform of down-sampling; ``begun`` is gone on with."""

    problem: Problem
    stage: str
    step: int
    group: str
    replica: int
    u: float
    begun: Begun | None = None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A rollout that was stopped for being among the last."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a batch came to. What is nowhere in it our own failures spoiled."""

    finished: list[Trajectory] = field(default_factory=list)
    halted: list[tuple[Ask, Begun]] = field(default_factory=list)
    cut: int = 0


async def sample(
    rollouts: Rollouts,
    asks: Sequence[Ask],
    stage: RolloutStage,
    *,
    temperature: float | None = None,
    stragglers: Stragglers | None = None,
) -> Sampled:
    """Do the rollouts, hotter or colder than the stage if ``temperature`` is given.

    Those that our own failures spoiled are left out. Raises ``EngineUnavailable`` when all of them were.
    """
    pool = await rollouts.ready()
    prompts = await _prompts(rollouts, asks)
    heat = stage.temperature if temperature is None else temperature
    batch = _Batch(rollouts, stage, prompts, heat, stragglers or WaitForAll(), _Progress(asks))
    done = await pool.run(asks, batch.one, size=batch.size)
    failures = [each for each in done if isinstance(each, Failed)]
    if failures and len(failures) == len(done):
        raise EngineUnavailable(f"all {len(failures)} rollouts were lost, the last by: {failures[-1].reason}")
    return Sampled(
        finished=[each for each in done if isinstance(each, Trajectory)],
        halted=[(ask, each) for ask, each in zip(asks, done, strict=True) if isinstance(each, Begun)],
        cut=sum(isinstance(each, LeftOut) for each in done),
    )


async def _prompts(rollouts: Rollouts, asks: Sequence[Ask]) -> dict[str, tuple[int, ...]]:
    """Each problem rendered once; others get a turn on the event loop between two."""
    prompts: dict[str, tuple[int, ...]] = {}
    for text in dict.fromkeys(ask.problem.text for ask in asks):
        prompts[text] = tuple(rollouts.renderer.prompt(text))
        await asyncio.sleep(0)
    return prompts


class _Progress:
    """Counts a batch's rollouts as they end."""

    def __init__(self, asks: Sequence[Ask]) -> None:
        self._missing = Counter(ask.group for ask in asks)
        self._of_group = dict(self._missing)
        self._all = len(asks)
        self._ended = 0
        self._whole = 0

    def end(self, group: str) -> None:
        """A rollout of ``group`` has ended."""
        self._ended += 1
        self._missing[group] -= 1
        if not self._missing[group]:
            self._whole += self._of_group[group]

    def enough(self, stragglers: Stragglers) -> bool:
        """Whether the rest are stragglers."""
        if isinstance(stragglers, WaitForAll):
            return False
        counted = self._whole if isinstance(stragglers, CarryStragglers) else self._ended
        return counted >= stragglers.share * self._all


@dataclass(frozen=True, slots=True)
class _Batch:
    """The rollouts of a batch, one by one. ``over`` is set when the rest are stragglers."""

    rollouts: Rollouts
    stage: RolloutStage
    prompts: Mapping[str, tuple[int, ...]]
    temperature: float
    stragglers: Stragglers
    progress: _Progress
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def size(self, ask: Ask) -> Size:
        """What the scheduler may know of a rollout before it runs."""
        prompt = len(self.prompts[ask.problem.text])
        longest = min(prompt + self.stage.max_response_tokens, self.rollouts.recipe.model.context_tokens)
        return Size(ask.problem.id, prompt, longest, len(ask.begun.ids) if ask.begun else 0)

    async def one(self, ask: Ask, place: Place) -> Trajectory | Begun | LeftOut:
        """One rollout, in its place."""
        work = self._until_over if isinstance(self.stragglers, CutStragglers) else self._rollout
        came = await work(ask, place)
        if isinstance(came, Trajectory):
            self.progress.end(ask.group)
            if self.progress.enough(self.stragglers):
                self.over.set()
        else:
            place.leave()
        return came

    async def _rollout(self, ask: Ask, place: Place) -> Trajectory | Begun:
        try:
            return await run_rollout(
                task_of(ask, self.prompts[ask.problem.text], self.temperature),
                generate=place.generate,
                sandbox=self.rollouts.sandbox,
                renderer=self.rollouts.renderer,
                tools=self.rollouts.tools,
                limits=limits_of(self.rollouts.recipe, self.stage, self.stragglers),
                stop=self.over if isinstance(self.stragglers, CarryStragglers) else None,
                begun=ask.begun,
            )
        except Halted as halted:
            return halted.begun

    async def _until_over(self, ask: Ask, place: Place) -> Trajectory | Begun | LeftOut:
        if self.over.is_set():
            return LeftOut()
        rollout = asyncio.ensure_future(self._rollout(ask, place))
        over = asyncio.ensure_future(self.over.wait())
        try:
            await asyncio.wait((rollout, over), return_when=asyncio.FIRST_COMPLETED)
            return await rollout if rollout.done() else LeftOut()
        finally:
            for task in (rollout, over):
                task.cancel()
            await asyncio.gather(rollout, over, return_exceptions=True)


def task_of(ask: Ask, prompt_ids: tuple[int, ...], temperature: float) -> RolloutTask:
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
        prompt_ids=prompt_ids,
    )


def limits_of(recipe: Recipe, stage: RolloutStage, stragglers: Stragglers) -> TurnLimits:
    return TurnLimits(
        context_tokens=recipe.model.context_tokens,
        max_response_tokens=stage.max_response_tokens,
        max_turns=stage.max_turns,
        max_calls_per_turn=stage.max_calls_per_turn,
        tool_response_chars=stage.tool_response_chars,
        sandbox=recipe.sandbox.limits,
        chunk_tokens=stragglers.chunk_tokens if isinstance(stragglers, CarryStragglers) else None,
    )
