"""Where a stage stands: its last checkpoint, the steps that are finished, and finishing one more exactly once.

See ``commit.py`` for the order of writes. Leaves out what a step does.
"""

from collections.abc import Callable

from engine.contract.events import CheckpointSaved, StepFinished, fold_steps
from engine.learner.base import Learner
from engine.sink.event_log import read_events
from engine.stages import commit
from engine.stages.commit import Checkpoint
from engine.stages.context import StageContext


class StageProgress:
    """The steps of one stage in this attempt."""

    def __init__(self, context: StageContext, stage: str, steps: int) -> None:
        self._context = context
        self._stage = stage
        self._steps = steps
        self.checkpoint = commit.latest(context.folder, stage)
        self.next_step = self.checkpoint.step + 1 if self.checkpoint else 1

    def recover(self) -> None:
        """Write the last checkpoint's event if the attempt before was killed between the two."""
        if self.checkpoint is None:
            return
        told = fold_steps(read_events(self._context.folder))
        if (self._stage, self.checkpoint.step) not in told:
            self._tell(self.checkpoint)

    async def open_learner(self, make: Callable[[], Learner]) -> Learner:
        """A new learner, brought to the last checkpoint if there is one."""

        def opened() -> Learner:
            learner = make()
            if self.checkpoint is not None:
                learner.load(self.checkpoint.learner)
            return learner

        return await self._context.learner_thread(opened)

    async def finish_step(self, learner: Learner, finished: StepFinished, *, version: int, every: int) -> None:
        """Tell a finished step. Durable first, where ``every``, the last step or a waiting command asks for it.

        Commands take hold then: a pause holds the run in here, a stop raises ``StopRequested``.
        """
        if self._context.inbox.waiting or finished.step % every == 0 or finished.step == self._steps:
            await self._commit(learner, finished, version)
            await self._context.obey()
        else:
            self._context.log.append(finished)

    async def _commit(self, learner: Learner, finished: StepFinished, version: int) -> None:
        path = self._context.folder.checkpoint(self._context.attempt, self._stage, finished.step)
        self.checkpoint = await self._context.learner_thread(
            lambda: commit.save(
                path, learner, version=version, finished=finished, tokenizer_from=self._context.folder.model
            )
        )
        self._tell(self.checkpoint)
        commit.prune(self._context.folder, self._stage)

    def _tell(self, checkpoint: Checkpoint) -> None:
        relative = self._context.folder.relative(checkpoint.path)
        self._context.log.append(CheckpointSaved(stage=self._stage, step=checkpoint.step, path=relative))
        self._context.log.append(checkpoint.finished)

    def final(self) -> Checkpoint:
        """The checkpoint of the last step."""
        if self.checkpoint is None or self.checkpoint.step != self._steps:
            raise RuntimeError(f"stage {self._stage} ended without a checkpoint of its last step {self._steps}")
        return self.checkpoint
