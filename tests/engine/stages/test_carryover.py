"""What a stage carries from step to step comes back from a checkpoint as it was."""

import json

from engine.stages.carryover import CarryOver, LengthStatistics
from engine.stages.metrics import percentile


def test_it_comes_back_from_json() -> None:
    carried = CarryOver(cursor=40, skips=2, lengths=LengthStatistics(mean=12.5, p95=30.0))
    assert CarryOver.of(json.loads(json.dumps(carried.as_dict()))) == carried


def test_before_the_first_checkpoint_there_is_nothing() -> None:
    assert CarryOver.of({}) == CarryOver()


def test_length_statistics_begin_with_the_first_step_and_follow_slowly() -> None:
    lengths = LengthStatistics()
    lengths.take([10, 20, 30])
    assert (lengths.mean, lengths.p95) == (20.0, 30.0)
    lengths.take([120])
    assert (lengths.mean, lengths.p95) == (30.0, 39.0)
    lengths.take([])
    assert (lengths.mean, lengths.p95) == (30.0, 39.0)


def test_a_percentile_is_a_value_that_occurred() -> None:
    assert percentile(range(1, 101), 0.95) == 95
    assert percentile([7], 0.95) == 7
