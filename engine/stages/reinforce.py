"""One RL stage: GRPO-RoC with the Python tool (rStar2-Agent, sections 2.2 and 4).

A step is one rollout batch and its updates: sample, score, down-sample, update, push, checkpoint. Problems of a step
and every stored uniform are functions of (seed, stage, step). The weights that sampled a batch and the learner's must
give the same log-probabilities on its tokens; a larger difference than the recipe allows stops the run, since
training on samples of another policy is quietly wrong. Leaves out refill of rejected groups and partial rollouts.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace

from engine.contract.events import Phase, StepFinished
from engine.contract.job import RlStage
from engine.contract.trajectory import RewardStatus, Trajectory
from engine.data.problem import Problem
from engine.learner.base import Learner, Sample
from engine.learner.deepspeed_learner import DeepSpeedLearner
from engine.sink.trajectories import write_trajectories
from engine.stages.commit import Checkpoint
from engine.stages.context import StageContext
from engine.stages.metrics import generated_tokens, mean, rollout_metrics
from engine.stages.problems import Pool, training_problems
from engine.stages.progress import StageProgress
from engine.stages.randomness import stream, uniform
from engine.stages.rollouts import Ask
from engine.stages.scoring import Group, make_downsampler, scored, select_group

CHECKED_WITHOUT_UPDATE = 8
"""Trajectories compared with the learner in a step whose groups were all rejected."""


class PolicyMismatch(Exception):
    """Sampler and learner disagree about the log-probability of sampled tokens."""


@dataclass(slots=True)
class Stopwatch:
    """Wall seconds by phase."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, context: StageContext, stage: str, step: int, phase: Phase) -> Iterator[None]:
        context.phase(stage, step, phase)
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[str(phase)] = time.monotonic() - began


async def run_rl(context: StageContext, stage: RlStage, progress: StageProgress) -> Checkpoint:
    """Train from the context's policy, or go on from the last checkpoint. Returns the final checkpoint."""
    pool = training_problems(context, stage.problems)
    await context.inbox.unless_stopped(context.rollouts.ready())
    learner = await progress.open_learner(
        lambda: DeepSpeedLearner.for_rl(context.policy, stage, context.recipe.learner)
    )
    try:
        await context.rollouts.publish(learner, context.version)
        for step in range(progress.next_step, stage.steps + 1):
            await RlStep(context, stage, learner, step).run(pool, progress)
        return progress.final()
    finally:
        await context.close_learner(learner)


class RlStep:
    """The parts of one step, in order."""

    def __init__(self, context: StageContext, stage: RlStage, learner: Learner, step: int) -> None:
        self.context = context
        self.stage = stage
        self.learner = learner
        self.step = step
        self.watch = Stopwatch()

    def _phase(self, phase: Phase) -> AbstractContextManager[None]:
        return self.watch.phase(self.context, self.stage.name, self.step, phase)

    async def run(self, pool: Pool, progress: StageProgress) -> None:
        with self._phase(Phase.sampling):
            asks = self.asks(pool)
            trajectories = await self.context.rollouts.sample(asks, self.stage)
            await self.context.tell_load(self.stage.name, self.step, trajectories)
        with self._phase(Phase.scoring):
            trajectories = await asyncio.to_thread(lambda: [scored(t, self.context.reward) for t in trajectories])
        with self._phase(Phase.downsampling):
            groups = await asyncio.to_thread(self.select, trajectories)
            for group in groups:
                self.context.log.append(group.event())
        with self._phase(Phase.update):
            update = await self.context.learner_thread(lambda: self.update(groups))
        with self._phase(Phase.push):
            self.context.version += 1
            await self.context.rollouts.publish(self.learner, self.context.version)
        with self._phase(Phase.checkpoint):
            finished = await self.record(groups, update)
            await progress.finish_step(
                self.learner, finished, version=self.context.version, every=self.stage.checkpoint_every
            )

    def problems(self, pool: Pool) -> list[Problem]:
        return pool.draw(
            stream(self.context.recipe.seed, self.stage.name, "problems", self.step),
            self.stage.problems_per_step,
        )

    def asks(self, pool: Pool) -> list[Ask]:
        """Every rollout of the step, with the uniform that down-sampling will use for it."""
        seed, name = self.context.recipe.seed, self.stage.name
        return [
            Ask(
                problem,
                name,
                self.step,
                f"{name}/{self.step}/{place}",
                replica,
                uniform(seed, name, self.step, place, replica),
            )
            for place, problem in enumerate(self.problems(pool))
            for replica in range(self.stage.rollouts_per_problem)
        ]

    def select(self, trajectories: Sequence[Trajectory]) -> list[Group]:
        downsampler = make_downsampler(self.stage)
        by_group: dict[str, list[Trajectory]] = {}
        for trajectory in trajectories:
            if trajectory.reward_status is RewardStatus.scored:
                by_group.setdefault(trajectory.group, []).append(trajectory)
        return [select_group(sorted(g, key=lambda t: t.replica), self.stage, downsampler) for g in by_group.values()]

    def update(self, groups: Sequence[Group]) -> dict[str, float]:
        """All updates of the step; without anything kept, only the check of sampler against learner."""
        kept = [sample_of(t) for group in groups for t in group.trajectories if t.kept]
        if not kept:
            gaps = self.gaps_without_update(groups)
            self.refuse_gap(**gaps)
            return {**gaps, "kept_rollouts": 0.0, "lr": 0.0}
        parts = self.parts(kept)
        results = [self.learner.rl_update(part, lr_scale=self.lr_scale(groups)).metrics for part in parts]
        gaps = {name: results[0][name] for name in ("logprob_gap_max", "logprob_gap_mean")}
        self.refuse_gap(**gaps)
        merged = {name: mean(r[name] for r in results) for name in results[0]}
        return {**merged, **gaps, "kept_rollouts": float(len(kept))}

    def parts(self, kept: Sequence[Sample]) -> list[list[Sample]]:
        """The step's samples in ``updates_per_step`` parts, each seen once, old log-probabilities before the first."""
        shuffled = list(kept)
        stream(self.context.recipe.seed, self.stage.name, "parts", self.step).shuffle(shuffled)
        count = min(self.stage.updates_per_step, len(shuffled))
        if count > 1:
            old = self.learner.logprobs(shuffled)
            shuffled = [replace(sample, old_logprobs=logp) for sample, logp in zip(shuffled, old, strict=True)]
        return [shuffled[start::count] for start in range(count)]

    def lr_scale(self, groups: Sequence[Group]) -> float:
        """Warm-up, and fewer informative groups make a smaller step (one group must not take a full Adam step)."""
        warm = min(1.0, self.step / self.stage.warmup_steps) if self.stage.warmup_steps else 1.0
        informative = mean(group.outcome == "kept" for group in groups)
        return warm * (min(1.0, 2 * informative) if self.stage.scale_by_informative else 1.0)

    def gaps_without_update(self, groups: Sequence[Group]) -> dict[str, float]:
        """The same check on a few trajectories; without any, there is nothing to differ about."""
        some = [sample_of(t) for group in groups for t in group.trajectories][:CHECKED_WITHOUT_UPDATE]
        gaps = [
            abs(ours - theirs)
            for sample, row in zip(some, self.learner.logprobs(some) if some else [], strict=True)
            for ours, theirs, trained in zip(row, sample.logprobs, sample.trained, strict=True)
            if trained
        ]
        return {"logprob_gap_max": max(gaps, default=0.0), "logprob_gap_mean": sum(gaps) / max(1, len(gaps))}

    def refuse_gap(self, logprob_gap_max: float, logprob_gap_mean: float) -> None:
        """Stop when sampler and learner disagree; a gap that is not a number disagrees too."""
        allowed = self.stage.max_logprob_gap
        if not (logprob_gap_max <= allowed and logprob_gap_mean <= allowed / 10):
            raise PolicyMismatch(
                f"stage {self.stage.name}, step {self.step}: sampler and learner differ on sampled tokens by "
                f"{logprob_gap_max:.1e} at most and {logprob_gap_mean:.1e} on average in log-probability, allowed are "
                f"{allowed:.0e} and {allowed / 10:.0e}; the engine does not serve the learner's weights"
            )

    async def record(self, groups: Sequence[Group], update: dict[str, float]) -> StepFinished:
        """Write the step's trajectories; the event that tells the step."""
        trajectories = [t for group in groups for t in group.trajectories]
        path = self.context.folder.trajectories(self.context.attempt, self.stage.name, self.step)
        await asyncio.to_thread(write_trajectories, path, trajectories)
        outcomes = [group.outcome for group in groups]
        metrics = {
            **rollout_metrics(trajectories),
            **update,
            "kept_groups": float(outcomes.count("kept")),
            **{name: float(outcomes.count(name)) for name in ("all_right", "all_wrong", "roc_emptied")},
            "left_out": float(self.stage.problems_per_step * self.stage.rollouts_per_problem - len(trajectories)),
            "tokens_per_s": generated_tokens(trajectories) / self.watch.seconds["sampling"],
        }
        return StepFinished(
            stage=self.stage.name,
            step=self.step,
            metrics=metrics,
            trajectories=self.context.folder.relative(path),
            seconds=dict(self.watch.seconds),
        )


def sample_of(trajectory: Trajectory) -> Sample:
    """Prompt and response as the learner sees them: the sampled tokens are trained, nothing else."""
    prompt = len(trajectory.prompt_ids)
    return Sample(
        ids=(*trajectory.prompt_ids, *trajectory.ids),
        trained=(*[False] * prompt, *trajectory.sampled),
        logprobs=(*[0.0] * prompt, *trajectory.logprobs),
        advantage=trajectory.advantage or 0.0,
    )
