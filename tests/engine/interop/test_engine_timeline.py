"""What is kept of the timeline of engines, and what charts read from it."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.contract.events import EngineLoad, Event
from engine.interop.engine_timeline import FINEST_S, MOST_MOMENTS, arrays, moments, shown_values, surplus, width_s

WEEK_S = 7 * 24 * 3600


def kept(times: list[float]) -> list[float]:
    gone = set(surplus(times))
    return [at for place, at in enumerate(times) if place not in gone]


def test_a_short_run_keeps_everything() -> None:
    times = [half / 2 for half in range(400)]
    assert kept(times) == times


def test_a_week_is_kept_as_about_a_thousand_moments_its_first_among_them() -> None:
    times = [float(at) for at in range(0, WEEK_S, 10)]
    left = kept(times)
    assert MOST_MOMENTS / 2 - 2 <= len(left) <= MOST_MOMENTS
    assert left[0] == times[0]
    assert max(b - a for a, b in pairwise(left)) <= 2 * width_s(times[0], times[-1])


def test_widths_only_ever_double() -> None:
    assert [width_s(0, last) for last in (0, 1, 249, 250, 1000)] == [*(FINEST_S,) * 3, 2 * FINEST_S, 8 * FINEST_S]


@given(st.lists(st.floats(0, WEEK_S), min_size=1, max_size=60, unique=True), st.data())
def test_thinning_as_a_run_goes_on_keeps_what_thinning_at_its_end_keeps(
    found: list[float], data: st.DataObject
) -> None:
    times, there = sorted(found), list[float]()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(times)), max_size=8)))
    for first, last in pairwise([0, *cuts, len(times)]):
        there = kept([*there, *times[first:last]])
    assert there == kept(times)


def told(seq: int, at: float, engine: str, step: int = 1) -> tuple[Event, EngineLoad]:
    body = EngineLoad(stage="rl", step=step, engine=engine, metrics={"running": float(seq)})
    return Event(attempt=1, seq=seq, at=at, body=body), body


def test_engines_that_were_asked_together_are_one_moment() -> None:
    found = moments([told(1, 10.0, "a"), told(2, 10.05, "b"), told(3, 20.0, "a"), told(4, 20.05, "b")])
    assert [(moment.at, sorted(moment.engines)) for moment in found] == [(10.0, ["a", "b"]), (20.0, ["a", "b"])]


def test_an_engine_that_tells_again_or_of_another_step_begins_another_moment() -> None:
    again = moments([told(1, 10.0, "a"), told(2, 10.05, "a")])
    other = moments([told(1, 10.0, "a"), told(2, 10.05, "b", step=2)])
    assert (len(again), len(other)) == (2, 2)


def test_a_moment_goes_on_where_it_was_left() -> None:
    (last,) = moments([told(1, 10.0, "a")])
    found = moments([told(2, 10.05, "b"), told(3, 20.0, "a")], last)
    assert found[0] is last
    assert [sorted(moment.engines) for moment in found] == [["a", "b"], ["a"]]


def test_a_chart_sees_all_engines_together_and_each_ones_cache() -> None:
    one = {"in_flight": 5.0, "in_tools": 1.0, "queued": 7.0, "kv_usage": 0.5, "preemptions": 2.0}
    values = shown_values(
        {
            "a": {**one, "expected_tokens": 30.0, "capacity_tokens": 40.0},
            "b": {"in_flight": 3.0, "in_tools": 0.0, "queued": 7.0, "kv_usage": None, "preemptions": 0.0},
        }
    )
    assert values == {
        "engines.in_flight": 8.0,
        "engines.in_tools": 1.0,
        "engines.queued": 7.0,  # one queue: every engine tells the same
        "engines.preemptions": 2.0,
        "engine.a.kv_usage": 0.5,
        "engine.a.expected": 0.75,
        "engines.kv_usage.mean": 0.5,
        "engines.kv_usage.max": 0.5,
        "engines.expected.mean": 0.75,
        "engines.expected.max": 0.75,
    }


def test_a_sum_over_some_engines_is_none_for_it_would_look_like_a_fall() -> None:
    """One that was asked and did not answer in time; one that is down has nothing to say and is not missed."""
    told = {"serving": 1.0, "in_flight": 5.0, "preemptions": 9.0}
    silent = {"serving": 1.0, "in_flight": 3.0}
    assert shown_values({"a": told, "b": silent}) == {"engines.in_flight": 8.0}
    down = {"serving": 0.0, "in_flight": 0.0}
    assert shown_values({"a": told, "b": down}) == {"engines.in_flight": 5.0, "engines.preemptions": 9.0}


def test_an_engine_without_a_cache_expects_nothing_of_it() -> None:
    assert shown_values({"a": {"expected_tokens": 5.0, "capacity_tokens": 0.0}}) == {}


def test_arrays_have_an_entry_for_every_moment() -> None:
    rows = [{"a": {"running": 1.0}}, {"b": {"running": 2.0}}, {"a": {"running": None, "waiting": 3.0}}]
    assert arrays(rows) == {
        "a": {"running": [1.0, None, None], "waiting": [None, None, 3.0]},
        "b": {"running": [None, 2.0, None]},
    }
