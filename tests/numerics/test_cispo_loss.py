"""CISPO (arXiv 2506.13585, eq. 4 and 5), as a sum over tokens, sg without gradient:

loss = -sum_t sg(clip(r_t, 1 - eps_low, 1 + eps_high)) A_t logp_t,     r_t = exp(logp_t - logp_old_t)

d loss / d logp_t = -clip(r_t, ...) A_t
"""

import math
from dataclasses import replace

import pytest

from engine.objective.cispo import Cispo
from engine.objective.grpo import Grpo
from tests.numerics.support import CLOSE, SEEDS, Drawn, gradient

LOW, HIGH = 0.2, 0.28


@pytest.mark.parametrize("seed", SEEDS)
def test_the_loss_and_its_gradient_are_those_of_the_loop(seed: int) -> None:
    drawn = Drawn.of(seed)
    ratios = [math.exp(logp - old) for logp, old in zip(drawn.logp, drawn.old, strict=True)]
    weights = [max(1 - LOW, min(r, 1 + HIGH)) for r in ratios]
    slopes = [-w * a for w, a in zip(weights, drawn.advantage, strict=True)]
    tokens = drawn.tokens()
    terms = Cispo(clip_low=LOW, clip_high=HIGH)(tokens)
    expected = sum(slope * logp for slope, logp in zip(slopes, drawn.logp, strict=True))
    assert terms.sum.item() == pytest.approx(expected, **CLOSE)
    assert gradient(terms.sum, tokens.logp_T) == pytest.approx(slopes, **CLOSE)
    assert terms.sums["clip_frac"] == sum(w != r for w, r in zip(weights, ratios, strict=True))
    assert terms.sums["effective_tokens"] == sum(a != 0 for a in drawn.advantage)


def test_with_one_update_a_step_its_gradient_is_that_of_grpo() -> None:
    one, other = (replace(Drawn.of(0).tokens(), old_T=None) for _ in range(2))
    assert gradient(Cispo()(one).sum, one.logp_T) == gradient(Grpo()(other).sum, other.logp_T)
