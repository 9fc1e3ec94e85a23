"""What a stage carries from step to step comes back from a checkpoint as it was, but for rollouts under way."""

import json
from collections.abc import Callable

from engine.contract.trajectory import Trajectory
from engine.data.problem import Problem
from engine.rollout.response import Begun
from engine.rollout.scheduling.lengths import LengthModel
from engine.stages.carryover import CarryOver
from engine.stages.draws import Draw
from engine.stages.metrics import percentile


def stored(carried: CarryOver) -> CarryOver:
    return CarryOver.of(json.loads(json.dumps(carried.as_dict())))


def test_it_comes_back_from_json() -> None:
    lengths = LengthModel().as_dict()
    carried = CarryOver(40, 2, [Draw(Problem("1+1?", "2", "k=1"), step=3, place=5)], lengths)
    assert stored(carried) == carried
    assert LengthModel.of(stored(carried).lengths).as_dict() == lengths


def test_f101_rollouts_under_way_are_not_stored_their_problem_is(make: Callable[..., Trajectory]) -> None:
    """A resumed run asks for the whole group anew: the same one, by its present policy."""
    problem = Problem("1+1?", "2")
    carried = CarryOver(draws=[Draw(problem, 3, 5, finished=(make(),), halted={1: Begun((1, 2))})])
    assert stored(carried).draws == [Draw(problem, 3, 5)]


def test_before_the_first_checkpoint_there_is_nothing() -> None:
    assert CarryOver.of({}) == CarryOver()


def test_what_older_engines_stored_is_understood() -> None:
    """Their length statistics are of no use to the scheduler."""
    assert CarryOver.of({"cursor": 4, "skips": 1, "lengths": {"mean": 3.0, "p95": 3.0}}) == CarryOver(4, 1)


def test_a_percentile_is_a_value_that_occurred() -> None:
    assert percentile(range(1, 101), 0.95) == 95
    assert percentile([7], 0.95) == 7
