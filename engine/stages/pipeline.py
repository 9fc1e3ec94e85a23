"""Runs one attempt of a job: builds the parts, goes through the stages, tells how it ended.

The run folder decides where an attempt begins: stages that are told as finished are skipped, the first unfinished one
goes on from its last checkpoint. Leaves out signals and the terminal: ``engine.cli``.
"""

import asyncio
import time
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from enum import StrEnum
from typing import Any

from engine.contract.events import (
    Event,
    LogLine,
    RunFailed,
    RunFinished,
    RunHeartbeat,
    RunStarted,
    RunStopped,
    StageFinished,
    StagePlan,
    StageStarted,
)
from engine.contract.provenance import differences, provenance_of
from engine.contract.stages import AnyStage, EvalStage, RlStage, SftStage
from engine.data.render import Renderer
from engine.environment import spare_the_event_loop
from engine.models.folder import ensure_model
from engine.rollout.patience import open_sandbox
from engine.rollout.tools.prompt import system_of
from engine.rollout.tools.registry import load_tools
from engine.sink.disk import SinkFull
from engine.sink.event_log import EventLog, read_events
from engine.sink.run_folder import RunFolder
from engine.sink.shipper import Shipper
from engine.stages import commit
from engine.stages.commands import Inbox, StopRequested, Superseded, settle
from engine.stages.context import LearnerThread, StageContext
from engine.stages.evaluate import run_eval
from engine.stages.grading import make_grader
from engine.stages.logbook import warnings_as_events
from engine.stages.problems import held_out_texts
from engine.stages.progress import StageProgress
from engine.stages.reinforce import run_rl
from engine.stages.rollouts import Rollouts
from engine.stages.sft import run_sft
from engine.stages.shipping import shipping

HEARTBEAT_S = 5.0


class Outcome(StrEnum):
    """How an attempt ended."""

    finished = "finished"
    stopped = "stopped"


async def run_attempt(
    folder: RunFolder,
    inbox: Inbox,
    subscribers: Sequence[Callable[[Event], None]] = (),
    *,
    sandbox: str | None = None,
    shipper: Shipper | None = None,
) -> Outcome:
    """Do or go on with the job of a run folder, which the caller has locked.

    ``sandbox`` is the URL of a sandbox to use instead of a private node (its forms: ``sandbox.places``). With a
    ``shipper`` the events go to a platform too, and its commands come into the inbox. Whatever fails is told as
    ``run.failed`` and raised again; the folder stays good for another attempt. ``Superseded`` is raised without a last
    word: the run is another's now.
    """
    folder.lay_out()
    with EventLog(folder, folder.next_attempt()) as log, warnings_as_events(log.append):
        for subscriber in subscribers:
            log.subscribe(subscriber)
        async with shipping(shipper, log, inbox):
            return await told(folder, log, inbox, sandbox)


async def told(folder: RunFolder, log: EventLog, inbox: Inbox, sandbox: str | None) -> Outcome:
    """All stages, between the first and the last word of the attempt."""
    began = time.monotonic()
    log.append(started(folder))
    try:
        await inbox.unless_superseded(beating(log, all_stages(folder, log, inbox, sandbox)))
    except StopRequested as stop:
        settle(inbox, log, "stopped")
        log.append(RunStopped(reason=f"asked by {stop}"))
        return Outcome.stopped
    except asyncio.CancelledError:
        settle(inbox, log, "stopped")
        log.append(RunStopped(reason="interrupted; the unfinished step will be done again"))
        raise
    except Superseded:  # no last word: it would be taken for the run's, which another engine goes on with
        raise
    except Exception as error:
        tell_failure(folder, log, inbox, error)
        raise
    settle(inbox, log, "finished")
    log.append(RunFinished(seconds=time.monotonic() - began))
    return Outcome.finished


def started(folder: RunFolder) -> RunStarted:
    job = folder.job
    points = [found for stage in job.recipe.stages if (found := commit.latest(folder, stage.name))]
    return RunStarted(
        run_id=job.run_id,
        recipe=job.recipe.name,
        digest=job.digest,
        stages=tuple(StagePlan(name=s.name, kind=s.kind, steps=planned_steps(s)) for s in job.recipe.stages),
        resumed_from=folder.relative(points[-1].path) if points else None,
        notes=job.recipe.notes,
    )


def planned_steps(stage: AnyStage) -> int:
    return stage.count if isinstance(stage, EvalStage) else stage.steps


def tell_failure(folder: RunFolder, log: EventLog, inbox: Inbox, error: Exception) -> None:
    """Keep the trace in the run folder and the message in the log; a full disk can take neither and is the message."""
    with suppress(OSError):
        trace = "".join(traceback.format_exception(error))
        (folder.logs / f"failure-{log.attempt:04d}.txt").write_text(trace, encoding="utf-8", errors="backslashreplace")
    with suppress(SinkFull):
        settle(inbox, log, "failed")
        log.append(RunFailed(error=type(error).__name__, message=str(error)))


async def beating(log: EventLog, work: Coroutine[Any, Any, None]) -> None:
    """Do the work with a heartbeat in the log beside it, so that a long step is told from a dead engine."""
    beat = asyncio.ensure_future(_beat(log))
    try:
        await work
    finally:
        beat.cancel()


async def _beat(log: EventLog) -> None:
    while True:
        await asyncio.sleep(HEARTBEAT_S)
        log.append(RunHeartbeat())


async def all_stages(folder: RunFolder, log: EventLog, inbox: Inbox, sandbox: str | None) -> None:
    """Every stage that is not finished yet, in order; commands take hold before each of them."""
    await asyncio.to_thread(warn_of_differences, folder, log)
    done = {e.body.stage for e in read_events(folder) if isinstance(e.body, StageFinished)}
    async with open_context(folder, log, inbox, sandbox) as context:
        spare_the_event_loop()
        for stage in folder.job.recipe.stages:
            if stage.name not in done:
                await context.obey()
                await run_stage(context, stage)
            else:
                take_up(context, stage)


def warn_of_differences(folder: RunFolder, log: EventLog) -> None:
    """Say what is no longer as it was when the run was made: code, packages, data. It goes on all the same."""
    made = folder.job.provenance
    if log.attempt > 1 and made is not None:
        for line in differences(made, provenance_of(folder.job.recipe)):
            log.append(LogLine(level="warning", message=f"not as when the run was made: {line}"))


def take_up(context: StageContext, stage: AnyStage) -> None:
    """Go on from the last checkpoint of a finished stage (an evaluation has none)."""
    checkpoint = commit.latest(context.folder, stage.name)
    if checkpoint is not None:
        context.policy, context.version = checkpoint.model, checkpoint.version


async def run_stage(context: StageContext, stage: AnyStage) -> None:
    """One stage, its beginning and end told."""
    if isinstance(stage, EvalStage):
        context.log.append(StageStarted(stage=stage.name, kind=stage.kind, steps=stage.count, first_step=1))
        await context.inbox.unless_stopped(run_eval(context, stage))
    else:
        await run_trained(context, stage)
        take_up(context, stage)
    context.log.append(StageFinished(stage=stage.name, steps=planned_steps(stage)))


async def run_trained(context: StageContext, stage: SftStage | RlStage) -> None:
    """A stage that changes the weights, from its last checkpoint if it has one.

    The checkpoint's model does not become the context's policy before the stage is over: the learner and the reference
    of its KL term start where the stage started, and the learner's checkpoint brings it to where it was.
    """
    progress = StageProgress(context, stage)
    if progress.checkpoint is not None:
        context.version = progress.checkpoint.version
    first = progress.next_step
    context.log.append(StageStarted(stage=stage.name, kind=stage.kind, steps=stage.steps, first_step=first))
    progress.recover()
    try:
        if first <= stage.steps:
            await train(context, stage, progress)
        await progress.final()
    finally:
        await progress.close()


async def train(context: StageContext, stage: SftStage | RlStage, progress: StageProgress) -> None:
    if isinstance(stage, SftStage):
        await run_sft(context, stage, progress)
    else:
        await run_rl(context, stage, progress)


@asynccontextmanager
async def open_context(
    folder: RunFolder, log: EventLog, inbox: Inbox, sandbox_url: str | None
) -> AsyncIterator[StageContext]:
    """The parts of a run, closed in reverse order. Rollout engines start in the background: SFT does not need them."""
    recipe = folder.job.recipe
    tools = load_tools(recipe.tools)
    async with AsyncExitStack() as stack:
        await asyncio.to_thread(ensure_model, folder.model, recipe.model, seed=recipe.seed)
        thread = LearnerThread()
        stack.callback(thread.close)
        sandbox = await stack.enter_async_context(open_sandbox(sandbox_url, slots=recipe.sandbox.slots))
        renderer = Renderer(folder.model / "tokenizer.json", system=system_of(tools))
        rollouts = Rollouts(recipe, folder, sandbox, renderer, tools=tools, learner_thread=thread)
        await stack.enter_async_context(rollouts)
        yield StageContext(
            recipe=recipe,
            folder=folder,
            attempt=log.attempt,
            log=log,
            renderer=renderer,
            sandbox=sandbox,
            grade=make_grader(recipe.scoring, sandbox),
            rollouts=rollouts,
            learner_thread=thread,
            inbox=inbox,
            policy=folder.model,
            held_out=held_out_texts(recipe),
        )
