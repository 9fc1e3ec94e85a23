"""From a step's kept groups to its optimizer updates.

Groups are dealt whole to the step's updates, so that no group's advantages are torn apart, and every kept rollout is
learned from once. Leaves out the loss itself (``engine.objective``) and which rollouts are kept (``scoring.py``).
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine.contract.job import Recipe
from engine.contract.stages import RlStage
from engine.contract.trajectory import Trajectory
from engine.learner.base import Learner, Sample
from engine.learner.schedule import rate_factor
from engine.stages.metrics import mean
from engine.stages.scoring import Group
from engine.stages.skips import DoneUpdate

CHECKED_WITHOUT_UPDATE = 8
"""Trajectories compared with the learner in a step whose groups were all rejected."""

SUMMED = ("tokens", "effective_tokens", "after_tool_tokens", "seconds", "skipped")
"""Metrics of an update that a step adds up; of names that end in ``_max`` it takes the largest, of others the mean."""


class PolicyMismatch(Exception):
    """Sampler and learner disagree about the log-probability of sampled tokens."""


@dataclass(frozen=True, slots=True)
class StepUpdates:
    """What a step's updates came to: its metrics, and each update with its batch. No update: the step was empty."""

    metrics: dict[str, float]
    done: list[DoneUpdate] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        """Whether the weights are others than before."""
        return any(not update.skipped for update in self.done)


@dataclass(frozen=True, slots=True)
class Updater:
    """The updates of one RL stage. Its calls block: they belong on the learner's thread."""

    recipe: Recipe
    stage: RlStage
    learner: Learner
    version: int
    """Of the learner's weights: what the engines sampled by in this step. Older rollouts were carried into it."""

    def update(self, step: int, groups: Sequence[Group]) -> StepUpdates:
        """All updates of a step; without anything kept, only the check of sampler against learner.

        Raises ``PolicyMismatch``.
        """
        kept = [group for group in groups if group.kept]
        if not kept:
            gaps = gaps_without_update(self.learner, groups, self.version)
            self._refuse_gap(step, gaps)
            return StepUpdates({**gaps, "kept_rollouts": 0.0, "empty": 1.0, "lr": 0.0})
        parts = [[t for group in part for t in group.kept] for part in deal(kept, self.stage.updates_per_step)]
        aged = any(fresh_from(t, self.version) > 0 for part in parts for t in part)
        batches = self._with_other_policies([[sample_of(t) for t in part] for part in parts], aged)
        gaps = self._gaps_of_fresh(step, parts, batches) if aged else {}
        lr_scale = rate_factor(self.stage, step) * self._caution(kept)
        done = [self._one(step, batch, lr_scale, aged) for batch in batches]
        metrics = {**merged([update.metrics for update in done]), **gaps}
        return StepUpdates({**metrics, "kept_rollouts": float(sum(map(len, batches))), "empty": 0.0}, done)

    def _one(self, step: int, batch: Sequence[Sample], lr_scale: float, aged: bool) -> DoneUpdate:
        constant = float(len(batch) * self.stage.max_response_tokens)
        normaliser = constant if self.stage.loss_denominator == "constant" else None
        result = self.learner.rl_update(batch, lr_scale=lr_scale, normaliser=normaliser)
        update = DoneUpdate(batch, result.metrics)
        gap = result.metrics.get("logprob_gap_max", math.nan)
        broken = update.skipped and math.isnan(gap)  # a loss of NaN has a gap of NaN: the skip is acted on instead
        if not (aged or broken):
            self._refuse_gap(step, result.metrics)
        return update

    def _gaps_of_fresh(
        self, step: int, parts: Sequence[Sequence[Trajectory]], batches: Sequence[Sequence[Sample]]
    ) -> dict[str, float]:
        """Sampler against learner where rollouts are of several policy steps: on what the present one sampled."""
        trajectories = [trajectory for part in parts for trajectory in part]
        rows = [sample.old_logprobs for batch in batches for sample in batch]
        gaps = gaps_of(trajectories, rows, self.version)
        self._refuse_gap(step, gaps)
        return gaps

    def _with_other_policies(self, batches: list[list[Sample]], aged: bool) -> list[list[Sample]]:
        """Log-probabilities under the learner before the first update, and under the reference, where they are used.

        One update whose tokens carry no weight, and that none but the present policy sampled, is its own behaviour
        policy and needs no extra pass.
        """
        flat = [sample for batch in batches for sample in batch]
        nothing: list[Sequence[float]] = [()] * len(flat)
        weighed = aged or len(batches) > 1 or self.recipe.weighs_sampler(self.stage)
        old = self.learner.logprobs(flat) if weighed else nothing
        reference = self.learner.reference_logprobs(flat) if self.stage.kl_beta > 0 else nothing
        filled = (
            replace(sample, old_logprobs=ours, reference_logprobs=theirs)
            for sample, ours, theirs in zip(flat, old, reference, strict=True)
        )
        return [[next(filled) for _ in batch] for batch in batches]

    def _caution(self, kept: Sequence[Group]) -> float:
        """Fewer informative groups make a smaller step: one group must not take a full Adam step."""
        if not self.stage.scale_by_informative:
            return 1.0
        return min(1.0, 2 * len(kept) / self.stage.problems_per_step)

    def _refuse_gap(self, step: int, metrics: Mapping[str, float]) -> None:
        """Stop when sampler and learner disagree; a gap that is not a number disagrees too.

        With bf16 on either side they differ by rounding: the gap is told as a metric, and weights correct for it.
        """
        if "bf16" in (self.recipe.learner.precision, self.recipe.rollout.precision):
            return
        most, average, allowed = metrics["logprob_gap_max"], metrics["logprob_gap_mean"], self.stage.max_logprob_gap
        if not (most <= allowed and average <= allowed / 10):
            raise PolicyMismatch(
                f"stage {self.stage.name}, step {step}: sampler and learner differ on sampled tokens by "
                f"{most:.1e} at most and {average:.1e} on average in log-probability, allowed are "
                f"{allowed:.0e} and {allowed / 10:.0e}; the engine does not serve the learner's weights"
            )


def deal(groups: Sequence[Group], count: int) -> list[list[Group]]:
    """The groups in ``count`` parts (as many as there are groups, if fewer), balanced by trained tokens.

    The largest group goes first, each to the part with the fewest tokens so far; a function of its arguments.
    """
    sizes = [max(1, sum(sum(t.sampled) for t in group.kept)) for group in groups]
    parts: list[list[int]] = [[] for _ in range(min(count, len(groups)))]
    loads = [0] * len(parts)
    for place in sorted(range(len(groups)), key=lambda place: (-sizes[place], place)):
        least = loads.index(min(loads))
        parts[least].append(place)
        loads[least] += sizes[place]
    return [[groups[place] for place in sorted(part)] for part in parts]


def sample_of(trajectory: Trajectory) -> Sample:
    """Prompt and response as the learner sees them: the sampled tokens are trained, nothing else."""
    prompt = len(trajectory.prompt_ids)
    return Sample(
        ids=(*trajectory.prompt_ids, *trajectory.ids),
        trained=(*[False] * prompt, *trajectory.sampled),
        logprobs=(*[0.0] * prompt, *trajectory.logprobs),
        advantage=trajectory.advantage or 0.0,
    )


def fresh_from(trajectory: Trajectory, version: int) -> int:
    """First position of a response that the weights of ``version``, the newest, sampled; its length if none is."""
    if trajectory.last_version != version:
        return len(trajectory.ids)
    return trajectory.policy_steps[-1][0] if trajectory.policy_steps else 0


def gaps_without_update(learner: Learner, groups: Sequence[Group], version: int) -> dict[str, float]:
    """Sampler against learner on a few trajectories; without any, there is nothing to differ about."""
    some = [t for group in groups for t in group.trajectories][:CHECKED_WITHOUT_UPDATE]
    return gaps_of(some, learner.logprobs([sample_of(t) for t in some]) if some else [], version)


def gaps_of(trajectories: Sequence[Trajectory], rows: Sequence[Sequence[float]], version: int) -> dict[str, float]:
    """Differences of log-probabilities: the sampler's, and the learner's in ``rows`` (prompt and response).

    Only of tokens that ``version`` sampled: those of older policy steps differ for good reason.
    """
    gaps: list[float] = []
    for trajectory, row in zip(trajectories, rows, strict=True):
        start = fresh_from(trajectory, version)
        own = trajectory.sampled[start:]
        ours, theirs = row[len(trajectory.prompt_ids) + start :], trajectory.logprobs[start:]
        gaps += [abs(a - b) for a, b in itertools.compress(zip(ours, theirs, strict=True), own)]
    return {"logprob_gap_max": largest(gaps) if gaps else 0.0, "logprob_gap_mean": sum(gaps) / max(1, len(gaps))}


def merged(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Metrics of a step from those of its updates; what only some have is taken over those."""
    names = dict.fromkeys(name for metrics in updates for name in metrics)
    return {name: _fold(name, [m[name] for m in updates if name in m]) for name in names}


def _fold(name: str, values: list[float]) -> float:
    if name in SUMMED:
        return sum(values)
    return largest(values) if name.endswith("_max") else mean(values)


def largest(values: Sequence[float]) -> float:
    """The maximum; NaN if any is NaN, whatever its place."""
    return math.nan if any(map(math.isnan, values)) else max(values)
