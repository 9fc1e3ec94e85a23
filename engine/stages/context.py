"""What a stage is given, and how it is told to stop. Leaves out building these parts: ``pipeline.py``."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from engine.contract.commands import Command, CommandKind
from engine.contract.events import CommandApplied, EngineLoad, LogLine, Phase, PhaseStarted, SandboxLoad
from engine.contract.job import Recipe
from engine.contract.trajectory import Trajectory
from engine.data.render import Renderer
from engine.learner.base import Learner
from engine.reward import MathReward, Reward
from engine.sink.event_log import EventLog
from engine.sink.run_folder import RunFolder
from engine.stages.rollouts import Rollouts
from sandbox.contract import Executor

T = TypeVar("T")


class StopRequested(Exception):
    """The run was asked to stop and everything finished so far is safe."""


class Inbox:
    """Commands waiting for the run. A stage looks at the end of each step."""

    def __init__(self) -> None:
        self._waiting: list[Command] = []
        self._stop = asyncio.Event()

    def put(self, command: Command) -> None:
        self._waiting.append(command)
        if command.kind is CommandKind.stop:
            self._stop.set()

    def take(self) -> list[Command]:
        taken, self._waiting = self._waiting, []
        return taken

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work that can be done again; a stop cancels it at once and raises ``StopRequested``."""
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise StopRequested(", ".join(command.by for command in self.take()))
        finally:
            for each in (task, stop):
                each.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)


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
    """The parts of a run. ``policy`` and ``version`` move on as stages finish; ``version`` counts updates."""

    recipe: Recipe
    folder: RunFolder
    attempt: int
    log: EventLog
    renderer: Renderer
    executor: Executor
    rollouts: Rollouts
    learner_thread: LearnerThread
    inbox: Inbox
    policy: Path
    held_out: frozenset[str]
    version: int = 0
    reward: Reward = field(default_factory=MathReward)

    def phase(self, stage: str, step: int, phase: Phase) -> None:
        """Say what the stage is busy with: also the marker that kill-and-resume tests wait for."""
        self.log.append(PhaseStarted(stage=stage, step=step, phase=phase))

    def say(self, message: str) -> None:
        self.log.append(LogLine(message=message))

    def warn(self, message: str) -> None:
        self.log.append(LogLine(level="warning", message=message))

    def apply(self, command: Command) -> None:
        """Tell a command whose wish is done; a stop ends the run. Called when everything finished is durable."""
        self.log.append(CommandApplied(command=command))
        if command.kind is CommandKind.stop:
            raise StopRequested(command.by)

    async def tell_load(self, stage: str, step: int, trajectories: Sequence[Trajectory]) -> None:
        """What a rollout batch asked of the sandbox and of the rollout engines."""
        calls = [call for t in trajectories for call in t.calls if call.status != "parse_error"]
        count = max(1, len(calls))
        load = SandboxLoad(
            stage=stage,
            step=step,
            calls=len(calls),
            statuses=dict(Counter(call.status for call in calls)),
            queued_s=sum(call.queued_s for call in calls) / count,
            wall_s=sum(call.wall_s for call in calls) / count,
        )
        self.log.append(load)
        for engine, metrics in (await self.rollouts.metrics()).items():
            self.log.append(EngineLoad(engine=engine, metrics=metrics))

    async def close_learner(self, learner: Learner) -> None:
        await self.learner_thread(learner.close)
