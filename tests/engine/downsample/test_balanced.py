"""Balanced: as many wrong rollouts as right ones, drawn without a look at penalties."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.downsample import Balanced, Candidate, Uniform
from engine.downsample.quotas import balanced_quotas


def group(right: int, wrong: int, seed: int = 0) -> list[Candidate]:
    luck = random.Random(seed)
    rewards = [1.0] * right + [0.0] * wrong
    luck.shuffle(rewards)
    return [Candidate(i, reward, 4, luck.randrange(5), 1, 1, 5, 1 - luck.random()) for i, reward in enumerate(rewards)]


@pytest.mark.parametrize("right", range(1, 32))
def test_the_smaller_class_stays_whole_up_to_half_of_the_places(right: int) -> None:
    candidates = group(right, 32 - right)
    kept = [candidates[index] for index in Balanced().select(candidates, 16).kept]
    each = min(right, 32 - right, 8)
    assert [sum(k.right for k in kept), sum(not k.right for k in kept)] == [each, each]


def test_exactly_16_stay_where_both_classes_have_8() -> None:
    sizes = {right: len(Balanced().select(group(right, 32 - right), 16).kept) for right in range(33)}
    assert {right for right, size in sizes.items() if size == 16} == set(range(8, 25))
    assert (sizes[0], sizes[1], sizes[31], sizes[32]) == (0, 2, 2, 0)


def test_an_odd_place_stays_empty() -> None:
    assert balanced_quotas(20, 12, 15) == (7, 7)
    assert Balanced().select(group(20, 12), 1).outcome == "roc_emptied"


def test_equal_rewards_are_rejected_first() -> None:
    assert Balanced().select(group(4, 0), 2).outcome == "all_right"
    assert Balanced().select(group(0, 4), 2).outcome == "all_wrong"


def test_penalties_play_no_part() -> None:
    candidates = group(20, 12)
    spoiled = [replace(each, errors=4, answer_opens=0) for each in candidates]
    assert Balanced().select(candidates, 16).kept == Balanced().select(spoiled, 16).kept


def test_with_equal_classes_it_is_the_uniform_control() -> None:
    candidates = group(16, 16)
    assert Balanced().select(candidates, 16).kept == Uniform().select(candidates, 16).kept


def test_a_negative_keep_is_refused() -> None:
    with pytest.raises(ValueError, match="keep must be 0 or more"):
        Balanced().select(group(2, 2), -1)


@settings(max_examples=40)
@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 50), st.randoms())
def test_holds_for_any_group(right: int, wrong: int, keep: int, luck: random.Random) -> None:
    candidates = group(right, wrong + 1)
    selection = Balanced().select(candidates, keep)
    assert len(selection.kept) <= keep
    assert sum(candidates[index].right for index in selection.kept) * 2 == len(selection.kept)
    assert Balanced().select(luck.sample(candidates, len(candidates)), keep) == selection
