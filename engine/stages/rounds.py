"""The rollouts of a step, scored and down-sampled: one batch, and with ``refill`` more until enough groups are kept.

Dynamic sampling: groups without contrast teach nothing, so as many new problems as groups are missing take their place,
at most ``refill`` times. Rejected groups stay on record. Everything drawn is a function of the step (and of the
problems drawn before, for a problem file), so a step that is done again asks for the same.

Stragglers: with ``carry`` a batch may end before all groups are whole. Whole ones are learned from now; the others are
carried over, what they have is kept, and the next step draws so many problems less. The stage's last step waits for
all. Leaves out learning.
"""

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from engine.contract.events import Phase
from engine.contract.stages import CarryStragglers, RlStage, Stragglers, WaitForAll
from engine.contract.trajectory import RewardStatus, Trajectory
from engine.data.problem import Problem
from engine.stages.context import StageContext
from engine.stages.draws import Draw, after, open_rollouts
from engine.stages.metrics import mean
from engine.stages.problems import Pool
from engine.stages.sampling import sample
from engine.stages.scoring import Group, select_group
from engine.stages.stopwatch import Stopwatch


@dataclass(slots=True)
class Gathered:
    """All groups of a step that are whole, kept and rejected, and the draws that are ``carried`` over.

    ``problems`` counts those drawn by this step, ``whole`` the draws that ended in it, also where no rollout came
    through. ``gone_on`` counts rollouts that an earlier step began, ``cut`` those stopped for being among the last.
    """

    carried: list[Draw] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    problems: int = 0
    refilled: int = 0
    whole: int = 0
    rounds: int = 0
    gone_on: int = 0
    cut: int = 0

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

    async def gather(self, pool: Pool, cursor: int, carried: Sequence[Draw] = ()) -> Gathered:
        """The first batch and its refills. ``cursor`` problems of the stage were drawn before, some are ``carried``."""
        problems = pool.of_step(self._watch.step, cursor)
        gathered = Gathered(list(carried))
        while self.wanted(gathered) or not gathered.rounds:
            await self._round(gathered, problems)
        await self._context.tell_load(self._stage.name, self._watch.step, gathered.trajectories)
        return gathered

    def wanted(self, gathered: Gathered) -> int:
        """New problems for the next round: only as many as groups are missing."""
        if gathered.rounds > self._stage.refill:
            return 0
        return max(0, self._stage.problems_per_step - gathered.kept - len(gathered.carried))

    def draw(self, problems: Iterator[Problem], first: int, count: int) -> list[Draw]:
        """The step's next problems; places count from ``first``."""
        drawn = enumerate(itertools.islice(problems, count), start=first)
        return [Draw(problem, self._watch.step, place) for place, problem in drawn]

    @property
    def stragglers(self) -> Stragglers:
        """When a batch ends. Nothing is left over at the end of the stage."""
        last = self._watch.step == self._stage.steps
        return WaitForAll() if last and isinstance(self._stage.stragglers, CarryStragglers) else self._stage.stragglers

    async def _round(self, gathered: Gathered, problems: Iterator[Problem]) -> None:
        """Do the rollouts of new problems and go on with those under way."""
        new = self.draw(problems, gathered.problems, self.wanted(gathered))
        whole = await self._sample(gathered, [*gathered.carried, *new])
        gathered.problems += len(new)
        gathered.refilled += len(new) if gathered.rounds else 0
        gathered.rounds += 1
        with self._watch.phase(Phase.scoring):
            trajectories = await self._context.grade([each for draw in whole for each in draw.finished])
        with self._watch.phase(Phase.downsampling):
            groups = await asyncio.to_thread(select, trajectories, self._stage)
            for group in groups:
                self._context.log.append(group.event())
        gathered.groups += groups

    async def _sample(self, gathered: Gathered, draws: Sequence[Draw]) -> list[Draw]:
        """The draws that are whole now; ``gathered`` keeps the others."""
        seed, step = self._context.recipe.seed, self._watch.step
        asks = [ask for draw in draws for ask in draw.asks(self._stage, seed, step)]
        with self._watch.phase(Phase.sampling):
            async with self._context.engine_timeline(self._stage.name, step):
                sampled = await sample(self._context.rollouts, asks, self._stage, stragglers=self.stragglers)
        filled = after(draws, self._stage.name, step, sampled)
        gathered.carried = [draw for draw in filled if not draw.whole]
        gathered.whole += len(filled) - len(gathered.carried)
        gathered.gone_on += sum(ask.begun is not None and bool(ask.begun.ids) for ask in asks)
        gathered.cut += sampled.cut
        return [draw for draw in filled if draw.whole]


def select(trajectories: Sequence[Trajectory], stage: RlStage) -> list[Group]:
    """The step's groups by id, each after its selection. Rollouts without a score belong to none."""
    by_group: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        if trajectory.reward_status is RewardStatus.scored:
            by_group.setdefault(trajectory.group, []).append(trajectory)
    return [select_group(group, stage) for group in by_group.values()]


def straggler_figures(gathered: Gathered, stage: RlStage) -> dict[str, float]:
    """Rollouts carried over, gone on with, cut; mean number of policy steps between first and last token."""
    if isinstance(stage.stragglers, WaitForAll):
        return {}
    return {
        "carried": float(open_rollouts(gathered.carried)),
        "gone_on": float(gathered.gone_on),
        "cut": float(gathered.cut),
        "policy_lag": mean(each.last_version - each.first_version for each in gathered.trajectories),
    }
