"""Truncated importance weights between sampler and learner:

w_t = min(exp(logp_old_t - logp_sampler_t), cap), without gradient;     loss = -sum_t w_t min(...)
"""

import math

import pytest
import torch

from engine.objective.base import Tokens
from engine.objective.grpo import Grpo
from engine.objective.importance import truncated_weights
from tests.numerics.support import CLOSE, SEEDS, Drawn, f64, gradient

CAP = 1.5


def loop(drawn: Drawn) -> list[float]:
    return [min(math.exp(old - sampler), CAP) for old, sampler in zip(drawn.old, drawn.sampler, strict=True)]


@pytest.mark.parametrize("seed", SEEDS)
def test_weights_are_capped_above_and_not_below(seed: int) -> None:
    drawn = Drawn.of(seed)
    weights = truncated_weights(f64(drawn.old), f64(drawn.sampler), cap=CAP).tolist()
    assert weights == pytest.approx(loop(drawn), **CLOSE)
    assert max(weights) == CAP
    assert min(weights) < 1 / CAP


@pytest.mark.parametrize("seed", SEEDS)
def test_each_tokens_loss_and_gradient_is_multiplied_by_its_weight(seed: int) -> None:
    drawn = Drawn.of(seed)
    plain, weighted = drawn.tokens(), drawn.tokens()
    plain_slopes = gradient(Grpo()(plain).sum, plain.logp_T)
    terms = Grpo(sampler_weight=True, cap=CAP)(weighted)
    expected = [w * slope for w, slope in zip(loop(drawn), plain_slopes, strict=True)]
    assert gradient(terms.sum, weighted.logp_T) == pytest.approx(expected, **CLOSE)
    parts = [Grpo()(drawn.tokens(slice(t, t + 1))).sum.item() for t in range(len(drawn.logp))]
    assert terms.sum.item() == pytest.approx(sum(w * part for w, part in zip(loop(drawn), parts, strict=True)), **CLOSE)


def test_with_one_update_a_step_the_policy_itself_stands_for_the_old_one() -> None:
    logp_T = f64([-1.0, -2.0], grad=True)
    terms = Grpo(sampler_weight=True, cap=CAP)(Tokens(logp_T, f64([1.0, 1.0]), sampler_T=f64([-1.2, -1.0])))
    assert gradient(terms.sum, logp_T) == pytest.approx([-math.exp(0.2), -math.exp(-1)], **CLOSE)


def test_weights_carry_no_gradient() -> None:
    assert not truncated_weights(f64([-1], grad=True), f64([-2])).requires_grad


def test_far_apart_policies_give_finite_weights_in_fp32() -> None:
    assert truncated_weights(torch.tensor([0.0, -1e4]), torch.tensor([-1e4, 0.0]), cap=2.0).isfinite().all()


def test_a_cap_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cap must be over 0, is 0\.0"):
        truncated_weights(f64([0]), f64([0]), cap=0.0)


def test_weights_without_the_samplers_log_probabilities_are_refused() -> None:
    with pytest.raises(
        ValueError, match="sampler_weight is on, but the tokens carry no log-probabilities of the sampler"
    ):
        Grpo(sampler_weight=True)(Tokens(f64([0]), f64([1])))
