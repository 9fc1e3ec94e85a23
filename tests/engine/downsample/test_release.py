"""``mode="sorted"`` against the released rule, written down here from what its code does.

microsoft/rStar, ``down_sample/roc.py`` with the fix of PR 50: rollouts with a reward are sorted by penalty, the sort is
stable, those without keep the order of the batch; round(n * 16 / 32) of each class, halves to even, and at least two of
each class as far as there are two.
"""

import random
from collections.abc import Sequence

import pytest

from engine.downsample import Candidate, Roc
from engine.downsample.quotas import class_quotas, release_steps
from engine.downsample.roc import error_penalty, format_penalty

SAMPLED, KEPT, LEAST = 32, 16, 2


def released(candidates: Sequence[Candidate]) -> set[int]:
    positives = [each for each in candidates if each.reward > 0]
    negatives = [each for each in candidates if each.reward <= 0]
    positives.sort(key=_penalty)
    of_negatives = round(len(negatives) * KEPT / SAMPLED)
    of_positives = round(len(positives) * KEPT / SAMPLED)
    if of_negatives <= min(LEAST, len(negatives)):
        of_negatives = min(LEAST, len(negatives))
        of_positives = KEPT - of_negatives
    if of_positives <= min(LEAST, len(positives)):
        of_positives = min(LEAST, len(positives))
        of_negatives = KEPT - of_positives
    return {each.index for each in [*positives[:of_positives], *negatives[:of_negatives]]}


def _penalty(candidate: Candidate) -> float:
    return error_penalty(candidate.calls, candidate.errors) + format_penalty(
        candidate.answer_opens, candidate.answer_closes, candidate.turns
    )


def group(right: int, seed: int) -> list[Candidate]:
    """Mixed order, mixed penalties, many of them equal."""
    luck = random.Random(seed)
    rewards = [1.0] * right + [0.0] * (SAMPLED - right)
    luck.shuffle(rewards)
    return [
        Candidate(index, reward, 4, luck.randrange(5), tags := luck.randrange(3), tags, 5, u=1 - luck.random())
        for index, reward in enumerate(rewards)
    ]


@pytest.mark.parametrize("right", range(1, SAMPLED))
def test_keeps_what_the_release_keeps(right: int) -> None:
    for seed in range(5):
        candidates = group(right, seed)
        selection = Roc(mode="sorted", min_per_class=LEAST).select(candidates, KEPT)
        assert set(selection.kept) == released(candidates)


def test_rounding_that_loses_nothing_is_the_releases() -> None:
    assert release_steps(17, 15, KEPT, 0).quotas == (8, 8)  # 8.5 and 7.5, both to the even 8
    assert class_quotas(17, 15, KEPT, 0) == (9, 7)
    assert all(sum(release_steps(right, SAMPLED - right, KEPT, 0).quotas) == KEPT for right in range(SAMPLED + 1))


@pytest.mark.parametrize(("right", "wrong", "keep"), [(5, 5, 5), (3, 3, 3)])
def test_rounding_that_loses_or_invents_a_rollout_is_not(right: int, wrong: int, keep: int) -> None:
    """5 right of 10 would be 2 + 2 of 5 places, 3 right of 6 would be 2 + 2 of 3."""
    assert 2 * round(right * keep / (right + wrong)) != keep
    assert release_steps(right, wrong, keep, 0).quotas == class_quotas(right, wrong, keep, 0)
