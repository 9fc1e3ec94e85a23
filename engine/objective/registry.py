"""Objectives by the name that recipes give them (``RlStage.objective``).

Another objective is a file beside ``grpo.py``, a line here and its name in the contract's Literal, which cannot
import this: contracts know no torch. A test keeps the two equal.
"""

from collections.abc import Mapping

from engine.contract.stages import RlStage
from engine.objective.base import Objective
from engine.objective.cispo import Cispo
from engine.objective.grpo import Grpo

OBJECTIVES: Mapping[str, type[Objective]] = {
    "grpo": Grpo,
    "cispo": Cispo,
}


def objective_of(stage: RlStage, *, sampler_weight: bool) -> Objective:
    """The objective that a stage asks for, with the stage's settings."""
    return OBJECTIVES[stage.objective].of(stage, sampler_weight=sampler_weight)
