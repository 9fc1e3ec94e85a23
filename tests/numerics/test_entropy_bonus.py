"""Entropy bonus:     loss = ... - c sum_t H_t"""

import pytest

from engine.objective.base import Tokens
from engine.objective.grpo import Grpo
from tests.numerics.support import CLOSE, SEEDS, Drawn, f64, gradient


@pytest.mark.parametrize("seed", SEEDS)
def test_each_tokens_entropy_is_taken_off_the_loss(seed: int) -> None:
    drawn = Drawn.of(seed)
    tokens = drawn.tokens()
    terms = Grpo(entropy_coef=0.02)(tokens)
    expected = Grpo()(drawn.tokens()).sum.item() - 0.02 * sum(drawn.entropy)
    assert terms.sum.item() == pytest.approx(expected, **CLOSE)
    assert tokens.entropy_T is not None
    assert gradient(terms.sum, tokens.entropy_T) == pytest.approx([-0.02] * len(drawn.entropy), **CLOSE)


def test_a_bonus_without_entropies_is_refused() -> None:
    with pytest.raises(ValueError, match="entropy_coef is on, but the tokens carry no entropies"):
        Grpo(entropy_coef=0.1)(Tokens(f64([0]), f64([1])))
