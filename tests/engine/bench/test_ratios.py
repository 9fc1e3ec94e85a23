"""Rows of ``make bench``: the ratio of a round's seconds, its must, and what was not run."""

import pytest

from benchmarks.learner.measuring import alternate, ratio_row
from engine.bench.stopwatch import Seconds


def seconds(*walls: float) -> list[Seconds]:
    return [Seconds(wall=wall, cpu=wall / 2) for wall in walls]


def test_ratios_are_taken_within_a_round_and_told_as_median_and_spread() -> None:
    rounds = {"packed": seconds(1, 2, 10), "TRL trainer step": seconds(2, 6, 16)}
    row = ratio_row("TRL trainer step", 1.5, rounds, {"ran": True})
    assert (row["ratio"], row["spread"], row["cpu_ratio"], row["reached"]) == (2.0, [1.6, 3.0], 2.0, True)


@pytest.mark.parametrize(("must", "reached"), [(2.0, True), (2.01, False), (None, None)])
def test_a_must_is_reached_or_not(must: float | None, reached: bool | None) -> None:
    row = ratio_row("padded", must, {"packed": seconds(1), "padded": seconds(2)}, {"ran": True})
    assert row["reached"] is reached


def test_an_arm_that_was_not_run_says_why_and_counts_as_not_reached() -> None:
    row = ratio_row("TRL trainer step", 1.5, {"packed": seconds(1)}, {"ran": False, "reason": "no network"})
    assert (row["ran"], row["reason"], row["reached"]) == (False, "no network", False)


def test_every_arm_has_a_turn_in_every_round_after_one_that_does_not_count() -> None:
    order: list[str] = []

    def arm(name: str) -> Seconds:
        order.append(name)
        return Seconds(wall=float(len(order)), cpu=0.0)

    found = alternate({"a": lambda: arm("a"), "b": lambda: arm("b")}, rounds=2)
    assert "".join(order) == "ab" + "ab" + "ba"
    assert [each.wall for each in found["a"]] == [3.0, 6.0]
