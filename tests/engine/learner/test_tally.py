"""Sums and maxima of an update over its passes; two ranks are in ``test_gradients.py``."""

import math

import torch

from engine.learner.tally import Tally
from engine.objective.base import LossTerms


def terms(loss: float, clipped: float, ratio: float) -> LossTerms:
    return LossTerms(
        sum=torch.tensor(loss, requires_grad=True),
        sums={"clip_frac": torch.tensor(clipped)},
        maxima={"ratio_max": torch.tensor(ratio)},
    )


def tallied(*passes: LossTerms) -> tuple[dict[str, float], dict[str, float]]:
    tally = Tally()
    for each in passes:
        tally.add(each)
    return tally.over_ranks()


def test_sums_are_added_and_the_largest_is_kept() -> None:
    assert tallied(terms(1.5, 2, 1.0), terms(-0.5, 3, 1.25)) == ({"loss": 1.0, "clip_frac": 5.0}, {"ratio_max": 1.25})


def test_sums_of_many_passes_lose_nothing_to_rounding() -> None:
    """In fp32 2^25 + 1 is 2^25."""
    sums, _ = tallied(terms(2.0**25, 0, 0), *[terms(1.0, 0, 0) for _ in range(100)])
    assert sums["loss"] == 2.0**25 + 100


def test_a_nan_stays_one_whatever_comes_behind_it() -> None:
    sums, maxima = tallied(terms(1.0, 1, math.nan), terms(math.nan, 1, 2.0), terms(1.0, 1, 3.0))
    assert math.isnan(sums["loss"])
    assert math.isnan(maxima["ratio_max"])


def test_an_update_without_passes_has_nothing_to_tell() -> None:
    assert tallied() == ({}, {})
