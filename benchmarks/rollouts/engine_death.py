"""An engine is killed with 64 rollouts in flight: how much longer the batch takes, and whether anything is lost.

The ideal for the engines left is the undisturbed batch's makespan, measured right before, up to the death, and after it
the rest of that time stretched by what is left of the engines: the dead one does no more work, and no turn is sampled
twice. The killed engine is gone for good where it is scripted; a vLLM process is restarted, beside the rollouts, as in
a run. Every rollout says what it should and is graded: one that a dead engine spoiled would be missing or wrong.
"""

import asyncio
import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.rollouts.engines import START_TIMEOUT_S, pool_of
from benchmarks.rollouts.musts import Must
from benchmarks.rollouts.sure_policy import CONTEXT, Talk, make_policy, renderer
from benchmarks.rollouts.turns import Turns
from engine.contract.resources import GrowthScheduler
from engine.contract.trajectory import Trajectory
from engine.reward import MathReward
from engine.rollout.agent import RolloutTask
from engine.rollout.base import EngineCapacity, GenerateRequest, RolloutEngine
from engine.rollout.place import Place
from engine.rollout.pool import EnginePool
from engine.rollout.scripted_engine import Policy, ScriptedEngine
from engine.rollout.vllm_engine import VllmEngine, private_folder
from engine.stages.grading import EngineGrader

ENGINES: Final = 2
TALK: Final = Talk(calls=2, thought_tokens=32)
MUST: Final = "makespan with a death / the ideal for the engines left, {}"
LOST, WRONG = "rollouts lost to a death, {}", "rollouts scored wrong after a death, {}"


@dataclass(frozen=True, slots=True)
class Settings:
    """``turn_s`` is how long a scripted engine takes over a turn; half of ``in_flight`` are in each engine."""

    rollouts: int = 256
    in_flight: int = 64
    dies_after: float = 1 / 3
    """Share of the rollouts that have ended."""
    talk: Talk = TALK
    temperature: float = 0.1
    turn_s: float = 0.5
    scripted_rounds: int = 3
    vllm_rounds: int = 1
    kv_cache_mb: int = 64


Kill = Callable[[], None]
Opened = tuple[EnginePool, Kill]


async def measure(settings: Settings | None = None) -> dict[str, Any]:
    settings = settings or Settings()
    with tempfile.TemporaryDirectory(prefix="starloom-bench-") as folder:
        model = await asyncio.to_thread(make_policy, Path(folder) / "model", settings.talk)
        scripted = await _rounds(settings, model, settings.scripted_rounds, lambda: scripted_pool(settings, model))
        vllm = await _rounds(settings, model, settings.vllm_rounds, lambda: vllm_pool(settings, model))
    kinds = {"scripted": scripted, "vllm": vllm}
    return {
        "settings": asdict(settings) | {"engines": ENGINES, "scheduler": "growth"},
        **kinds,
        "musts": [row for kind, rounds in kinds.items() for row in judged(kind, rounds)],
    }


def judged(kind: str, rounds: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    over = statistics.median(each["over_ideal"] for each in rounds)
    return [
        Must(MUST.format(kind), 1.3, "at most").judge(over),
        Must(LOST.format(kind), 0, "at most", "rollouts").judge(sum(each["lost"] for each in rounds)),
        Must(WRONG.format(kind), 0, "at most", "rollouts").judge(sum(each["wrong"] for each in rounds)),
    ]


async def _rounds(settings: Settings, model: Path, count: int, opened: Callable[[], Any]) -> list[dict[str, Any]]:
    """Each with engines of its own: undisturbed first, then with a death."""
    made = []
    for _ in range(count):
        async with opened() as (pool, kill):
            await Batch(settings, model, pool).run()  # both engines warm
            calm = await Batch(settings, model, pool).run()
            made.append(against_ideal(calm, await Batch(settings, model, pool, kill).run()))
    return made


def against_ideal(calm: dict[str, Any], disturbed: dict[str, Any]) -> dict[str, Any]:
    """``over_ideal``: the disturbed makespan as a multiple of the ideal for the engines left."""
    before = disturbed["died_s"]
    ideal = before + max(0.0, calm["wall_s"] - before) * ENGINES / (ENGINES - 1)
    return {"undisturbed_s": calm["wall_s"], "ideal_s": ideal, **disturbed, "over_ideal": disturbed["wall_s"] / ideal}


class Batch:
    """All rollouts once; with ``kill`` an engine dies in the middle."""

    def __init__(self, settings: Settings, model: Path, pool: EnginePool, kill: Kill | None = None) -> None:
        self._settings = settings
        self._pool = pool
        self._kill = kill
        self._turns = Turns(model, settings.talk, settings.temperature)
        self._ended = 0
        self._in_flight = 0
        self._died_s = 0.0

    async def run(self) -> dict[str, Any]:
        """Seconds, and what became of the rollouts."""
        tasks = self._turns.tasks(self._settings.rollouts, group=8)
        self._began = time.perf_counter()
        done = await self._pool.run(tasks, self._one, size=self._turns.size)
        seconds = time.perf_counter() - self._began
        made = [each for each in done if isinstance(each, Trajectory)]
        graded = await EngineGrader(MathReward())(made)
        return {
            "wall_s": seconds,
            "died_s": self._died_s,
            "in_flight_at_death": self._in_flight,
            "lost": len(done) - len(made),
            "wrong": sum(each.reward != 1.0 for each in graded),
        }

    async def _one(self, task: RolloutTask, place: Place) -> Trajectory:
        made = await self._turns.rollout(task, place)
        self._ended += 1
        if self._kill and not self._died_s and self._ended >= self._settings.dies_after * self._settings.rollouts:
            self._died_s = time.perf_counter() - self._began
            self._in_flight = self._pool.scheduler.in_flight
            self._kill()
        return made


# --- engines ---


@asynccontextmanager
async def scripted_pool(settings: Settings, model: Path) -> AsyncIterator[Opened]:
    async def pace(request: GenerateRequest) -> None:
        await asyncio.sleep(settings.turn_s)

    room = EngineCapacity(kv_blocks=4096, block_tokens=16, max_model_tokens=CONTEXT)
    says = script(settings.talk, model)
    engines = [ScriptedEngine(f"scripted-{number}", says, capacity=room, pace=pace) for number in range(ENGINES)]

    def kill() -> None:
        engines[0].revivable = False
        engines[0].die()

    async with _pool(settings, engines) as pool:
        yield pool, kill


def script(talk: Talk, model: Path) -> Policy:
    """What the trained policy says, without it."""
    render = renderer(model)
    turns = [message.texts[0] for message in talk.messages(talk.answers[0]) if message.role == "assistant"]
    ids = [[*render.policy_text(text), render.end_id] for text in turns]
    asked = render.prompt("").count(render.end_id)

    def say(prompt: list[int], version: int, luck: random.Random) -> list[int]:
        """A turn begins with two end marks more than the one before: its own and the tool's."""
        return ids[(prompt.count(render.end_id) - asked) // 2]

    return say


@asynccontextmanager
async def vllm_pool(settings: Settings, model: Path) -> AsyncIterator[Opened]:
    engines = [
        VllmEngine(
            f"vllm-{number}",
            model_folder=model,
            runtime_folder=model.parent,
            kv_cache_mb=settings.kv_cache_mb,
            max_model_tokens=CONTEXT,
            start_timeout_s=START_TIMEOUT_S,
        )
        for number in range(ENGINES)
    ]
    async with _pool(settings, engines) as pool:
        yield pool, lambda: os.kill(server_pid(engines[0]), signal.SIGKILL)


def server_pid(engine: VllmEngine) -> int:
    """vLLM's API server, which listens in the engine's private folder."""
    folder = str(private_folder(str(engine.log_file)))
    for process in psutil.Process().children(recursive=True):
        command = process.cmdline()
        if "vllm.entrypoints.openai.api_server" in command[1:3] and any(folder in part for part in command):
            return int(process.pid)
    raise ProcessLookupError(f"no server of {engine.name} runs")


def _pool(settings: Settings, engines: Sequence[RolloutEngine]) -> Any:
    return pool_of(engines, GrowthScheduler(), max_running=settings.in_flight // ENGINES)
