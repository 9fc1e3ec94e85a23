"""Objectives by name: what a recipe may ask for is what there is, and another one is a class and a line."""

from dataclasses import dataclass
from typing import Self, get_args

import pytest
import torch

from engine.contract.stages import RlStage
from engine.objective import registry
from engine.objective.base import LossTerms, Objective, Tokens
from engine.objective.grpo import Grpo


def stage(**options: object) -> RlStage:
    return RlStage.model_validate({"kind": "rl", "name": "rl", "steps": 1, "max_response_tokens": 8, **options})


def test_recipes_may_name_exactly_the_objectives_that_there_are() -> None:
    assert set(get_args(RlStage.model_fields["objective"].annotation)) == set(registry.OBJECTIVES)


def test_a_stages_settings_reach_its_objective() -> None:
    asked = stage(
        clip_low=0.1,
        clip_high=0.4,
        kl_beta=0.01,
        kl_estimator="k2",
        entropy_coef=0.001,
        sampler_weight_cap=3.0,
    )
    assert registry.objective_of(asked, sampler_weight=True) == Grpo(
        clip_low=0.1,
        clip_high=0.4,
        sampler_weight=True,
        cap=3.0,
        kl_beta=0.01,
        kl_estimator="k2",
        entropy_coef=0.001,
    )


def test_recipes_and_objective_have_the_same_defaults() -> None:
    assert registry.objective_of(stage(), sampler_weight=False) == Grpo()


@dataclass(frozen=True, slots=True)
class Reinforce:
    """All of another objective: -sum_t A_t logp_t, without ratio or clip."""

    @classmethod
    def of(cls, _stage: RlStage, *, sampler_weight: bool) -> Self:
        return cls()

    def __call__(self, tokens: Tokens) -> LossTerms:
        return LossTerms(-(tokens.advantage_T * tokens.logp_T).sum())


def test_another_objective_is_a_class_and_a_line_in_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "OBJECTIVES", {**registry.OBJECTIVES, "reinforce": Reinforce})
    asked = stage().model_copy(update={"objective": "reinforce"})
    objective: Objective = registry.objective_of(asked, sampler_weight=False)
    logp_T = torch.tensor([-1.0, -2.0], requires_grad=True)
    (gradient_T,) = torch.autograd.grad(objective(Tokens(logp_T, torch.tensor([1.0, -0.5]))).sum, logp_T)
    assert gradient_T.tolist() == [-1.0, 0.5]
