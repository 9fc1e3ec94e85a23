"""Where a stage stands: its last checkpoint, the steps that are finished, and finishing one more exactly once.

A checkpoint is written while the next step runs; one write is in flight at a time. Its step is told when it is durable,
and steps that end meanwhile are told after it: events are always in the order of the steps. See ``commit.py`` for the
order of writes. Leaves out what a step does.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from engine.contract.events import CheckpointSaved, StepFinished
from engine.contract.stages import TrainedStage
from engine.learner.base import Learner
from engine.sink.event_log import read_events
from engine.stages import commit
from engine.stages.commit import Checkpoint, Writing
from engine.stages.context import StageContext


class StageProgress:
    """The steps of one stage in this attempt. Belongs to the event loop; ``close`` it on every way out of the stage."""

    def __init__(self, context: StageContext, stage: TrainedStage) -> None:
        self._context = context
        self._stage = stage
        self._gone_on_from = commit.latest(context.folder, stage.name)
        self.checkpoint = self._gone_on_from
        """The newest durable checkpoint."""
        self.next_step = self.checkpoint.step + 1 if self.checkpoint else 1
        """First step that this attempt does."""
        self.pending: dict[str, Any] = dict(self.checkpoint.pending) if self.checkpoint else {}
        """What the stage carried over into the checkpoint that this attempt goes on from; empty at first."""
        self._in_flight: asyncio.Task[None] | None = None
        self._untold = False
        self._held: list[StepFinished] = []

    def recover(self) -> None:
        """Clear up after a killed attempt, and write the last checkpoint's events if it was killed before them."""
        commit.clear_up(self._context.folder, self._stage.name)
        if self.checkpoint is not None:
            told = [event.body for event in read_events(self._context.folder)]
            for body in self._bodies(self.checkpoint):
                if body not in told:
                    self._context.log.append(body)

    async def open_learner(self, make: Callable[[], Learner]) -> Learner:
        """A new learner, brought to the last checkpoint if there is one."""

        def opened() -> Learner:
            learner = make()
            if self.checkpoint is not None:
                learner.load(self.checkpoint.learner)
            return learner

        return await self._context.learner_thread(opened)

    async def finish_step(
        self, learner: Learner, finished: StepFinished, *, version: int, pending: Mapping[str, Any] | None = None
    ) -> None:
        """Finish a step; ``pending`` is what the stage carries over to the next, as JSON.

        A checkpoint is begun where the stage's ``checkpoint_every``, its last step or a waiting command asks for it.
        Commands take hold once it is durable: a pause holds the run in here, a stop raises ``StopRequested``. Raises
        what the write of an earlier checkpoint raised, ``SinkFull`` for a full disk.
        """
        if self._in_flight is not None and self._in_flight.done():
            await self._durable()
        if not (self._context.inbox.waiting or self._due(finished.step)):
            self._tell_later(finished)
            return
        await self._begin(learner, finished, version, pending or {})
        if self._context.inbox.waiting or finished.step == self._stage.steps:
            await self._durable()
            await self._context.obey()

    async def final(self) -> Checkpoint:
        """The checkpoint of the last step, durable. Of the others only the best and the pinned ones are left."""
        await self._durable()
        if self.checkpoint is None or self.checkpoint.step != self._stage.steps:
            raise RuntimeError(
                f"stage {self._stage.name} ended without a checkpoint of its last step {self._stage.steps}"
            )
        await asyncio.to_thread(commit.prune, self._context.folder, self._stage, keep=1)
        return self.checkpoint

    async def close(self) -> None:
        """Wait for a write that is still in flight, so that a stage that ends early loses nothing it has finished.

        Its error is a warning here: the stage ends for a reason of its own.
        """
        try:
            await self._durable()
        except Exception as error:
            self._context.warn(f"stage {self._stage.name}: its last checkpoint was not written: {error}")

    def _due(self, step: int) -> bool:
        return step % self._stage.checkpoint_every == 0 or step == self._stage.steps

    async def _begin(self, learner: Learner, finished: StepFinished, version: int, pending: Mapping[str, Any]) -> None:
        """Start the checkpoint of a step; waits for the one before it, and for the learner's copy."""
        await self._durable()
        path = self._context.folder.checkpoint(self._context.attempt, self._stage.name, finished.step)
        writing = await self._context.learner_thread(
            lambda: commit.begin(
                path,
                learner,
                version=version,
                finished=finished,
                pending=pending,
                tokenizer_from=self._context.folder.model,
            )
        )
        self._untold = True
        self._in_flight = asyncio.ensure_future(self._finish(writing))

    async def _finish(self, writing: Writing) -> None:
        """To the end even if the loop is torn down meanwhile: the thread then still puts the folder in its place."""
        self.checkpoint = await asyncio.to_thread(writing.finish)
        for body in self._bodies(self.checkpoint):
            self._context.log.append(body)
        for finished in self._held:
            self._context.log.append(finished)
        self._held.clear()
        self._untold = False
        await asyncio.to_thread(self._prune)

    def _prune(self) -> None:
        keep, besides = self._stage.checkpoints_kept, self._gone_on_from
        commit.prune(self._context.folder, self._stage, keep=keep, besides=besides)

    async def _durable(self) -> None:
        """Wait until the checkpoint in flight is on disk and told; raises what its write raised, once."""
        if (writing := self._in_flight) is None:
            return
        try:
            await asyncio.shield(writing)
        finally:
            if writing.done():
                self._in_flight = None

    def _tell_later(self, finished: StepFinished) -> None:
        """Tell a step between checkpoints: never before the one of a checkpoint that is still being written."""
        if self._untold:
            self._held.append(finished)
        else:
            self._context.log.append(finished)

    def _bodies(self, checkpoint: Checkpoint) -> tuple[CheckpointSaved, StepFinished]:
        """What is told of a durable checkpoint."""
        relative = self._context.folder.relative(checkpoint.path)
        saved = CheckpointSaved(stage=self._stage.name, step=checkpoint.step, path=relative)
        return saved, checkpoint.finished
