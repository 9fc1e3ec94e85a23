"""Advantages within a group of N kept rollouts (arXiv 2508.20722, eq. 2):

A_i = (r_i - mean(r)) / (std(r) + eps),     std with N in the denominator, or N - ddof
"""

import math
import random

import pytest
import torch

from engine.objective.advantage import group_advantages
from tests.numerics.support import CLOSE, SEEDS, f64


def loop(rewards: list[float], *, ddof: int, eps: float) -> list[float]:
    mean = sum(rewards) / len(rewards)
    std = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - ddof))
    return [(reward - mean) / (std + eps) for reward in rewards]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("eps", [1e-6, 1e-4])
def test_advantages_are_those_of_the_loop(seed: int, ddof: int, eps: float) -> None:
    luck = random.Random(seed)
    rewards = [float(luck.random() < 0.4) for _ in range(15)] + [1.0, 0.0]
    found = group_advantages(f64(rewards), ddof=ddof, eps=eps).tolist()
    assert found == pytest.approx(loop(rewards, ddof=ddof, eps=eps), **CLOSE)


def test_equal_rewards_give_exact_zeros_whatever_their_size() -> None:
    for reward in (0.1, 1 / 3, 1e9):
        assert group_advantages(torch.full((7,), reward)).tolist() == [0.0] * 7


def test_a_group_of_one_gives_zero_and_an_empty_one_nothing() -> None:
    assert group_advantages(f64([1.0]), ddof=1).tolist() == [0.0]
    assert group_advantages(f64([])).tolist() == []


def test_an_unknown_norm_is_refused() -> None:
    with pytest.raises(ValueError, match="norm is 'max', expected 'std' or 'none'"):
        group_advantages(f64([1, 0]), norm="max")  # type: ignore[arg-type]
