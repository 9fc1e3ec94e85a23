"""How long the controller's event loop keeps others waiting with 2,048 rollouts in flight.

The parts are those of a run: Rollouts, its pool and scheduler, the turn loop, grading, RoC, the event log. Engines are
scripted and take some seconds over a turn, as engines that hold 256 rollouts each do; the tool answers after 0.3 s, as
a sandbox on other machines does. A ticker sleeps 5 ms and notes how much later it wakes. Its lag is that of everything
else on the loop: heartbeats, the turns of other rollouts, commands.
"""

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from unittest.mock import patch

from benchmarks.rollouts.musts import Must
from engine.contract.job import JobSpec, Recipe
from engine.contract.stages import RlStage
from engine.data.render import Renderer
from engine.environment import spare_the_event_loop
from engine.models.folder import ensure_model
from engine.rollout.base import GenerateRequest, Generation
from engine.rollout.scripted_engine import ScriptedEngine
from engine.rollout.tools.registry import load_tools
from engine.sink.event_log import EventLog
from engine.sink.run_folder import RunFolder
from engine.stages.commands import Inbox
from engine.stages.context import LearnerThread, StageContext
from engine.stages.grading import make_grader
from engine.stages.problems import training_problems
from engine.stages.rollouts import Rollouts
from engine.stages.rounds import Gathered, Rounds
from engine.stages.stopwatch import Stopwatch
from sandbox.contract import ExecRequest, ExecResult, ExecStatus, SandboxStatus

TICK_S: Final = 0.005
MODEL: Final = {"kind": "tiny-qwen3", "context_tokens": 4096}
"""Only its tokenizer is used. The context gives each scripted engine a KV cache in which all its rollouts fit."""
MUST: Final = Must("p99 of the event loop's lag", 50, "at most", "ms")


@dataclass(frozen=True, slots=True)
class Settings:
    """``turn_s``: shortest and longest time that an engine takes over a turn."""

    engines: int = 8
    problems: int = 128
    group: int = 16
    turn_s: tuple[float, float] = (4.0, 12.0)
    tool_s: float = 0.3


class Ticker:
    """While the context lasts: each tick's lag, and the loop's own processor time since the tick before; seconds.

    On a machine with other work the lag is also that of waiting for a core; the processor time is not.
    """

    def __init__(self) -> None:
        self.lags_s: list[float] = []
        self.busy_s: list[float] = []

    async def __aenter__(self) -> Self:
        self._ticking = asyncio.create_task(self._tick())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ticking.cancel()
        await asyncio.wait([self._ticking])

    async def _tick(self) -> None:
        while True:
            due, busy = time.perf_counter() + TICK_S, time.thread_time()
            await asyncio.sleep(TICK_S)
            self.lags_s.append(max(0.0, time.perf_counter() - due))
            self.busy_s.append(time.thread_time() - busy)


def described(lags_s: Sequence[float]) -> dict[str, Any]:
    """Milliseconds. ``late_share``: of all that time, the ticks over the bound."""
    ordered = sorted(1000 * lag for lag in lags_s)
    late = sum(lag for lag in ordered if lag > MUST.bound)
    return {
        "ticks": len(ordered),
        "p50": statistics.median(ordered),
        "p99": ordered[int(0.99 * (len(ordered) - 1))],
        "max": ordered[-1],
        "late_share": late / sum(ordered),
    }


class EchoSandbox:
    """Prints what an arithmetic program is to print, after a while."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def execute(self, request: ExecRequest) -> ExecResult:
        await asyncio.sleep(self._seconds)
        return ExecResult(
            id=request.id,
            status=ExecStatus.OK,
            stdout="1\n",
            stderr="",
            exit_code=0,
            wall_s=self._seconds,
            queued_s=0.0,
            error=None,
        )

    async def end_session(self, session: str) -> None:
        """It has none."""

    async def status(self) -> SandboxStatus:
        return SandboxStatus(nodes=(), queued_interactive=0, queued_training=0)


def slow_turns(turn_s: tuple[float, float]) -> AbstractContextManager[object]:
    """Scripted engines take their time over every turn while the context lasts; a recipe cannot ask for that."""
    luck = random.Random(0)
    at_once = ScriptedEngine.generate

    async def generate(engine: ScriptedEngine, request: GenerateRequest) -> Generation:
        await asyncio.sleep(luck.uniform(*turn_s))
        return await at_once(engine, request)

    return patch.object(ScriptedEngine, "generate", generate)


def recipe(settings: Settings) -> Recipe:
    stage = {
        "name": "rl",
        "kind": "rl",
        "steps": 1,
        "max_response_tokens": 256,
        "problems_per_step": settings.problems,
        "rollouts_per_problem": settings.group,
        "keep_per_problem": settings.group // 2,
    }
    most = settings.problems * settings.group // settings.engines
    rollout = {"kind": "scripted", "engines": settings.engines, "max_running": most, "weights": "file"}
    return Recipe.model_validate({"name": "loop-lag", "model": MODEL, "rollout": rollout, "stages": [stage]})


@asynccontextmanager
async def opened(settings: Settings, path: Path) -> AsyncIterator[StageContext]:
    """The parts of a run but its sandbox and its learner."""
    found = recipe(settings)
    job = JobSpec(run_id="bench", created_at=0.0, digest=found.digest, recipe=found)
    folder = RunFolder.create(path / "run", job)
    folder.lay_out()
    await asyncio.to_thread(ensure_model, folder.model, found.model, seed=0)
    thread, sandbox, tools = LearnerThread(), EchoSandbox(settings.tool_s), load_tools(found.tools)
    renderer = Renderer(folder.model / "tokenizer.json")
    with EventLog(folder, folder.next_attempt()) as log:
        async with Rollouts(found, folder, sandbox, renderer, tools=tools, learner_thread=thread) as rollouts:
            spare_the_event_loop()  # as the controller of a run does when its parts are there
            yield StageContext(
                recipe=found,
                folder=folder,
                attempt=1,
                log=log,
                renderer=renderer,
                sandbox=sandbox,
                grade=make_grader(found.scoring, sandbox),
                rollouts=rollouts,
                learner_thread=thread,
                inbox=Inbox(),
                policy=folder.model,
                held_out=frozenset(),
            )
    thread.close()


class Crowd:
    """The most that was in flight at a time."""

    def __init__(self, rollouts: Rollouts) -> None:
        self._rollouts = rollouts
        self.most = 0.0

    async def watch(self) -> None:
        while True:
            load = await self._rollouts.load()
            self.most = max(self.most, sum(each["in_flight"] for each in load.values()))
            await asyncio.sleep(1.0)


async def measure(settings: Settings | None = None) -> dict[str, Any]:
    settings = settings or Settings()
    with tempfile.TemporaryDirectory(prefix="starloom-bench-") as folder:
        async with opened(settings, Path(folder)) as context:
            await context.rollouts.ready()
            with slow_turns(settings.turn_s):
                gathered, seconds, ticker, crowd = await step(context)
    lag_ms = described(ticker.lags_s)
    return {
        "settings": asdict(settings) | {"tick_s": TICK_S},
        "most_in_flight": crowd.most,
        "rollouts": len(gathered.trajectories),
        "turns": sum(each.assistant_turns for each in gathered.trajectories),
        "groups": len(gathered.groups),
        "seconds": seconds,
        "lag_ms": lag_ms,
        "busy_ms": described(ticker.busy_s),
        "musts": [MUST.judge(lag_ms["p99"])],
    }


async def step(context: StageContext) -> tuple[Gathered, dict[str, float], Ticker, Crowd]:
    """One batch, sampled, graded and down-sampled, under the ticker."""
    (stage,) = context.recipe.stages
    if not isinstance(stage, RlStage):
        raise TypeError(f"the recipe's stage is {stage.kind}, expected rl")
    watch, crowd = Stopwatch(context, stage.name, 1), Crowd(context.rollouts)
    problems = training_problems(context, stage)
    async with Ticker() as ticker:
        watching = asyncio.create_task(crowd.watch())
        gathered = await Rounds(context, stage, watch).gather(problems, 0)
        watching.cancel()
    return gathered, dict(watch.seconds), ticker, crowd
