"""Dr. GRPO (arXiv 2503.20783): neither the spread of a group nor the length of answers weighs a token.

A_i = r_i - mean(r)          loss = 1 / (rollouts x longest) sum_i sum_t (...)
"""

import random

import pytest

from engine.objective.advantage import group_advantages
from engine.objective.base import Tokens
from engine.objective.grpo import Grpo
from engine.objective.normalisation import token_mean
from tests.numerics.support import CLOSE, SEEDS, f64, gradient

LONGEST = 50


@pytest.mark.parametrize("seed", SEEDS)
def test_the_gradient_of_every_token_is_its_rollouts_centred_reward_over_a_constant(seed: int) -> None:
    luck = random.Random(seed)
    rewards = [1.0, 0.0, *(luck.random() for _ in range(4))]
    lengths = [luck.randint(1, LONGEST) for _ in rewards]
    mean = sum(rewards) / len(rewards)
    expected = [
        -(reward - mean) / (len(rewards) * LONGEST)
        for reward, length in zip(rewards, lengths, strict=True)
        for _ in range(length)
    ]

    advantages = group_advantages(f64(rewards), norm="none").tolist()
    spread = [each for each, length in zip(advantages, lengths, strict=True) for _ in range(length)]
    logp_T = f64([luck.random() for _ in spread], grad=True)
    loss = token_mean(Grpo()(Tokens(logp_T, f64(spread))).sum, len(rewards) * LONGEST)
    assert loss.item() == pytest.approx(sum(expected), **CLOSE)
    assert gradient(loss, logp_T) == pytest.approx(expected, **CLOSE)


def test_without_norm_only_the_mean_is_taken_off() -> None:
    assert group_advantages(f64([1, 0, 0, 0]), norm="none").tolist() == [0.75, -0.25, -0.25, -0.25]
