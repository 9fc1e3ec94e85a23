"""One RL step with a recording learner and given rollouts: the order of things, what is learned from, what is told.

Holds the rows of ``tests/cases/grpo.jsonl`` that concern steps, batches and settings.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from engine.contract.events import CheckpointSaved, Event, GroupFinished, PhaseStarted, StepFinished
from engine.contract.job import JobSpec, Recipe, RlStage
from engine.contract.trajectory import Trajectory
from engine.data.curriculum import unsolved
from engine.data.problem import Problem
from engine.learner.base import Sample, UpdateResult
from engine.reward import MathReward
from engine.sink.event_log import EventLog, read_events
from engine.sink.run_folder import RunFolder
from engine.sink.trajectories import read_trajectories
from engine.stages.commands import Inbox
from engine.stages.context import LearnerThread, StageContext
from engine.stages.progress import StageProgress
from engine.stages.reinforce import PolicyMismatch, RlStep
from engine.stages.rollouts import Ask

Make = Callable[..., Trajectory]
CASES = Path(__file__).resolve().parents[2] / "cases" / "grpo.jsonl"


def case(name: str) -> Any:
    return next(row for row in map(json.loads, CASES.read_text().splitlines()) if row["id"] == name)


def stage(**fields: Any) -> dict[str, Any]:
    base = {"name": "rl", "kind": "rl", "steps": 2, "max_response_tokens": 64, "problems_per_step": 2}
    return {**base, "rollouts_per_problem": 4, "keep_per_problem": 2, "problems": {"kind": "arithmetic"}, **fields}


def recipe(**fields: Any) -> Recipe:
    return Recipe.model_validate({"name": "t", "model": {"kind": "tiny-qwen3"}, "stages": [stage(**fields)]})


class RecordingLearner:
    """Keeps what it is given to learn from; agrees with the sampler unless told otherwise."""

    def __init__(self, gap: float = 1e-6) -> None:
        self.gap = gap
        self.parts: list[list[Sample]] = []

    def rl_update(self, batch: Sequence[Sample], *, lr_scale: float) -> UpdateResult:
        self.parts.append(list(batch))
        return UpdateResult(
            {"loss": 0.5, "lr": lr_scale, "logprob_gap_max": self.gap, "logprob_gap_mean": self.gap / 100}
        )

    def logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        return [[logprob + self.gap for logprob in sample.logprobs] for sample in samples]

    def export(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    def save(self, folder: Path) -> None:
        folder.mkdir()


class Sampled:
    """Stands for the rollout side: answers every ask from a function, and remembers what was published."""

    def __init__(self, answer: Callable[[Ask], Trajectory | None]) -> None:
        self.answer = answer
        self.published: list[int] = []

    async def sample(self, asks: Sequence[Ask], stage: RlStage) -> list[Trajectory]:
        return [found for ask in asks if (found := self.answer(ask)) is not None]

    async def publish(self, learner: object, version: int) -> None:
        self.published.append(version)

    async def metrics(self) -> dict[str, dict[str, float]]:
        return {}


class Pool:
    def draw(self, rng: object, count: int) -> list[Problem]:
        return [Problem(f"{i}+{i}?", "4") for i in range(count)]


class Bench:
    """A step on a bench: run it, then look at everything that came out."""

    def __init__(self, path: Path, found: Recipe, answer: Callable[[Ask], Trajectory | None], gap: float) -> None:
        job = JobSpec(run_id="r", created_at=0.0, digest=found.digest, recipe=found)
        self.folder = RunFolder.create(path / "run", job)
        self.learner, self.rollouts = RecordingLearner(gap), Sampled(answer)
        log = EventLog(self.folder, self.folder.next_attempt())
        parts: Any = {"renderer": SimpleNamespace(), "executor": SimpleNamespace(), "rollouts": self.rollouts}
        self.context = StageContext(
            recipe=found,
            folder=self.folder,
            attempt=1,
            log=log,
            learner_thread=LearnerThread(),
            inbox=Inbox(),
            policy=self.folder.model,
            held_out=frozenset(),
            reward=MathReward(),
            **parts,
        )
        self.stage: RlStage = found.stages[0]

    async def step(self, number: int = 1) -> StepFinished:
        progress = StageProgress(self.context, self.stage.name, self.stage.steps)
        await RlStep(self.context, self.stage, self.learner, number).run(Pool(), progress)
        return [e.body for e in self.events() if isinstance(e.body, StepFinished)][-1]

    def events(self) -> list[Event]:
        return list(read_events(self.folder))

    def trajectories(self, body: StepFinished) -> list[Trajectory]:
        return read_trajectories(self.folder.inside(body.trajectories or ""))


@pytest.fixture
def bench(tmp_path: Path, make: Make) -> Callable[..., Bench]:
    def build(right: Callable[[Ask], bool | None], *, gap: float = 1e-6, **fields: Any) -> Bench:
        def answer(ask: Ask) -> Trajectory | None:
            verdict = right(ask)
            if verdict is None:
                return None  # spoiled by our own failure, after retries
            text = f"<answer>\\boxed{{{4 if verdict else 5}}}</answer>"
            return make(
                text=text, group=ask.group, replica=ask.replica, u=ask.u, step=ask.step, problem_id=ask.problem.id
            )

        return Bench(tmp_path, recipe(**fields), answer, gap)

    return build


def mixed(ask: Ask) -> bool:
    return ask.replica % 2 == 0


async def test_the_order_of_a_step(bench: Callable[..., Bench]) -> None:
    """Update, push, checkpoint, and only then the step is told (platform F087, ADR 3)."""
    found = bench(mixed)
    await found.step()
    phases = [str(e.body.phase) for e in found.events() if isinstance(e.body, PhaseStarted)]
    assert phases == ["sampling", "scoring", "downsampling", "update", "push", "checkpoint"]
    last = [type(e.body) for e in found.events()][-2:]
    assert last == [CheckpointSaved, StepFinished]
    assert found.rollouts.published == [1]


async def test_only_kept_rollouts_are_learned_from(bench: Callable[..., Bench]) -> None:
    found = bench(mixed)
    body = await found.step()
    (part,) = found.learner.parts
    assert len(part) == 4
    assert body.metrics["kept_rollouts"] == 4
    assert {round(sample.advantage, 3) for sample in part} == {1.0, -1.0}
    assert all(not sample.old_logprobs for sample in part), "with one update the policy itself is the behaviour policy"


async def test_with_several_updates_each_sample_is_seen_once_with_old_logprobs(bench: Callable[..., Bench]) -> None:
    found = bench(mixed, updates_per_step=2)
    await found.step()
    assert [len(part) for part in found.learner.parts] == [2, 2]
    samples = [sample for part in found.learner.parts for sample in part]
    assert all(len(sample.old_logprobs) == len(sample.ids) for sample in samples)


async def test_a_step_is_a_function_of_its_name(bench: Callable[..., Bench]) -> None:
    found = bench(mixed)
    asks = RlStep(found.context, found.stage, found.learner, 7).asks(Pool())
    again = RlStep(found.context, found.stage, found.learner, 7).asks(Pool())
    assert asks == again
    assert len({ask.u for ask in asks}) == len(asks)


@pytest.mark.parametrize(("right", "outcome"), [(True, "all_right"), (False, "all_wrong")])
async def test_c071_a_step_without_variance_is_recorded_as_empty(
    bench: Callable[..., Bench], right: bool, outcome: str
) -> None:
    found = bench(lambda _: right)
    body = await found.step()
    assert found.learner.parts == []
    assert body.metrics[outcome] == 2
    assert body.metrics["kept_groups"] == 0
    assert body.metrics["logprob_gap_max"] == pytest.approx(1e-6), "sampler and learner are compared all the same"
    assert len(found.trajectories(body)) == 8


async def test_rollouts_that_we_spoiled_are_counted_and_never_scored(bench: Callable[..., Bench]) -> None:
    """N' = 3 of 4 keeps floor(3 * 2 / 4) = 1: no variance is left in one rollout, so the group leaves the loss."""
    found = bench(lambda ask: None if ask.replica == 3 else ask.replica == 0)
    body = await found.step()
    assert body.metrics["left_out"] == 2
    assert body.metrics["roc_emptied"] == 2
    assert {t.replica for t in found.trajectories(body)} == {0, 1, 2}


@pytest.mark.parametrize("gap", [1e-3, float("nan")])
async def test_training_on_samples_of_another_policy_is_refused(bench: Callable[..., Bench], gap: float) -> None:
    found = bench(mixed, gap=gap)
    with pytest.raises(PolicyMismatch, match="does not serve the learner's weights"):
        await found.step()
    assert not [e for e in found.events() if isinstance(e.body, StepFinished)]


async def test_the_same_is_refused_without_an_update(bench: Callable[..., Bench]) -> None:
    with pytest.raises(PolicyMismatch):
        await bench(lambda _: True, gap=1e-3).step()


async def test_few_informative_groups_make_a_smaller_step(bench: Callable[..., Bench]) -> None:
    found = bench(lambda ask: mixed(ask) if ask.group.endswith("/0") else True, problems_per_step=4)
    body = await found.step()
    assert body.metrics["lr"] == 2 * 1 / 4


async def test_c069_no_group_is_cut_and_c073_none_is_lost(bench: Callable[..., Bench]) -> None:
    sizes = case("C069")["input"]["groups"]

    def right(ask: Ask) -> bool | None:
        place = int(ask.group.rsplit("/", 1)[1])
        return None if ask.replica >= sizes[place] else mixed(ask)

    found = bench(right, problems_per_step=3, rollouts_per_problem=8, keep_per_problem=4)
    await found.step()
    groups = [e.body for e in found.events() if isinstance(e.body, GroupFinished)]
    assert sorted(g.rollouts for g in groups) == sorted(sizes)
    assert sum(len(part) for part in found.learner.parts) == sum(g.kept for g in groups)
    assert all(g.kept for g in groups)


async def test_c011_a_problem_drawn_twice_makes_two_groups(bench: Callable[..., Bench]) -> None:
    found = bench(mixed)

    class Same:
        def draw(self, rng: object, count: int) -> list[Problem]:
            return [Problem("2+2?", "4")] * count

    asks = RlStep(found.context, found.stage, found.learner, 1).asks(Same())
    assert len({ask.problem.id for ask in asks}) == 1
    assert len({ask.group for ask in asks}) == case("C011")["expected"]["groups"]


def test_c041_a_metric_that_is_no_number_stays_valid_json() -> None:
    metrics = {name: float(value) for name, value in case("C041")["input"]["metrics"].items()}
    body = StepFinished(stage="rl", step=1, metrics=metrics)
    stored = json.loads(body.model_dump_json())
    assert stored["metrics"] == {"loss": None, "grad_norm": None}
    assert stored["non_finite"] == {"loss": "nan", "grad_norm": "inf"}


@pytest.mark.parametrize("field", ["top_p", "top_k", "rollout_logprobs", "truncated_weight_cap"])
def test_c047_c049_what_would_bias_the_ratio_cannot_be_set(field: str) -> None:
    """Truncated sampling is refused in RL, and log-probabilities are always asked for: there is no switch."""
    with pytest.raises(ValidationError, match=field):
        recipe(**{field: 0.9})


def test_c079_only_full_marks_are_dropped() -> None:
    row = case("C079")
    assert unsolved(row["input"]["rates"]) == row["expected"]["kept"]
