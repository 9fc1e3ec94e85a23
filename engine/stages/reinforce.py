"""One RL stage: GRPO-RoC with the Python tool (rStar2-Agent, sections 2.2 and 4).

A step is one rollout batch, with its refills, and its updates: sample, score, down-sample, update, push, checkpoint.
Problems of a step and every stored uniform are functions of (seed, stage, step). A new stage opens a new learner, so
optimizer state and warm-up begin anew, and the reference of the KL term, if there is one, becomes the policy that the
stage starts from: both, or neither. A step whose groups are all rejected is recorded as empty; as nothing changed, the
policy's version stays and nothing is pushed. Leaves out which rollouts a step has: ``rounds.py``.
"""

import asyncio
from collections.abc import Sequence

from engine.contract.events import Phase, StepFinished
from engine.contract.stages import CutStragglers, RlStage
from engine.contract.trajectory import Trajectory
from engine.learner.base import Learner
from engine.learner.opening import open_rl_learner
from engine.rollout.scheduling.lengths import LengthModel
from engine.sink.trajectories import write_trajectories
from engine.stages.carryover import CarryOver
from engine.stages.context import StageContext
from engine.stages.metrics import generated_tokens, rollout_metrics
from engine.stages.problems import Pool, training_problems
from engine.stages.progress import StageProgress
from engine.stages.rounds import Gathered, Rounds, straggler_figures
from engine.stages.selections import selections_path, write_selections
from engine.stages.skips import watch_skips
from engine.stages.stopwatch import Stopwatch
from engine.stages.updates import StepUpdates, Updater

REJECTIONS = ("all_right", "all_wrong", "roc_emptied")


async def run_rl(context: StageContext, stage: RlStage, progress: StageProgress) -> None:
    """Train from the context's policy, or go on from the last checkpoint, to the stage's last step."""
    pool = training_problems(context, stage)
    await context.inbox.unless_stopped(context.rollouts.ready())
    tell_reset(context, stage, progress.next_step)
    learner = await progress.open_learner(lambda: open_learner(context, stage))
    try:
        await context.rollouts.publish(learner, context.version)
        carried = CarryOver.of(progress.pending)
        if carried.lengths:
            context.rollouts.lengths = LengthModel.of(carried.lengths)
        for step in range(progress.next_step, stage.steps + 1):
            await RlStep(context, stage, learner, step, carried).run(pool, progress)
        last = await progress.final()
        await context.rollouts.load_weights(last.model, last.version)  # a restarted engine cannot ask a closed learner
    finally:
        await context.close_learner(learner)


def open_learner(context: StageContext, stage: RlStage) -> Learner:
    """The stage's learner at its start. The context's policy is the stage's first, also when it is gone on with."""
    return open_rl_learner(
        context.policy,
        stage,
        context.recipe.learner,
        sampler_weight=context.recipe.weighs_sampler(stage),
        reference=context.policy if stage.kl_beta > 0 else None,
        logs=context.folder.logs,
    )


def tell_reset(context: StageContext, stage: RlStage, first: int) -> None:
    """Say what a new stage sets back (the paper resets optimizer and reference for its harder stage)."""
    if first > 1:
        context.say(f"{stage.name}: goes on at step {first} with its optimizer state and its reference policy")
        return
    if isinstance(stage.stragglers, CutStragglers):
        share = f"{stage.stragglers.share:.0%}"
        context.warn(f"{stage.name}: a step ends with {share} of its rollouts, what is learned is biased to short ones")
    reference = "the policy of now" if stage.kl_beta > 0 else "none, as kl_beta is 0: there is nothing to reset"
    context.say(f"{stage.name}: optimizer state and warm-up begin anew; reference policy: {reference}")


class RlStep:
    """The parts of one step, in order."""

    def __init__(self, context: StageContext, stage: RlStage, learner: Learner, step: int, carried: CarryOver) -> None:
        self.context = context
        self.stage = stage
        self.learner = learner
        self.step = step
        self.carried = carried
        self.watch = Stopwatch(context, stage.name, step)

    async def run(self, pool: Pool, progress: StageProgress) -> None:
        self.context.rollouts.lengths.new_step()
        rounds = Rounds(self.context, self.stage, self.watch)
        gathered = await rounds.gather(pool, self.carried.cursor, self.carried.draws)
        with self.watch.phase(Phase.update):
            updater = Updater(self.context.recipe, self.stage, self.learner, self.context.version)
            updates = await self.context.learner_thread(lambda: updater.update(self.step, gathered.groups))
        if updates.changed:
            with self.watch.phase(Phase.push):
                self.context.version += 1
                await self.context.rollouts.publish(self.learner, self.context.version)
        with self.watch.phase(Phase.checkpoint):
            finished = await self.record(gathered, updates)
            await progress.finish_step(
                self.learner, finished, version=self.context.version, pending=self.carried.as_dict()
            )

    async def record(self, gathered: Gathered, updates: StepUpdates) -> StepFinished:
        """Write what is known of the step's rollouts, move on what is carried over; the event that tells the step."""
        trajectories = gathered.trajectories
        folder, attempt = self.context.folder, self.context.attempt
        path = folder.trajectories(attempt, self.stage.name, self.step)
        selections = selections_path(folder, attempt, self.stage.name, self.step)
        relative = folder.relative(path)
        await asyncio.to_thread(write_trajectories, path, trajectories)
        await asyncio.to_thread(write_selections, selections, gathered.groups)
        await watch_skips(self.context, self.stage, self.step, self.carried, updates.done, relative)
        self.carried.cursor += gathered.problems
        self.carried.draws = gathered.carried
        self.carried.lengths = self.context.rollouts.lengths.as_dict()
        figures = await asyncio.to_thread(self.rollout_figures, gathered, trajectories)
        return StepFinished(
            stage=self.stage.name,
            step=self.step,
            metrics={**figures, **updates.metrics},
            trajectories=relative,
            seconds=dict(self.watch.seconds),
        )

    def rollout_figures(self, gathered: Gathered, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        outcomes: list[str] = [group.outcome for group in gathered.groups]
        return {
            **rollout_metrics(trajectories),
            "kept_groups": float(gathered.kept),
            **{name: float(outcomes.count(name)) for name in REJECTIONS},
            "refill_rounds": float(gathered.rounds - 1),
            "refilled_groups": float(gathered.refilled),
            "left_out": float(gathered.whole * self.stage.rollouts_per_problem - len(trajectories) - gathered.cut),
            **straggler_figures(gathered, self.stage),
            "tokens_per_s": generated_tokens(trajectories) / self.watch.seconds["sampling"],
        }
