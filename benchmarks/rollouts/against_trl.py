"""The rollout phase against TRL's ``GRPOTrainer``: same weights, prompts token by token, tool, temperature.

A policy that is sure of itself (``sure_policy.py``) makes both sample the same tokens and call the tool equally often;
that is counted in every round, and a round that differs is an error. Ours is the turn loop and the pool on one vLLM
process; TRL's is its own generation and tool loop in one process (its vLLM mode wants GPUs). Both have a thread for the
model. TRL is turn-synchronous and runs tools one after another, so its phase grows with the number of rollouts.
"""

import asyncio
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.rollouts.engines import lasting_engines, pool_of
from benchmarks.rollouts.musts import Must, ratio, turned
from benchmarks.rollouts.sure_policy import CONTEXT, Talk, make_policy, problem, system
from benchmarks.rollouts.turns import MAX_RESPONSE_TOKENS, Turns, WaitTool
from benchmarks.rollouts.waits import KINDS, SLEEP_S, wait_async, workers
from benchmarks.trl_peer.process import TrlMissing, TrlProcess
from engine.contract.resources import GrowthScheduler
from engine.contract.trajectory import Trajectory
from engine.rollout.pool import EnginePool, Failed

MUSTS: Final = {
    ("sleep", 8): Must("0.3 s tools, 8 rollouts: TRL's seconds / ours", 6),
    ("sleep", 64): Must("0.3 s tools, 64 rollouts: TRL's seconds / ours", 20),
}
MAX_RUNNING: Final = 256
TALK: Final = Talk(calls=2, thought_tokens=4)


@dataclass(frozen=True, slots=True)
class Settings:
    """``rounds`` by number of rollouts: TRL takes 40 s for one round of 64 with 0.3 s tools."""

    talk: Talk = TALK
    temperature: float = 0.1
    group: int = 8
    rounds: tuple[tuple[int, int], ...] = ((8, 3), (64, 2))
    kv_cache_mb: int = 64


class Different(Exception):
    """The arms did not do the same."""


class OurArm:
    """The turn loop through the pool."""

    def __init__(self, settings: Settings, model: Path, pool: EnginePool, processes: ProcessPoolExecutor) -> None:
        self._kind = "none"
        self._group = settings.group
        self._pool = pool
        self._turns = Turns(
            model, settings.talk, settings.temperature, WaitTool(lambda: wait_async(self._kind, processes))
        )

    async def phase(self, rollouts: int, kind: str) -> dict[str, Any]:
        """Seconds of one rollout phase, and what came out of it."""
        self._kind = kind
        tasks = self._turns.tasks(rollouts, group=self._group)
        began = time.perf_counter()
        done = await self._pool.run(tasks, self._turns.rollout, size=self._turns.size)
        seconds = time.perf_counter() - began
        made = [each for each in done if isinstance(each, Trajectory)]
        if lost := [each.reason for each in done if isinstance(each, Failed)]:
            raise Different(f"{len(lost)} of our rollouts were left out: {lost[0]}")
        return {
            "wall_s": seconds,
            "sampled_tokens": sum(sum(each.sampled) for each in made),
            "response_tokens": sum(len(each.ids) for each in made),
            "calls": sum(len(each.calls) for each in made),
            "first": [list(made[0].prompt_ids), list(made[0].ids)],
        }


async def measure(python: Path | TrlMissing, settings: Settings | None = None) -> dict[str, Any]:
    """``python`` is that of TRL's environment, or why there is none."""
    settings = settings or Settings()
    shown = asdict(settings) | {"sleep_s": SLEEP_S}
    if isinstance(python, TrlMissing):
        return {"settings": shown, "ran": False, **_not_run(python)}
    with tempfile.TemporaryDirectory(prefix="starloom-bench-") as folder, workers() as processes:
        model = await asyncio.to_thread(make_policy, Path(folder) / "model", settings.talk)
        engines = lasting_engines(
            1, model=model, logs=Path(folder), kv_cache_mb=settings.kv_cache_mb, context_tokens=CONTEXT
        )
        async with engines as running, pool_of(running, GrowthScheduler(), max_running=MAX_RUNNING) as pool:
            ours = OurArm(settings, model, pool, processes)
            with TrlProcess(python, "benchmarks.rollouts.trl_rollouts") as trl:
                try:
                    told = await asyncio.to_thread(trl.ask, _order(settings, model))
                    rows = await _rows(settings, trl, ours)
                except TrlMissing as error:
                    return {"settings": shown, "ran": False, **_not_run(error)}
    return {
        "settings": shown,
        "ran": True,
        "arms": {"trl": told, "starloom": {"engine": "vllm", "engines": 1, "scheduler": "growth", "threads": 1}},
        "rows": rows,
        "musts": [must.judge(_found(rows, *key)) for key, must in MUSTS.items()],
    }


def _not_run(error: TrlMissing) -> dict[str, Any]:
    reason = str(error)
    return {"reason": reason, "musts": [must.judge(None, reason) for must in MUSTS.values()]}


def _found(rows: list[dict[str, Any]], kind: str, rollouts: int) -> float | None:
    found = [row["ratio"] for row in rows if (row["tool"], row["rollouts"]) == (kind, rollouts)]
    return found[0] if found else None


def _order(settings: Settings, model: Path) -> dict[str, Any]:
    most = max(rollouts for rollouts, _ in settings.rounds)
    return {
        "model": str(model),
        "group": settings.group,
        "problems": [problem(number) for number in range(most // settings.group)],
        "system": system(),
        "max_response_tokens": MAX_RESPONSE_TOKENS,
        "turns": settings.talk.calls,
        "temperature": settings.temperature,
    }


async def _rows(settings: Settings, trl: TrlProcess, ours: OurArm) -> list[dict[str, Any]]:
    rows = []
    for rollouts, rounds in settings.rounds:
        await _round(trl, ours, rollouts, "none", 0)  # both warm
        for kind in KINDS:
            done = [await _round(trl, ours, rollouts, kind, number) for number in range(rounds)]
            rows.append(_row(rollouts, kind, done))
    return rows


async def _round(trl: TrlProcess, ours: OurArm, rollouts: int, kind: str, number: int) -> dict[str, dict[str, Any]]:
    """Both arms, one after the other; which is first turns."""
    made = {}
    for name in turned(("trl", "starloom"), number):
        if name == "trl":
            made[name] = await asyncio.to_thread(trl.ask, {"rollouts": rollouts, "kind": kind})
        else:
            made[name] = await ours.phase(rollouts, kind)
    counted = [{key: value for key, value in each.items() if key != "wall_s"} for each in made.values()]
    if counted[0] != counted[1]:
        raise Different(f"{rollouts} rollouts, tool {kind}: TRL and we did not do the same: {made}")
    return made


def _row(rollouts: int, kind: str, rounds: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    seconds = {name: [each[name]["wall_s"] for each in rounds] for name in ("trl", "starloom")}
    counted = {name: rounds[0]["trl"][name] for name in ("sampled_tokens", "response_tokens", "calls")}
    return {"rollouts": rollouts, "tool": kind, **counted, "wall_s": seconds, **ratio(**_named(seconds))}


def _named(seconds: Mapping[str, list[float]]) -> dict[str, list[float]]:
    return {"slower": seconds["trl"], "faster": seconds["starloom"]}
