"""The one door to a learner: one rank lives in this process, several in processes of their own.

Leaves out what a rank does (``deepspeed_learner.py``) and how ranks are driven (``ranks.py``).
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from engine.contract.base import Strict
from engine.contract.resources import LearnerResources
from engine.contract.stages import RlStage, SftStage
from engine.learner.base import Learner
from engine.learner.ranks import RankedLearner


class Opening(Strict):
    """All that a learner is opened with, as a rank's process is told it (JSON)."""

    policy: Path
    stage: Annotated[SftStage | RlStage, Field(discriminator="kind")]
    resources: LearnerResources
    sampler_weight: bool = False
    reference: Path | None = None


def open_sft_learner(
    policy: Path, stage: SftStage, resources: LearnerResources, *, logs: Path | None = None
) -> Learner:
    """A learner for supervised fine-tuning of the model folder ``policy``.

    With several ranks each writes ``learner-<rank>.log`` into the folder ``logs``, or to our standard error without
    one. Raises what a rank raised while it opened (``OSError`` for no model folder), ``LearnerFailed`` if one died.
    """
    return _open(Opening(policy=policy, stage=stage, resources=resources), logs)


def open_rl_learner(
    policy: Path,
    stage: RlStage,
    resources: LearnerResources,
    *,
    sampler_weight: bool,
    reference: Path | None,
    logs: Path | None = None,
) -> Learner:
    """A learner for the stage's objective; the rest as ``open_sft_learner``.

    ``sampler_weight`` is the recipe's ``weighs_sampler``; ``reference`` the frozen model of the KL term, None without.
    """
    opening = Opening(
        policy=policy, stage=stage, resources=resources, sampler_weight=sampler_weight, reference=reference
    )
    return _open(opening, logs)


def _open(opening: Opening, logs: Path | None) -> Learner:
    if opening.resources.ranks == 1:
        return open_here(opening)
    return RankedLearner(opening.model_dump_json(), opening.resources.ranks, logs=logs)


def open_here(opening: Opening) -> Learner:
    """This process's rank of a learner, whose process group it has joined if there are others."""
    from engine.learner.deepspeed_learner import DeepSpeedLearner  # torch and DeepSpeed: seconds

    policy, stage, resources = opening.policy, opening.stage, opening.resources
    if isinstance(stage, SftStage):
        return DeepSpeedLearner.for_sft(policy, stage, resources)
    return DeepSpeedLearner.for_rl(
        policy, stage, resources, sampler_weight=opening.sampler_weight, reference=opening.reference
    )
