"""The rollouts of a step, scored and down-sampled: one batch, and with ``refill`` more until enough groups are kept.

Dynamic sampling: groups without contrast teach nothing, so as many new problems as groups are missing take their place,
at most ``refill`` times. Rejected groups stay on record. Everything drawn is a function of the step (and of the
problems drawn before, for a problem file), so a step that is done again asks for the same. Leaves out learning.
"""

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from engine.contract.events import Phase
from engine.contract.job import RlStage
from engine.contract.trajectory import RewardStatus, Trajectory
from engine.data.problem import Problem
from engine.stages.context import StageContext
from engine.stages.problems import Pool
from engine.stages.randomness import uniform
from engine.stages.rollouts import Ask
from engine.stages.scoring import Group, select_group
from engine.stages.stopwatch import Stopwatch


@dataclass(slots=True)
class Gathered:
    """All groups of a step, kept and rejected. ``problems`` counts those asked, also where no rollout came through."""

    groups: list[Group] = field(default_factory=list)
    problems: int = 0
    rounds: int = 0

    @property
    def kept(self) -> int:
        """Groups that are learned from."""
        return sum(group.outcome == "kept" for group in self.groups)

    @property
    def trajectories(self) -> list[Trajectory]:
        return [trajectory for group in self.groups for trajectory in group.trajectories]


class Rounds:
    """Gathers the groups of one step."""

    def __init__(self, context: StageContext, stage: RlStage, watch: Stopwatch) -> None:
        self._context = context
        self._stage = stage
        self._watch = watch

    async def gather(self, pool: Pool, cursor: int) -> Gathered:
        """The first batch and its refills. ``cursor`` problems of the stage were drawn before."""
        problems = pool.of_step(self._watch.step, cursor)
        gathered = Gathered()
        while wanted := self.wanted(gathered):
            gathered.groups += await self._round(self.asks(problems, gathered.problems, wanted))
            gathered.problems += wanted
            gathered.rounds += 1
        await self._context.tell_load(self._stage.name, self._watch.step, gathered.trajectories)
        return gathered

    def wanted(self, gathered: Gathered) -> int:
        """New problems for the next round: only as many as groups are missing."""
        if gathered.rounds > self._stage.refill:
            return 0
        return self._stage.problems_per_step - gathered.kept

    def asks(self, problems: Iterator[Problem], first: int, count: int) -> list[Ask]:
        """Every rollout of a round, each with its stored uniform of down-sampling; groups count from ``first``."""
        seed, name, step = self._context.recipe.seed, self._stage.name, self._watch.step
        return [
            Ask(problem, name, step, f"{name}/{step}/{place}", replica, uniform(seed, name, step, place, replica))
            for place, problem in enumerate(itertools.islice(problems, count), start=first)
            for replica in range(self._stage.rollouts_per_problem)
        ]

    async def _round(self, asks: Sequence[Ask]) -> list[Group]:
        with self._watch.phase(Phase.sampling):
            sampled = await self._context.rollouts.sample(asks, self._stage)
        with self._watch.phase(Phase.scoring):
            trajectories = await self._context.grade(sampled)
        with self._watch.phase(Phase.downsampling):
            groups = await asyncio.to_thread(select, trajectories, self._stage)
            for group in groups:
                self._context.log.append(group.event())
        return groups


def select(trajectories: Sequence[Trajectory], stage: RlStage) -> list[Group]:
    """The step's groups by id, each after its selection. Rollouts without a score belong to none."""
    by_group: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        if trajectory.reward_status is RewardStatus.scored:
            by_group.setdefault(trajectory.group, []).append(trajectory)
    return [select_group(group, stage) for group in by_group.values()]
