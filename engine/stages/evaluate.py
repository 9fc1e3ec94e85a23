"""Evaluation: held-out problems, sampled at the recipe's temperature and greedy, side by side.

Most of what RL seems to gain at temperature 1 is sharpening; greedy shows what it gains in ability. An evaluation is
one piece: killed, it is done again. Leaves out intervals beyond the standard error, and pass@k.
"""

import asyncio
import time
from collections.abc import Sequence

from engine.contract.events import EvalFinished, Phase
from engine.contract.stages import EvalStage
from engine.contract.trajectory import RewardStatus, Trajectory
from engine.data.problem import DataError, Problem
from engine.sink.trajectories import write_trajectories
from engine.stages.context import StageContext
from engine.stages.metrics import eval_metrics, generated_tokens
from engine.stages.problems import eval_problems
from engine.stages.sampling import Ask, sample

GREEDY = "greedy"
SAMPLED = "sampled"


async def run_eval(context: StageContext, stage: EvalStage) -> None:
    """Evaluate the context's policy and tell the figures."""
    problems = fitting_problems(context, stage)
    context.phase(stage.name, 1, Phase.push)
    await context.rollouts.load_weights(context.policy, context.version)
    context.phase(stage.name, 1, Phase.sampling)
    began = time.monotonic()
    sampled = await rollouts(context, stage, problems, SAMPLED, stage.samples)
    greedy = await rollouts(context, stage, problems, GREEDY, int(stage.greedy))
    seconds = time.monotonic() - began
    path = context.folder.trajectories(context.attempt, stage.name, 1)
    await asyncio.to_thread(write_trajectories, path, [*sampled, *greedy])
    metrics = {
        **await asyncio.to_thread(eval_metrics, sampled, greedy),
        "problems": float(len(problems)),
        "samples": float(stage.samples),
        "left_out": float(len(problems) * (stage.samples + stage.greedy) - len(sampled) - len(greedy)),
        "tokens_per_s": await asyncio.to_thread(generated_tokens, [*sampled, *greedy]) / seconds,
    }
    context.log.append(EvalFinished(stage=stage.name, metrics=metrics, trajectories=context.folder.relative(path)))


def fitting_problems(context: StageContext, stage: EvalStage) -> list[Problem]:
    """The stage's problems; one that is longer than the context cannot be asked and is counted, not scored wrong."""
    problems = eval_problems(stage)
    limit = context.recipe.model.context_tokens
    fitting = [p for p in problems if len(context.renderer.prompt(p.text)) < limit]
    if len(fitting) < len(problems):
        context.warn(
            f"{stage.name}: {len(problems) - len(fitting)} problems are longer than the context of {limit} tokens"
        )
    if not fitting:
        raise DataError(f"stage {stage.name}: no problem fits the context of {limit} tokens")
    return fitting


async def rollouts(
    context: StageContext, stage: EvalStage, problems: Sequence[Problem], kind: str, count: int
) -> list[Trajectory]:
    """Finished and graded rollouts; those that we could not grade are left out like those that we spoiled."""
    asks = [
        Ask(problem, stage.name, 1, f"{stage.name}/{kind}/{place}", replica, 1.0)
        for place, problem in enumerate(problems)
        for replica in range(count)
    ]
    temperature = 0.0 if kind == GREEDY else stage.temperature
    async with context.engine_timeline(stage.name, 1):
        sampled = await sample(context.rollouts, asks, stage, temperature=temperature)
    graded = await context.grade(sampled.finished)
    return [t for t in graded if t.reward_status is not RewardStatus.unscored]
