"""Scheduling rules side by side: every rule on every scenario and seed, over the same rollouts and the same engines.

A baseline's cap on rollouts in flight is swept first and its best taken, so that no rule looks bad for a setting. The
sweep is on a seed of its own, over a part of the batch and of the engines unless the whole is asked for; an arm
that is slower than the best so far is not run to its end. Lengths that a rule may learn from are those of one batch of
other problems of the same shape, the run's step before; a first step knows none. Leaves out showing results:
``engine.commands.simulate``, ``report.py``.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from multiprocessing import get_context
from operator import itemgetter
from statistics import median
from typing import Any, Final

from engine.contract.resources import AimdScheduler, GrowthScheduler, KvCapScheduler, Scheduling, StaticScheduler
from engine.rollout.scheduling.lengths import LengthModel
from engine.rollout.scheduling.registry import make_scheduler
from engine.simulate.driver import Outcome, TooSlow, simulate
from engine.simulate.engine_model import EngineModel
from engine.simulate.workload import (
    PROMPT_TOKENS,
    SHAPES,
    Shape,
    SimulatedRollout,
    make_lengths,
    make_workload,
)

NO_CAP: Final = 1 << 20
"""Rollouts in flight an engine that nobody reaches."""

CHANCES: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
"""Chances of preemption on the frontier of ``growth``."""

PART: Final = 8
"""A sweep takes an eighth of the problems and of the engines."""

_SEEDS: Final = 1_000
"""Seeds that a scenario has of its own."""

_SWEPT: Final = 500_000
"""Seed of the sweeps: no rule is compared on the rollouts that its cap was chosen on."""

_EARLIER: Final = 1_000_000
"""Added to a seed: the step before."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What all rules are compared on."""

    shape: Shape
    kv_tokens: int
    """KV cache of an engine, tokens."""
    engines: int = 8
    first_step: bool = False
    """Nothing is known of lengths yet."""
    first_seed: int = 0
    """Of its batches, one seed after the other: no two scenarios at the paper's scale have the same rollouts."""

    @property
    def name(self) -> str:
        first = ", first step" if self.first_step else ""
        return f"{self.shape.name}, KV {self.kv_tokens / 1e6:g}M, {self.engines} engines{first}"

    @property
    def longest_fit(self) -> int:
        """K: rollouts of the greatest length that an engine's KV cache holds."""
        return self.kv_tokens // (PROMPT_TOKENS + self.shape.cap_tokens)


@dataclass(frozen=True, slots=True)
class Arm:
    """A rule, and the caps on its rollouts in flight that are tried: an engine, as multiples of K; None is no cap.

    Without any it runs without a cap.
    """

    name: str
    scheduling: Scheduling
    barrier: bool = False
    caps: tuple[float | None, ...] = ()


ARMS: Final = (
    Arm("static_sync", StaticScheduler(kind="static"), barrier=True, caps=(None, 2.0)),
    Arm("static_async", StaticScheduler(kind="static"), caps=(2.2, None, 2.7, 1.7)),
    Arm("kv_cap", KvCapScheduler(kind="kv_cap"), caps=(None, 0.8)),
    Arm("aimd", AimdScheduler(kind="aimd"), caps=(None, 2.0)),
    Arm("growth", GrowthScheduler()),
)
GROWTH: Final = ARMS[-1]


@dataclass(frozen=True, slots=True)
class Job:
    """One batch to simulate. ``part`` is how much smaller than the scenario it is."""

    scenario: Scenario
    arm: Arm
    seed: int
    max_running: int = NO_CAP
    part: int = 1


@dataclass(frozen=True, slots=True)
class Figures:
    """What is told of an outcome. Seconds; shares of generated tokens, and of the makespan for ``finish_spread``."""

    makespan_s: float
    useful_tokens_per_s: float
    recomputed_share: float
    reprefilled_share: float
    finish_spread: float
    p95_wait_s: float

    @classmethod
    def of(cls, outcome: Outcome) -> "Figures":
        return cls(**{name: getattr(outcome, name) for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class Tried:
    """A cap of a sweep. ``makespan_s`` is None where a better one was known before it ended."""

    max_running: int
    makespan_s: float | None


@dataclass(frozen=True, slots=True)
class Sweep:
    """An arm's caps on one scenario, and the best."""

    scenario: Scenario
    arm: Arm
    part: int
    tried: tuple[Tried, ...]

    @property
    def best(self) -> int:
        """The quickest cap; of equal ones the one that was tried first."""
        ended = [(tried.makespan_s, tried.max_running) for tried in self.tried if tried.makespan_s is not None]
        return min(ended, key=itemgetter(0), default=(0.0, NO_CAP))[1]


@dataclass(frozen=True, slots=True)
class Comparison:
    """All results. ``figures`` has an entry a seed."""

    scenarios: tuple[Scenario, ...]
    seeds: int
    sweeps: Mapping[tuple[Scenario, str], Sweep]
    figures: Mapping[tuple[Scenario, str], tuple[Figures, ...]]
    frontier: Mapping[tuple[Scenario, float], Figures]
    """``growth`` on the first seed, by its chance of preemption."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be compared."""

    scenarios: tuple[Scenario, ...]
    seeds: int
    """Batches of each scenario."""
    arms: tuple[Arm, ...] = ARMS
    sweep_part: int = PART
    chances: tuple[float, ...] = ()

    @property
    def batches(self) -> int:
        """Tasks that ``compare`` says are done, one by one."""
        return len(self.scenarios) * (len(self.arms) * (1 + self.seeds) + len(self.chances))


def paper_scale(shapes: Sequence[Shape] = SHAPES) -> tuple[Scenario, ...]:
    """Three stages, two sizes of KV cache, eight engines of eight GPUs."""
    kinds = [(shape, kv_tokens) for shape in shapes for kv_tokens in (5_000_000, 2_500_000)]
    return tuple(Scenario(*kind, first_seed=_SEEDS * place) for place, kind in enumerate(kinds))


def larger_scale(shapes: Sequence[Shape] = SHAPES) -> tuple[Scenario, ...]:
    """What is compared beside the paper's scale in full: first steps, and 64 engines with an eighth of the KV cache."""
    paper = paper_scale(shapes)
    first = tuple(replace(scenario, first_step=True) for scenario in paper)
    return (*first, *(replace(scenario, engines=64, kv_tokens=scenario.kv_tokens // 8) for scenario in paper))


def compare(plan: Plan, *, processes: int, done: Callable[[], None] = lambda: None) -> Comparison:
    """Run everything on ``processes`` processes; ``done`` is called after each of ``plan.batches``."""
    # Nothing here makes cycles: looking for some in millions of small objects takes a tenth of the time.
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=gc.disable) as pool:

        def each(function: Callable[[Any], Any], jobs: Sequence[Any]) -> Iterator[Any]:
            futures = [pool.submit(function, job) for job in jobs]
            for future in futures:
                future.add_done_callback(lambda _: done())
            return (future.result() for future in futures)

        pairs = [(scenario, arm) for scenario in plan.scenarios for arm in plan.arms]
        swept = each(sweep, [(scenario, arm, plan.sweep_part) for scenario, arm in pairs])
        sweeps: dict[tuple[Scenario, str], Sweep] = {(found.scenario, found.arm.name): found for found in swept}
        jobs = [
            Job(scenario, arm, scenario.first_seed + number, sweeps[scenario, arm.name].best)
            for scenario, arm in pairs
            for number in range(plan.seeds)
        ]
        points = [(scenario, chance) for scenario in plan.scenarios for chance in plan.chances]
        chosen = [Job(scenario, growth_at(chance), scenario.first_seed) for scenario, chance in points]
        found = list(each(figures_of, jobs + chosen))
    figures: dict[tuple[Scenario, str], tuple[Figures, ...]] = {}
    for job, result in zip(jobs, found, strict=False):
        key = job.scenario, job.arm.name
        figures[key] = (*figures.get(key, ()), result)
    frontier = dict(zip(points, found[len(jobs) :], strict=True))
    return Comparison(plan.scenarios, plan.seeds, sweeps, figures, frontier)


def growth_at(chance: float) -> Arm:
    """``growth`` with another chance of preemption."""
    return replace(GROWTH, scheduling=GrowthScheduler(preemption_chance=chance))


def sweep(what: tuple[Scenario, Arm, int]) -> Sweep:
    """Try an arm's caps. One that takes longer than the best before it is stopped."""
    scenario, arm, part = what
    best_s: float | None = None
    tried = []
    for cap in arm.caps:
        most = NO_CAP if cap is None else max(1, int(cap * scenario.longest_fit))
        try:
            makespan_s = run(Job(scenario, arm, _SWEPT, most, part), limit_s=best_s).makespan_s
        except TooSlow:
            tried.append(Tried(most, None))
        else:
            best_s = makespan_s
            tried.append(Tried(most, makespan_s))
    return Sweep(scenario, arm, part, tuple(tried))


def figures_of(job: Job) -> Figures:
    """Simulate one batch, in whichever process."""
    return Figures.of(run(job))


def run(job: Job, *, limit_s: float | None = None, timeline: bool = False) -> Outcome:
    """Simulate one batch."""
    scenario = job.scenario
    engine = EngineModel(scenario.kv_tokens)
    lengths = LengthModel() if scenario.first_step else lengths_of_step_before(scenario.shape, job.seed)
    scheduler = make_scheduler(job.arm.scheduling, max_running=job.max_running, lengths=lengths)
    return simulate(
        batch(scenario.shape, job.seed, job.part),
        scheduler,
        [engine] * max(1, scenario.engines // job.part),
        barrier=job.arm.barrier,
        timeline=timeline,
        limit_s=limit_s,
    )


@lru_cache(maxsize=2)
def batch(shape: Shape, seed: int, part: int) -> Sequence[SimulatedRollout]:
    """A part of the shape's problems."""
    return make_workload(replace(shape, problems=max(1, shape.problems // part)), seed)


def lengths_of_step_before(shape: Shape, seed: int) -> LengthModel:
    """What a scheduler knows after one batch of other problems of this shape."""
    return LengthModel.of(_learned(shape, seed + _EARLIER))


@lru_cache(maxsize=8)
def _learned(shape: Shape, seed: int) -> dict[str, Any]:
    model = LengthModel()
    for number, tokens in enumerate(make_lengths(shape, seed)):
        model.learn(str(number // shape.rollouts), tokens, cut=tokens >= shape.cap_tokens)
    model.new_step()
    return model.as_dict()


def ratio(comparison: Comparison, arm: str) -> float:
    """How much longer ``arm`` takes than growth: the median over scenarios and seeds."""
    return median(
        theirs.makespan_s / ours.makespan_s
        for scenario in comparison.scenarios
        for theirs, ours in zip(
            comparison.figures[scenario, arm], comparison.figures[scenario, GROWTH.name], strict=True
        )
    )


def typical(figures: Iterable[Figures]) -> Figures:
    """Each figure's median over seeds."""
    rows = [asdict(each) for each in figures]
    return Figures(**{name: median(row[name] for row in rows) for name in rows[0]})


def dominated(comparison: Comparison) -> list[Scenario]:
    """Scenarios on which ``aimd`` is no worse than growth in makespan and recomputed share, and better in one."""
    return [
        scenario
        for scenario in comparison.scenarios
        if _beats(typical(comparison.figures[scenario, "aimd"]), typical(comparison.figures[scenario, GROWTH.name]))
    ]


def _beats(one: Figures, other: Figures) -> bool:
    ours, theirs = (other.makespan_s, other.recomputed_share), (one.makespan_s, one.recomputed_share)
    return ours != theirs and all(a <= b for a, b in zip(theirs, ours, strict=True))


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """The results for programs."""
    growth = [typical(comparison.figures[scenario, GROWTH.name]) for scenario in comparison.scenarios]
    ratios = {f"growth_vs_{arm.name}": ratio(comparison, arm.name) for arm in ARMS if arm is not GROWTH}
    worst = {
        "recomputed_share": max(figures.recomputed_share for figures in growth),
        "finish_spread": max(figures.finish_spread for figures in growth),
    }
    return {
        "ratios": ratios,
        "growth": {**worst, "preemption_chance": GrowthScheduler().preemption_chance},
        "musts": [_must(*each) for each in _musts(ratios, worst, dominated(comparison))],
        "engine": {name: value for name, value in asdict(EngineModel(0)).items() if name != "kv_tokens"},
        "scenarios": [_scenario(comparison, scenario) for scenario in comparison.scenarios],
    }


def _musts(
    ratios: Mapping[str, float], growth: Mapping[str, float], dominated_on: Sequence[Scenario]
) -> Iterator[tuple[str, float, str, float]]:
    yield "growth_vs_static_sync", ratios["growth_vs_static_sync"], ">=", 1.45
    yield "growth_vs_static_async", ratios["growth_vs_static_async"], ">=", 1.05
    yield "growth_vs_kv_cap", ratios["growth_vs_kv_cap"], ">=", 1.12
    yield "scenarios on which aimd dominates growth", float(len(dominated_on)), "<=", 0
    yield "growth.recomputed_share", growth["recomputed_share"], "<=", 0.01
    yield "growth.finish_spread", growth["finish_spread"], "<=", 0.05


def _must(name: str, value: float, sign: str, bound: float) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "must": f"{sign} {bound:g}",
        "reached": value >= bound if sign == ">=" else value <= bound,
    }


def _scenario(comparison: Comparison, scenario: Scenario) -> dict[str, Any]:
    arms = {name: figures for (of, name), figures in comparison.figures.items() if of == scenario}
    return {
        "name": scenario.name,
        "mean_tokens": scenario.shape.mean_tokens,
        "cap_tokens": scenario.shape.cap_tokens,
        "rollouts": scenario.shape.problems * scenario.shape.rollouts,
        "kv_tokens": scenario.kv_tokens,
        "engines": scenario.engines,
        "first_step": scenario.first_step,
        "seeds": [scenario.first_seed + number for number in range(comparison.seeds)],
        "arms": {name: _arm(comparison.sweeps[scenario, name], figures) for name, figures in arms.items()},
        "frontier": [
            {"preemption_chance": chance, **asdict(figures)}
            for (of, chance), figures in comparison.frontier.items()
            if of == scenario
        ],
    }


def _arm(swept: Sweep, figures: Sequence[Figures]) -> dict[str, Any]:
    return {
        **asdict(typical(figures)),
        "makespans_s": [each.makespan_s for each in figures],
        "settings": {
            "scheduler": swept.arm.scheduling.model_dump(),
            "barrier": swept.arm.barrier,
            "max_running": _told(swept.best),
        },
        "sweep": {"part": f"1/{swept.part}", "tried": [_tried(tried) for tried in swept.tried]},
    }


def _tried(tried: Tried) -> dict[str, Any]:
    return {"max_running": _told(tried.max_running), "makespan_s": tried.makespan_s}


def _told(max_running: int) -> int | None:
    return None if max_running == NO_CAP else max_running
