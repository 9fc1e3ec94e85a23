"""Chances against two definitions that share nothing with the implementation.

Exactly: every order in which items may be drawn one by one, each with probability in proportion to the weights left.
By luck: 100,000 simulated draws, whose keys are first shown to order rollouts as ``draw_weighted`` does.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.downsample import Candidate, inclusion
from engine.downsample.drawing import draw_weighted, key_order
from engine.downsample.inclusion import inclusion_probabilities
from engine.downsample.roc import draw_weight

DRAWS = 100_000

PENALTIES = (0.0, 0.0, 0.0, 0.2, 0.25, 1 / 3, 0.5, 0.5, 1.0, 1.5, 2.0)
"""Values of p_total that groups really have."""

WEIGHT_SETS: dict[str, list[float]] = {
    "two": [3.0, 1.0],
    "equal": [1.0] * 6,
    "one clean": [20.0, 1.0, 1.0, 1.0, 1.0],
    "one dirty": [20.0, 20.0, 20.0, 0.5],
    "penalties": [draw_weight(each, eps=0.05) for each in (0.0, 0.0, 0.25, 0.5, 0.5, 1.0, 1.5)],
    "far apart": [1e6, 1e3, 1.0, 1e-3, 1e-6],
    "eight": [draw_weight(each, eps=0.05) for each in (0.0, 0.1, 0.2, 1 / 3, 0.5, 0.75, 1.0, 2.0)],
}


@cache
def subset_chances(weights: tuple[float, ...]) -> dict[frozenset[int], float]:
    """P(S is what the first |S| draws took) for every set S: the sum over all orders of drawing it."""
    chances: dict[frozenset[int], float] = {}

    def draw(taken: tuple[int, ...], chance: float) -> None:
        drawn = frozenset(taken)
        chances[drawn] = chances.get(drawn, 0.0) + chance
        left = [item for item in range(len(weights)) if item not in drawn]
        total = math.fsum(weights[item] for item in left)
        for item in left:
            draw((*taken, item), chance * weights[item] / total)

    draw((), 1.0)
    return chances


def chances_by_type(weights: Sequence[float], sizes: Sequence[int], drawn: int) -> list[float]:
    """The same for many items of few weights: draws only change how many of each weight are left."""
    states: dict[tuple[int, ...], float] = {tuple(sizes): 1.0}
    for _ in range(drawn):
        following: dict[tuple[int, ...], float] = {}
        for left, chance in states.items():
            total = math.fsum(count * weight for count, weight in zip(left, weights, strict=True))
            for place, count in enumerate(left):
                fewer = (*left[:place], count - 1, *left[place + 1 :])
                if count:
                    share = chance * count * weights[place] / total
                    following[fewer] = following.get(fewer, 0.0) + share
        states = following
    return [
        math.fsum(chance * (size - left[place]) for left, chance in states.items()) / size
        for place, size in enumerate(sizes)
    ]


def chi_square_p(counts: Sequence[float], expected: Sequence[float]) -> float:
    """P(a chi-square at least as large), by the series of the regularised incomplete gamma function."""
    half = sum((count - mean) ** 2 / mean for count, mean in zip(counts, expected, strict=True)) / 2
    shape = (len(counts) - 1) / 2
    term = total = 1 / shape
    for n in range(1, 1000):
        term *= half / (shape + n)
        total += term
    return 1 - total * math.exp(-half + shape * math.log(half) - math.lgamma(shape))


def rollouts(uniforms: Sequence[float]) -> list[Candidate]:
    return [Candidate(index, 1.0, 4, 0, 1, 1, 5, u) for index, u in enumerate(uniforms)]


class Simulated:
    """Orders of ``DRAWS`` draws: ``order_DN[d, 0]`` is taken first in draw d."""

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights = np.array(weights)
        self.uniform_DN = 1 - np.random.default_rng(20508).random((DRAWS, len(weights)))
        self.order_DN = np.argsort(-np.log(self.uniform_DN) / self.weights, axis=1)

    def counts(self, drawn: int) -> list[int]:
        """How often each item was among the first ``drawn``."""
        found: list[int] = np.bincount(self.order_DN[:, :drawn].ravel(), minlength=len(self.weights)).tolist()
        return found


@pytest.fixture(scope="module")
def group_of_32() -> Simulated:
    return Simulated([draw_weight(PENALTIES[place % len(PENALTIES)], eps=0.05) for place in range(32)])


@pytest.mark.parametrize("weights", WEIGHT_SETS.values(), ids=WEIGHT_SETS)
class TestAgainstEveryOrderOfDrawing:
    def test_summed_exactly(self, weights: list[float]) -> None:
        for drawn, expected in _expected(weights):
            assert inclusion_probabilities(weights, drawn) == pytest.approx(expected, abs=1e-12)

    def test_integrated(self, weights: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(inclusion, "EXACT_UP_TO", 0)
        for drawn, expected in _expected(weights):
            assert inclusion_probabilities(weights, drawn) == pytest.approx(expected, abs=1e-9)

    def test_sets_are_kept_as_often_as_clocks_say(self, weights: list[float]) -> None:
        """Keys u^(1/w) keep the set S with E[prod over S of (1 - exp(-w T))], T the first clock outside of S."""
        chances = subset_chances(tuple(weights))
        for taken in combinations(range(len(weights)), len(weights) // 2):
            rest = math.fsum(weights[item] for item in range(len(weights)) if item not in taken)
            signed = [
                (-1) ** size * rest / (rest + math.fsum(weights[item] for item in some))
                for size in range(len(taken) + 1)
                for some in combinations(taken, size)
            ]
            assert chances[frozenset(taken)] == pytest.approx(math.fsum(signed), abs=1e-12)


def _expected(weights: Sequence[float]) -> Iterator[tuple[int, list[float]]]:
    chances = subset_chances(tuple(weights))
    for drawn in range(len(weights) + 1):
        yield drawn, [_chance_of(item, drawn, chances) for item in range(len(weights))]


def _chance_of(item: int, drawn: int, chances: Mapping[frozenset[int], float]) -> float:
    return math.fsum(chance for taken, chance in chances.items() if len(taken) == drawn and item in taken)


class TestLargerClasses:
    @pytest.mark.parametrize(
        ("penalties", "sizes", "drawn", "eps"),
        [
            ((0.0, 0.5, 1.5), (14, 10, 8), 16, 0.05),
            ((0.0, 0.5, 1.5), (14, 10, 8), 2, 0.05),
            ((0.0, 0.5, 1.5), (14, 10, 8), 31, 0.05),
            ((0.0, 2.0), (1, 30), 15, 1e-6),
            ((0.0, 2.0), (30, 1), 15, 1e-300),
            ((0.0, 0.25, 1.0), (12, 10, 10), 16, 10.0),
            ((0.0, 0.25), (32, 32), 32, 1e6),
            ((0.0, 0.25, 1.0), (2, 3, 4), 4, 0.05),
        ],
    )
    def test_to_nine_digits(self, penalties: tuple[float, ...], sizes: tuple[int, ...], drawn: int, eps: float) -> None:
        weights = [draw_weight(each, eps) for each in penalties]
        items = [weight for weight, size in zip(weights, sizes, strict=True) for _ in range(size)]
        expected = chances_by_type(weights, sizes, drawn)
        per_item = [chance for chance, size in zip(expected, sizes, strict=True) for _ in range(size)]
        assert inclusion_probabilities(items, drawn) == pytest.approx(per_item, abs=1e-9)

    @settings(max_examples=30)
    @given(st.lists(st.floats(0, 2), min_size=9, max_size=40), st.floats(1e-6, 100), st.data())
    def test_they_add_up_to_what_is_drawn_and_rise_with_the_weight(
        self, penalties: list[float], eps: float, data: st.DataObject
    ) -> None:
        weights = [draw_weight(each, eps) for each in penalties]
        drawn = data.draw(st.integers(0, len(weights)))
        chances = inclusion_probabilities(weights, drawn)
        assert math.fsum(chances) == pytest.approx(drawn, abs=1e-8)
        by_weight = [chance for _, chance in sorted(zip(weights, chances, strict=True))]
        assert all(low <= high + 1e-9 for low, high in pairwise(by_weight))

    def test_weights_that_floats_can_hardly_compare(self) -> None:
        chances = inclusion_probabilities([1e308] * 5 + [1e-308] * 5, 5)
        assert chances == pytest.approx([1.0] * 5 + [0.0] * 5)
        assert inclusion_probabilities([1e308, 1e308, 1.0], 2) == pytest.approx([1.0, 1.0, 0.0])


class TestSimulatedDraws:
    def test_they_order_rollouts_as_the_rule_does(self, group_of_32: Simulated) -> None:
        weights = group_of_32.weights.tolist()
        for uniforms, order in zip(group_of_32.uniform_DN[:300].tolist(), group_of_32.order_DN.tolist(), strict=False):
            members = rollouts(uniforms)
            keys = [u ** (1 / weight) for u, weight in zip(uniforms, weights, strict=True)]
            assert key_order(members, weights, keys) == order

    def test_first_draws_follow_the_weights(self, group_of_32: Simulated) -> None:
        total = math.fsum(group_of_32.weights)
        expected = [DRAWS * weight / total for weight in group_of_32.weights.tolist()]
        assert 0.001 < chi_square_p(group_of_32.counts(1), expected) < 0.999

    def test_places_follow_the_chances(self, group_of_32: Simulated) -> None:
        chances = inclusion_probabilities(group_of_32.weights.tolist(), 16)
        for count, chance in zip(group_of_32.counts(16), chances, strict=True):
            assert abs(count - DRAWS * chance) < 4.5 * math.sqrt(DRAWS * chance * (1 - chance))

    def test_whole_sets_follow_theirs(self) -> None:
        weights = [draw_weight(each, eps=0.05) for each in (0.0, 0.0, 0.25, 0.5, 1.0, 2.0)]
        bits_D = (1 << Simulated(weights).order_DN[:, :3]).sum(axis=1)
        sets = [(set(each), sum(1 << item for item in each)) for each in combinations(range(6), 3)]
        chances = subset_chances(tuple(weights))
        counts = [int((bits_D == bits).sum()) for _, bits in sets]
        assert 0.001 < chi_square_p(counts, [DRAWS * chances[frozenset(each)] for each, _ in sets]) < 0.999

    def test_the_p_value_is_that_of_tables(self) -> None:
        """95 % point of one, 99.9 % point of five degrees of freedom."""
        assert chi_square_p([1 + math.sqrt(3.841459), 1], [1, 1]) == pytest.approx(0.05, abs=1e-6)
        assert chi_square_p([1 + math.sqrt(20.515), *[1] * 5], [1] * 6) == pytest.approx(0.001, abs=1e-6)


class TestTies:
    def test_keys_that_underflow_are_still_fair(self) -> None:
        """u^(1e6) is 0 for all; the draw must not fall back on the order of the batch."""
        draws = draw_weighted(rollouts([0.2, 0.9, 0.5]), [1e-6] * 3, 1)
        assert [draws[index].key for index in range(3)] == [0.0, 0.0, 0.0]
        assert [draws[index].rank for index in range(3)] == [3, 1, 2]

    def test_keys_that_round_to_one_are_still_fair(self) -> None:
        draws = draw_weighted(rollouts([0.2, 0.9, 0.5]), [1e20] * 3, 1)
        assert [draws[index].key for index in range(3)] == [1.0, 1.0, 1.0]
        assert [draws[index].rank for index in range(3)] == [3, 1, 2]

    def test_equal_uniforms_go_to_the_lower_index(self) -> None:
        draws = draw_weighted(rollouts([0.5, 0.5]), [1.0, 1.0], 1)
        assert [draws[index].kept for index in range(2)] == [True, False]
