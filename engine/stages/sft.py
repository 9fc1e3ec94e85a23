"""Supervised fine-tuning on generated trajectories: teaches the protocol, planted errors included.

The data are made once (every call really runs in the sandbox) and kept in the run folder, so that a resumed run
learns from the same. Batches come from a window of the length-sorted rows, which keeps padding small; the batch of a
step is a function of (seed, stage, step). The loss is normalised by a constant, the mean number of trained tokens in
a batch: a mean per length-bucketed batch would down-weight the long trajectories, which are those with errors.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path

from engine.contract.base import visible
from engine.contract.events import Phase, StepFinished
from engine.contract.stages import SftStage
from engine.data.arithmetic import make_problems
from engine.data.render import Message
from engine.data.sft_trajectories import perform, write_script
from engine.learner.base import Learner, Sample
from engine.learner.opening import open_sft_learner
from engine.learner.schedule import rate_factor
from engine.randomness import stream
from engine.sink.disk import replace_file
from engine.stages.carryover import CarryOver
from engine.stages.context import StageContext
from engine.stages.progress import StageProgress
from engine.stages.skips import DoneUpdate, watch_skips

Conversation = tuple[str, list[Message]]
CONVERSATIONS_AT_ONCE = 256


async def run_sft(context: StageContext, stage: SftStage, progress: StageProgress) -> None:
    """Train from the context's policy, or go on from the last checkpoint, to the stage's last step."""
    context.phase(stage.name, progress.next_step, Phase.preparing)
    data = await context.inbox.unless_stopped(conversations(context, stage))
    rows = encode(context, stage, data)
    normaliser = stage.batch_size * mean_trained(rows)
    resources = context.recipe.learner
    learner = await progress.open_learner(
        lambda: open_sft_learner(context.policy, stage, resources, logs=context.folder.logs)
    )
    try:
        context.phase(stage.name, progress.next_step, Phase.update)
        carried = CarryOver.of(progress.pending)
        for step in range(progress.next_step, stage.steps + 1):
            batch = draw_batch(rows, stage, context.recipe.seed, step)
            finished = await sft_step(context, stage, learner, batch, step, normaliser, carried)
            await progress.finish_step(learner, finished, version=context.version, pending=carried.as_dict())
    finally:
        await context.close_learner(learner)


async def sft_step(
    context: StageContext,
    stage: SftStage,
    learner: Learner,
    batch: Sequence[Sample],
    step: int,
    normaliser: float,
    carried: CarryOver,
) -> StepFinished:
    """One update, after which the policy is another version; the event that tells it."""
    began = time.monotonic()
    scale = rate_factor(stage, step)
    result = await context.learner_thread(lambda: learner.sft_update(batch, lr_scale=scale, normaliser=normaliser))
    seconds = time.monotonic() - began
    update = DoneUpdate(batch, result.metrics)
    context.version += not update.skipped
    await watch_skips(context, stage, step, carried, [update])
    tokens = sum(len(sample.ids) for sample in batch)
    # The curve shows the mean over the batch's own tokens; the objective's constant normaliser would favour length.
    told = {"loss": result.metrics["nll"], "objective": result.metrics["loss"], "tokens_per_s": tokens / seconds}
    metrics = {**result.metrics, **told}
    return StepFinished(stage=stage.name, step=step, metrics=metrics, seconds={"update": seconds})


def mean_trained(rows: Sequence[Sample]) -> float:
    """Mean number of trained tokens in a trajectory."""
    return sum(sum(row.trained) for row in rows) / len(rows)


def draw_batch(rows: Sequence[Sample], stage: SftStage, seed: int, step: int) -> list[Sample]:
    """A batch from a window of the length-sorted rows."""
    rng = stream(seed, stage.name, "batch", step)
    size = min(stage.batch_size, len(rows))
    window = min(4 * size, len(rows))
    start = rng.randrange(len(rows) - window + 1)
    return rng.sample(list(rows[start : start + window]), size)


def encode(context: StageContext, stage: SftStage, data: Sequence[Conversation]) -> list[Sample]:
    """Rendered trajectories, shortest first. Those longer than ``max_tokens`` are left out and counted."""
    rendered = [context.renderer.conversation(problem, messages) for problem, messages in data]
    rows = [Sample(ids, trained) for ids, trained in rendered if len(ids) <= stage.max_tokens]
    if len(rows) < len(data):
        context.warn(f"{stage.name}: {len(data) - len(rows)} trajectories over {stage.max_tokens} tokens left out")
    if not rows:
        raise ValueError(f"stage {stage.name}: every trajectory is longer than max_tokens {stage.max_tokens}")
    return sorted(rows, key=lambda row: len(row.ids))


async def conversations(context: StageContext, stage: SftStage) -> list[Conversation]:
    """The stage's trajectories: read from the run folder, or made and written there."""
    path = context.folder.data / f"{stage.name}.jsonl"
    if not path.is_file():
        context.say(f"{stage.name}: making {stage.examples} trajectories, every call really runs in the sandbox")
        write_conversations(path, await make_conversations(context, stage))
    return read_conversations(path)


async def make_conversations(context: StageContext, stage: SftStage) -> list[Conversation]:
    rng = stream(context.recipe.seed, stage.name, "data")
    problems = make_problems(rng, stage.examples, stage.problems.operations, without=context.held_out)
    scripts = [write_script(rng, made, stage.planted) for made in problems]
    some = asyncio.Semaphore(CONVERSATIONS_AT_ONCE)

    async def one(place: int) -> Conversation:
        async with some:
            return problems[place].problem.text, await perform(scripts[place], context.rollouts.tool_response)

    return list(await asyncio.gather(*(one(place) for place in range(len(problems)))))


def write_conversations(path: Path, data: Sequence[Conversation]) -> None:
    lines = [
        json.dumps({"problem": problem, "messages": [[m.role, *map(visible, m.texts)] for m in messages]})
        for problem, messages in data
    ]
    replace_file(path, lambda temporary: temporary.write_text("\n".join(lines) + "\n", encoding="utf-8"))


def read_conversations(path: Path) -> list[Conversation]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(row["problem"], [Message(role, tuple(texts)) for role, *texts in row["messages"]]) for row in rows]
