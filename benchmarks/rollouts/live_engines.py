"""Schedulers on two live vLLM engines with small KV caches: the same rollouts, some three times as long as the others.

Every arm has the same two processes, a pool and a scheduler of its own. Lengths are forced: an engine samples exactly
as many tokens as a rollout is to have, and the rollout ends there by itself as far as the scheduler can tell; those of
one problem are of similar length. The scheduler knows the longest that any may get and, in the arm ``growth``, the
lengths of one batch of other problems. Makespans are compared within a round. Equal counts are dealt in two ways: whole
groups to one engine, as data-parallel ranks get them, and one rollout each in turn. Leaves out tools.
"""

import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.rollouts.engines import LastingEngine, lasting_engines, pool_of
from benchmarks.rollouts.musts import Must, ratio, turned
from engine.bench.architecture import Architecture
from engine.bench.random_model import make_random_model
from engine.contract.resources import GrowthScheduler, Scheduling, StaticScheduler
from engine.rollout.base import FinishReason, GenerateRequest, Generation
from engine.rollout.place import Place
from engine.rollout.pool import EnginePool, Failed
from engine.rollout.scheduling.base import Size
from engine.rollout.scheduling.lengths import LengthModel

ENGINES: Final = 2
LOOK_S: Final = 0.5
BLOCK_TOKENS: Final = 32
MODEL: Final = Architecture(hidden=128, layers=2, heads=2, kv_heads=2, head_size=64, ffn=384, vocabulary=512)
STATIC, CAPPED, GROWTH = "static", "static, K cap", "growth"
MUSTS: Final = {
    STATIC: Must("static's makespan / growth's", 1.2),
    CAPPED: Must("static's with the K cap / growth's", 1.05),
}
NO_PREEMPTIONS: Final = Must("preemptions under growth, where static preempts", 0, "at most", "preemptions")

WHOLE_GROUPS, IN_TURN = "whole groups", "in turn"
DEALINGS: Final = (WHOLE_GROUPS, IN_TURN)


@dataclass(frozen=True, slots=True)
class Settings:
    """Tokens; ``spread`` is the standard deviation of log length among the rollouts of one problem."""

    problems: int = 16
    group: int = 8
    long_share: float = 0.1
    short_tokens: int = 200
    long_tokens: int = 600
    spread: float = 0.4
    prompt_tokens: int = 24
    max_response_tokens: int = 960
    context_tokens: int = 1024
    kv_cache_mb: int = 16
    rounds: int = 2
    model: Architecture = MODEL


@dataclass(frozen=True, slots=True)
class Rollout:
    problem: str
    prompt_ids: tuple[int, ...]
    tokens: int


def batch(settings: Settings, seed: int, dealing: str = WHOLE_GROUPS) -> list[Rollout]:
    """As many for each problem; ``long_share`` of the problems, at least one, are long.

    In the order in which equal counts, which deal one to each engine in turn, come to the ``dealing``.
    """
    luck = random.Random(f"live/{seed}")
    long = max(1, round(settings.long_share * settings.problems))
    means = [settings.long_tokens] * long + [settings.short_tokens] * (settings.problems - long)
    luck.shuffle(means)
    rollouts = [
        Rollout(f"{seed}/{number}", prompt, length(settings, mean, luck))
        for number, mean in enumerate(means)
        for prompt in [tuple(luck.randrange(settings.model.vocabulary) for _ in range(settings.prompt_tokens))]
        for _ in range(settings.group)
    ]
    if dealing == IN_TURN:
        return rollouts
    shares = [
        rollouts[len(rollouts) * part // ENGINES : len(rollouts) * (part + 1) // ENGINES] for part in range(ENGINES)
    ]
    return [rollout for dealt in zip(*shares, strict=True) for rollout in dealt]


def length(settings: Settings, mean: int, luck: random.Random) -> int:
    drawn = mean * luck.lognormvariate(0, settings.spread)
    return min(settings.max_response_tokens, max(1, round(drawn)))


class ForcedEngine(LastingEngine):
    """Says of what it sampled to its full length that the policy ended it there.

    Its KV blocks are small, as GPUs have them: of vLLM's own for CPUs (128 tokens) a short rollout would fill one.
    """

    def command(self) -> list[str]:
        return [*super().command(), "--block-size", str(BLOCK_TOKENS)]

    async def generate(self, request: GenerateRequest) -> Generation:
        return replace(await super().generate(request), finish=FinishReason.stop)


class Arm:
    """One way to schedule. A pool and a scheduler for each batch, so that no batch is told of another but by us."""

    def __init__(
        self, settings: Settings, engines: Sequence[LastingEngine], scheduling: Scheduling, max_running: int
    ) -> None:
        self._settings = settings
        self._engines = engines
        self._scheduling = scheduling
        self._max_running = max_running

    def describe(self) -> dict[str, Any]:
        return {"scheduler": self._scheduling.model_dump(), "max_running": self._max_running}

    async def run(self, rollouts: Sequence[Rollout], lengths: LengthModel) -> dict[str, Any]:
        """Makespan, preemptions of that time and the engines' load."""
        async with pool_of(self._engines, self._scheduling, max_running=self._max_running, lengths=lengths) as pool:
            before = await preemptions(self._engines)
            began = time.perf_counter()
            async with Watch(pool) as watch:
                done = await pool.run(rollouts, self._one, size=self._size)
            seconds = time.perf_counter() - began
            made = await preemptions(self._engines) - before
        if lost := [each.reason for each in done if isinstance(each, Failed)]:
            raise RuntimeError(f"{len(lost)} rollouts were left out: {lost[0]}")
        return {"wall_s": seconds, "preemptions": made, "load": watch.load}

    def _size(self, rollout: Rollout) -> Size:
        prompt = len(rollout.prompt_ids)
        return Size(rollout.problem, prompt, prompt + self._settings.max_response_tokens)

    async def _one(self, rollout: Rollout, place: Place) -> int:
        request = GenerateRequest(rollout.prompt_ids, rollout.tokens, temperature=1.0, stop_token_ids=())
        return len((await place.generate(request)).ids)


class Watch:
    """Looks at a pool's load, as the events ``engine.load`` show it, while the context lasts."""

    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool
        self.load: list[dict[str, Any]] = []

    async def __aenter__(self) -> "Watch":
        self._began = time.perf_counter()
        self._looking = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._looking.cancel()
        await asyncio.wait([self._looking])

    async def _look(self) -> None:
        while True:
            at_s = time.perf_counter() - self._began
            self.load += [{"at_s": at_s, "engine": name, **told} for name, told in (await self._pool.load()).items()]
            await asyncio.sleep(LOOK_S)


async def preemptions(engines: Sequence[LastingEngine]) -> int:
    """Of all engines since their start, as they count them."""
    told = await asyncio.gather(*(engine.metrics() for engine in engines))
    return int(sum(each["preemptions"] for each in told))


async def warmed(arms: dict[str, Arm], settings: Settings) -> dict[str, Any]:
    """The engines have run once, and these are the lengths of that batch: what a step before would have left."""
    lengths = LengthModel()
    await arms[GROWTH].run(batch(settings, -1), lengths)
    lengths.new_step()
    return lengths.as_dict()


async def measure(settings: Settings | None = None) -> dict[str, Any]:
    settings = settings or Settings()
    with tempfile.TemporaryDirectory(prefix="starloom-bench-") as folder:
        model = make_random_model(Path(folder) / "model", settings.model, context=settings.context_tokens)
        engines = lasting_engines(
            ENGINES,
            model=model,
            logs=Path(folder),
            kv_cache_mb=settings.kv_cache_mb,
            context_tokens=settings.context_tokens,
            kind=ForcedEngine,
        )
        async with engines as running:
            capacity = await running[0].capacity()
            cap = _paper_cap(settings, capacity.kv_blocks, capacity.block_tokens)
            everything = settings.problems * settings.group
            arms = {
                STATIC: Arm(settings, running, StaticScheduler(kind="static"), everything),
                CAPPED: Arm(settings, running, StaticScheduler(kind="static"), cap),
                GROWTH: Arm(settings, running, GrowthScheduler(), everything),
            }
            known = await warmed(arms, settings)
            rounds = {dealing: await _rounds(arms, settings, dealing, known) for dealing in DEALINGS}
    return {
        "settings": asdict(settings) | {"engines": ENGINES, "kv": asdict(capacity), "paper_cap": cap},
        "arms": {name: arm.describe() for name, arm in arms.items()},
        "rounds": {dealing: {name: _told(name, made) for name in arms} for dealing, made in rounds.items()},
        "ratios": {dealing: _ratios(made) for dealing, made in rounds.items()},
        "musts": [must for dealing, made in rounds.items() for must in _judged(dealing, made)],
        "timeline": {name: rounds[WHOLE_GROUPS][0][name]["load"] for name in arms},
    }


def _paper_cap(settings: Settings, blocks: int, block_tokens: int) -> int:
    """K: how many rollouts of the greatest length an engine holds (paper, section 3); block 0 is vLLM's null block."""
    longest = settings.prompt_tokens + settings.max_response_tokens
    return max(1, (blocks - 1) // -(-longest // block_tokens))


async def _rounds(
    arms: dict[str, Arm], settings: Settings, dealing: str, known: dict[str, Any]
) -> list[dict[str, dict[str, Any]]]:
    return [await _round(arms, batch(settings, number, dealing), number, known) for number in range(settings.rounds)]


async def _round(
    arms: dict[str, Arm], rollouts: Sequence[Rollout], number: int, known: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    return {name: await arms[name].run(rollouts, LengthModel.of(known)) for name in turned(list(arms), number)}


def _told(name: str, rounds: Sequence[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    return {figure: [each[name][figure] for each in rounds] for figure in ("wall_s", "preemptions")}


def _ratios(rounds: Sequence[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    seconds = {name: [each[name]["wall_s"] for each in rounds] for name in (STATIC, CAPPED, GROWTH)}
    return {name: ratio(seconds[name], seconds[GROWTH]) for name in MUSTS}


def _judged(dealing: str, rounds: Sequence[dict[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    preempted = {name: sum(each[name]["preemptions"] for each in rounds) for name in (STATIC, GROWTH)}
    none_to_avoid = "" if preempted[STATIC] else "static preempted none: nothing is shown"
    judged = [MUSTS[name].judge(found["ratio"]) for name, found in _ratios(rounds).items()]
    judged.append(NO_PREEMPTIONS.judge(None if none_to_avoid else preempted[GROWTH], none_to_avoid))
    return [must | {"name": f"{must['name']} ({dealing})"} for must in judged]
