"""GRPO with clip-higher (arXiv 2508.20722, eq. 1), as a sum over tokens:

loss = -sum_t min(r_t A_t, clip(r_t, 1 - eps_low, 1 + eps_high) A_t),     r_t = exp(logp_t - logp_old_t)

d loss / d logp_t = -r_t A_t, or 0 where the clipped branch is the smaller one
"""

import math
from dataclasses import replace

import pytest
import torch

from engine.objective.base import Tokens
from engine.objective.grpo import Grpo
from tests.numerics.support import CLOSE, SEEDS, Drawn, f64, gradient

LOW, HIGH = 0.2, 0.28


def loop(drawn: Drawn) -> tuple[float, list[float], int]:
    """Sum, gradient, number of clipped tokens."""
    total, slopes, clipped = 0.0, [], 0
    for logp, old, a in zip(drawn.logp, drawn.old, drawn.advantage, strict=True):
        r = math.exp(logp - old)
        bounded = max(1 - LOW, min(r, 1 + HIGH)) * a
        total -= min(r * a, bounded)
        slopes.append(0.0 if bounded < r * a else -r * a)
        clipped += bounded < r * a
    return total, slopes, clipped


@pytest.mark.parametrize("seed", SEEDS)
def test_the_loss_and_its_gradient_are_those_of_the_loop(seed: int) -> None:
    drawn = Drawn.of(seed)
    tokens = drawn.tokens()
    terms = Grpo(clip_low=LOW, clip_high=HIGH)(tokens)
    total, slopes, clipped = loop(drawn)
    assert 0 < clipped < len(slopes)
    assert terms.sum.item() == pytest.approx(total, **CLOSE)
    assert gradient(terms.sum, tokens.logp_T) == pytest.approx(slopes, **CLOSE)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.1, 1.0, -1.1, -1.1),
        (1.5, 1.0, -1.28, 0.0),  # a gain is clipped above
        (0.5, 1.0, -0.5, -0.5),  # but not below: what became unlikely may be learned again
        (0.5, -1.0, 0.8, 0.0),  # a loss is clipped below
        (3.0, -1.0, 3.0, 3.0),  # but not above, however large the ratio
        (1.5, 0.0, 0.0, 0.0),
    ],
)
def test_only_the_side_that_would_go_too_far_is_clipped(
    ratio: float, advantage: float, loss: float, slope: float
) -> None:
    tokens = Tokens(f64([math.log(ratio)], grad=True), f64([advantage]), old_T=f64([0.0]))
    terms = Grpo(clip_low=LOW, clip_high=HIGH)(tokens)
    assert terms.sum.item() == pytest.approx(loss, **CLOSE)
    assert gradient(terms.sum, tokens.logp_T) == pytest.approx([slope], **CLOSE)


def test_one_update_a_step_is_the_policy_gradient() -> None:
    """Without old log-probabilities the behaviour policy is the policy itself, without gradient: r = 1."""
    tokens = replace(Drawn.of(0).tokens(), old_T=None)
    terms = Grpo()(tokens)
    assert terms.sum.item() == pytest.approx(-sum(tokens.advantage_T.tolist()), **CLOSE)
    assert gradient(terms.sum, tokens.logp_T) == pytest.approx([-a for a in tokens.advantage_T.tolist()], **CLOSE)


def test_the_other_policies_get_no_gradient() -> None:
    """Log-probabilities of one model under several names: only the policy's place in the formula is differentiated."""
    logp_T = f64([-1.0], grad=True)
    terms = Grpo(sampler_weight=True, kl_beta=1.0)(
        Tokens(logp_T, f64([1.0]), old_T=logp_T * 1, sampler_T=logp_T * 2, reference_T=logp_T * 1)
    )
    assert gradient(terms.sum, logp_T) == pytest.approx([-2.0], **CLOSE)  # weight min(exp(1), 2); KL at its minimum


@pytest.mark.parametrize("gap", [-1e4, -200.0, 200.0, 1e4])
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_an_absurd_ratio_stays_finite_in_fp32(gap: float, advantage: float) -> None:
    logp_T = torch.tensor([gap], requires_grad=True)
    base_T = torch.tensor([-gap])
    objective = Grpo(sampler_weight=True, kl_beta=1.0)
    terms = objective(Tokens(logp_T, torch.tensor([advantage]), torch.zeros(1), sampler_T=base_T, reference_T=base_T))
    assert terms.sum.isfinite()
    assert all(map(math.isfinite, gradient(terms.sum, logp_T)))


def test_a_token_whose_probability_is_no_number_makes_the_loss_none() -> None:
    """Hidden here, it would go on into the weights; the learner skips an update with such a loss."""
    tokens = Tokens(f64([-1.0, math.nan], grad=True), f64([1.0, 1.0]), old_T=f64([-1.0, -1.0]))
    terms = Grpo()(tokens)
    assert terms.sum.isnan()
    assert terms.maxima["ratio_max"].isnan()


def test_a_pass_without_tokens_is_a_zero_with_a_gradient() -> None:
    """Ranks are kept in step with such passes."""
    logp_T = torch.zeros(7, requires_grad=True)
    nothing = torch.zeros(0)
    objective = Grpo(sampler_weight=True, kl_beta=1.0, entropy_coef=1.0)
    terms = objective(
        Tokens(logp_T[:0], nothing, nothing, nothing, nothing, logp_T[:0] * 2, torch.zeros(0, dtype=torch.bool))
    )
    assert terms.sum.item() == 0.0
    assert gradient(terms.sum, logp_T) == [0.0] * 7
    assert {value.item() for value in [*terms.sums.values(), *terms.maxima.values()]} == {0.0}


def test_shapes_that_would_broadcast_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shapes differ: .*'logp_T': \(2, 1\), 'advantage_T': \(2,\)"):
        Tokens(torch.zeros(2, 1), torch.zeros(2))
