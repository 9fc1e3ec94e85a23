"""What a stage is given. Leaves out building these parts (``pipeline.py``) and commands (``commands.py``)."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from engine.contract.events import EngineLoad, LogLine, Phase, PhaseStarted
from engine.contract.job import Recipe
from engine.contract.trajectory import Trajectory
from engine.data.render import Renderer
from engine.learner.base import Learner
from engine.rollout.tools.base import Sandbox
from engine.sink.event_log import EventLog
from engine.sink.run_folder import RunFolder
from engine.stages.commands import Inbox, obey
from engine.stages.grading import Grader
from engine.stages.load import EngineFigures, engine_timeline, sandbox_load
from engine.stages.rollouts import Rollouts

T = TypeVar("T")


class LearnerThread:
    """Runs a learner's blocking calls on one thread of their own, so that the event loop stays free."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="learner")

    async def __call__(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    def close(self) -> None:
        self._executor.shutdown(wait=True)


@dataclass(slots=True)
class StageContext:
    """The parts of a run. ``policy`` moves on as stages finish; ``version`` counts the steps that changed the weights,
    so equal versions are equal weights."""

    recipe: Recipe
    folder: RunFolder
    attempt: int
    log: EventLog
    renderer: Renderer
    sandbox: Sandbox
    grade: Grader
    rollouts: Rollouts
    learner_thread: LearnerThread
    inbox: Inbox
    policy: Path
    held_out: frozenset[str]
    version: int = 0

    def phase(self, stage: str, step: int, phase: Phase) -> None:
        """Say what the stage is busy with: also the marker that kill-and-resume tests wait for."""
        self.log.append(PhaseStarted(stage=stage, step=step, phase=phase))

    def say(self, message: str) -> None:
        self.log.append(LogLine(message=message))

    def warn(self, message: str) -> None:
        self.log.append(LogLine(level="warning", message=message))

    async def obey(self) -> None:
        """Do what the waiting commands ask, hold the run while it is paused. Only where everything is durable."""
        await obey(self.inbox, self.log)

    def engine_timeline(self, stage: str, step: int) -> AbstractAsyncContextManager[None]:
        """Around sampling: how the rollout engines fare meanwhile, as ``engine.load`` events."""

        def tell(load: EngineFigures) -> None:
            for engine, metrics in load.items():
                self.log.append(EngineLoad(stage=stage, step=step, engine=engine, metrics=metrics))

        return engine_timeline(self.rollouts.load, tell, every_s=self.recipe.rollout.load_every_s)

    async def tell_load(self, stage: str, step: int, trajectories: Sequence[Trajectory]) -> None:
        """What a rollout batch asked of its tools and of the sandbox."""
        self.log.append(await sandbox_load(stage, step, trajectories, self.sandbox))

    async def close_learner(self, learner: Learner) -> None:
        await self.learner_thread(learner.close)
