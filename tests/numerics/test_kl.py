"""KL(policy || reference) per token, d_t = logp_t - logp_ref_t, r_t = exp(logp_t - logp_old_t):

    k1 = d     k2 = d^2 / 2     k3 = exp(-d) - 1 + d              loss = ... + beta sum_t r_t k(d_t)

    d r k / d logp = r (k(d) + k'(d))

Averaged over tokens that the old policy drew, the penalty is the mean of k over the policy's own tokens (for k1 and k3
the divergence), and its gradient is the gradient of that mean.
"""

import math
from collections.abc import Callable
from typing import Literal

import pytest
import torch

from engine.objective.base import Tokens
from engine.objective.grpo import Grpo
from engine.objective.kl import ESTIMATORS, k1, k3, kl_penalty
from tests.numerics.support import CLOSE, SEEDS, Drawn, f64, gradient

Name = Literal["k1", "k2", "k3"]
VALUES: dict[Name, Callable[[float], float]] = {
    "k1": lambda d: d,
    "k2": lambda d: d * d / 2,
    "k3": lambda d: math.exp(-d) - 1 + d,
}
SLOPES: dict[Name, Callable[[float], float]] = {
    "k1": lambda d: 1.0,
    "k2": lambda d: d,
    "k3": lambda d: 1 - math.exp(-d),
}


def distances(drawn: Drawn) -> list[float]:
    return [logp - reference for logp, reference in zip(drawn.logp, drawn.reference, strict=True)]


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("seed", SEEDS)
def test_an_estimator_is_its_formula(name: Name, seed: int) -> None:
    drawn = Drawn.of(seed)
    expected = [VALUES[name](d) for d in distances(drawn)]
    assert ESTIMATORS[name](f64(drawn.logp), f64(drawn.reference)).tolist() == pytest.approx(expected, **CLOSE)


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_loss_gets_beta_times_ratio_times_estimator_and_its_slope(name: Name, seed: int) -> None:
    drawn = Drawn.of(seed)
    without, tokens = drawn.tokens(), drawn.tokens()
    terms, base = Grpo(kl_beta=0.3, kl_estimator=name)(tokens), Grpo()(without)
    ratios = [math.exp(logp - old) for logp, old in zip(drawn.logp, drawn.old, strict=True)]
    pairs = list(zip(ratios, distances(drawn), strict=True))
    penalty = sum(r * VALUES[name](d) for r, d in pairs)
    assert terms.sum.item() == pytest.approx(base.sum.item() + 0.3 * penalty, **CLOSE)
    slopes = [r * (VALUES[name](d) + SLOPES[name](d)) for r, d in pairs]
    expected = [s + 0.3 * slope for s, slope in zip(gradient(base.sum, without.logp_T), slopes, strict=True)]
    assert gradient(terms.sum, tokens.logp_T) == pytest.approx(expected, **CLOSE)


LOGITS, OLD, REFERENCE = [0.3, -1.0, 0.8, 0.1], [0.0, -0.5, 0.9, 0.4], [0.5, 0.2, -0.7, 0.0]


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_over_the_old_policys_tokens_the_penalty_and_its_gradient_are_those_of_the_divergence(name: Name) -> None:
    """The mean by summing over the vocabulary; the divergence differentiated as it is defined."""
    logits_V, logq_V = f64(LOGITS, grad=True), f64(REFERENCE).log_softmax(0)
    logp_V, logold_V = logits_V.log_softmax(0), f64(OLD).log_softmax(0)
    penalty = (logold_V.exp() * kl_penalty(logp_V, logq_V, (logp_V - logold_V).exp(), name)).sum()
    divergence = (logp_V.exp() * (logp_V - logq_V)).sum()
    assert penalty.item() == pytest.approx(divergence.item(), **CLOSE)
    (expected_V,) = torch.autograd.grad(divergence, logits_V, retain_graph=True)
    assert gradient(penalty, logits_V) == pytest.approx(expected_V.tolist(), **CLOSE)


def test_without_the_ratio_k1_would_be_no_penalty_and_k3_that_of_the_other_divergence() -> None:
    """Why ``kl_penalty`` has it: E[grad log policy] = 0, and E[grad k3] = grad KL(reference || policy)."""
    logits_V, logq_V = f64(LOGITS, grad=True), f64(REFERENCE).log_softmax(0)
    logp_V = logits_V.log_softmax(0)
    drawn_V = logp_V.exp().detach()
    (k1_V,) = torch.autograd.grad((drawn_V * k1(logp_V, logq_V)).sum(), logits_V, retain_graph=True)
    (k3_V,) = torch.autograd.grad((drawn_V * k3(logp_V, logq_V)).sum(), logits_V, retain_graph=True)
    forward_V = gradient((logq_V.exp() * (logq_V - logp_V)).sum(), logits_V)
    assert k1_V.tolist() == pytest.approx([0.0] * len(LOGITS), **CLOSE)
    assert k3_V.tolist() == pytest.approx(forward_V, **CLOSE)


def test_k3_is_never_negative() -> None:
    assert (k3(f64(Drawn.of(1).logp), f64(Drawn.of(1).reference)) >= 0).all()


def test_a_penalty_without_a_reference_is_refused() -> None:
    with pytest.raises(ValueError, match="kl_beta is on, but the tokens carry no log-probabilities of a reference"):
        Grpo(kl_beta=0.1)(Tokens(f64([0]), f64([1])))
