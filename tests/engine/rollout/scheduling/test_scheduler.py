"""The scheduler's books: who is counted where, and that calls out of order are refused."""

from collections.abc import Callable

import pytest

from engine.contract.resources import KvCapScheduler
from engine.rollout.base import EngineCapacity
from engine.rollout.scheduling.base import EngineFigures, EngineStats, Size
from engine.rollout.scheduling.lengths import LengthModel
from engine.rollout.scheduling.scheduler import Scheduler

Make = Callable[..., Scheduler]
SIZE = Size("p", 10, 100)


def one(made: Scheduler) -> int:
    number = made.submit(SIZE)
    assert [placed.number for placed in made.admit().placed] == [number]
    return number


def test_a_place_counts_before_its_first_turn(scheduler: Make) -> None:
    made = scheduler()
    one(made)
    figures = made.figures("a")
    assert (figures.in_flight, figures.in_tools, figures.held_tokens) == (1, 0, 0)
    assert figures.expected_tokens >= 90


def test_a_turn_that_ends_tells_how_far_the_others_are(scheduler: Make) -> None:
    """Two decode in lock step: when the one has made 30 tokens, the other has too."""
    made = scheduler()
    first, second = one(made), one(made)
    made.turn_started(first, 10)
    made.turn_started(second, 10)
    made.turn_ended(first, 40)
    figures = made.figures("a")
    assert (figures.held_tokens, figures.in_tools) == (40, 1)
    made.turn_started(first, 45)
    assert made.figures("a").held_tokens == 85


def test_tokens_that_an_engine_made_move_its_clock_though_no_turn_ends(scheduler: Make) -> None:
    made = scheduler()
    for number in (one(made), one(made)):
        made.turn_started(number, 10)
    made.observe("a", EngineStats(2, 0, 0.1, 0, 40))
    assert made.figures("a").held_tokens == 60


def test_what_an_engine_made_before_it_was_opened_moves_nothing(scheduler: Make) -> None:
    made = scheduler()
    made.observe("a", EngineStats(0, 0, 0, 0, 5000))
    made.turn_started(one(made), 10)
    made.observe("a", EngineStats(1, 0, 0.1, 0, 5007))
    assert made.figures("a").held_tokens == 17


@pytest.mark.parametrize("state", ["placed", "sampling", "in a tool"])
def test_a_place_is_given_back_whatever_its_rollout_does(scheduler: Make, state: str) -> None:
    made = scheduler()
    number = one(made)
    if state != "placed":
        made.turn_started(number, 10)
    if state == "in a tool":
        made.turn_ended(number, 40)
    made.put_back(number, 30)
    assert (made.queued, made.in_flight) == (1, 0)
    assert made.figures("a") == EngineFigures(0, 0, 0, 0, 96 * 32, 0)
    made.withdraw(number)
    assert (made.queued, made.in_flight) == (0, 0)


def test_who_is_put_back_is_placed_before_those_who_wait(scheduler: Make) -> None:
    made = scheduler(KvCapScheduler(kind="kv_cap"), {"a": (100, 1)})
    number = one(made)
    made.submit(SIZE)
    made.put_back(number, 0)
    assert [placed.number for placed in made.admit().placed] == [number]


def test_a_closed_engine_gets_nothing_and_those_there_keep_their_places(scheduler: Make) -> None:
    made = scheduler(KvCapScheduler(kind="kv_cap"), {"a": (320, 1)})
    number = one(made)
    made.close("a")
    made.submit(SIZE)
    assert made.admit().placed == ()
    made.open("a", EngineCapacity(kv_blocks=101, block_tokens=1, max_model_tokens=100))
    assert made.admit().placed == ()
    made.put_back(number, 0)
    assert [placed.number for placed in made.admit().placed] == [number]


def test_nothing_open_means_wait_and_never_fitting_means_so(scheduler: Make) -> None:
    made = scheduler()
    made.close("a")
    number = made.submit(Size("p", 1, 10**6))
    assert made.admit().refused == ()
    made.open("a", EngineCapacity(97, 32, 3072))
    ((refused, error),) = made.admit().refused
    assert refused == number
    assert "1000000 tokens" in str(error)
    assert "kv_cache_mb" in str(error)
    assert (made.queued, made.in_flight) == (0, 0)


def test_who_fits_the_large_engine_only_goes_there(scheduler: Make) -> None:
    made = scheduler(None, {"small": (50, 1), "large": (120, 1)})
    made.submit(SIZE)
    assert [placed.engine for placed in made.admit().placed] == ["large"]


def test_calls_out_of_order_are_refused(scheduler: Make) -> None:
    made = scheduler()
    waiting = made.submit(SIZE)
    with pytest.raises(ValueError, match="has no place"):
        made.turn_started(waiting, 10)
    with pytest.raises(ValueError, match="has no place"):
        made.finish(waiting, 10, cut=False)
    made.admit()
    with pytest.raises(ValueError, match="does not sample"):
        made.turn_ended(waiting, 20)
    made.turn_started(waiting, 10)
    with pytest.raises(ValueError, match="samples already"):
        made.turn_started(waiting, 10)
    made.finish(waiting, 10, cut=False)
    with pytest.raises(KeyError):
        made.finish(waiting, 10, cut=False)


def test_lengths_are_learned_and_may_be_replaced_between_batches(scheduler: Make) -> None:
    made = scheduler()
    made.finish(one(made), 25, cut=False)
    made.finish(one(made), 90, cut=True)
    saved = made.lengths.as_dict()
    assert (sum(saved["ended"]), sum(saved["stopped"])) == (1, 1)
    other = LengthModel()
    made.lengths = other
    made.submit(SIZE)
    with pytest.raises(ValueError, match="under 1 rollouts"):
        made.lengths = LengthModel()
    assert made.lengths is other
