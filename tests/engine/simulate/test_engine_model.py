"""The engine model against sums done by hand: a step takes 1 s, a prefilled token 0.1 s, and blocks hold one token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.simulate.engine_model import NEVER, EngineModel, Request, SimulatedEngine


def request(rollout: int, context: int, left: int, asked_s: float = 0.0, fresh: int | None = None) -> Request:
    return Request(rollout, context, context if fresh is None else fresh, left, asked_s)


def run_to_end(engine: SimulatedEngine) -> list[tuple[float, int]]:
    """(time, rollout) of each end, in order."""
    ends = []
    while engine.next_s < NEVER:
        now_s = engine.next_s
        ends += [(now_s, rollout) for rollout in engine.step()]
        engine.plan()
    return ends


def begun(model: EngineModel, *requests: Request) -> SimulatedEngine:
    engine = SimulatedEngine(model)
    for each in requests:
        engine.arrive(each, 0.0)
    engine.step()
    engine.plan()
    return engine


def test_a_turn_takes_its_prefill_and_a_step_a_token(engine):
    assert run_to_end(begun(engine(), request(1, context=10, left=7))) == [(pytest.approx(1 + 7), 1)]


def test_all_that_run_decode_in_lock_step(engine):
    ends = run_to_end(begun(engine(), request(1, 10, left=3), request(2, 20, left=5)))
    assert ends == [(pytest.approx(3 + 3), 1), (pytest.approx(3 + 5), 2)]


def test_a_step_takes_longer_the_more_requests_run_and_the_more_kv_they_hold(engine):
    model = engine(step_per_request_s=0.5, step_per_kv_token_s=0.01, prefill_tokens_per_s=1e12)
    ends = run_to_end(begun(model, request(1, 10, left=3), request(2, 20, left=3)))
    by_step = [1 + 0.5 * 2 + 0.01 * held for held in (30, 32, 34)]
    assert ends == [(pytest.approx(sum(by_step)), 1), (pytest.approx(sum(by_step)), 2)]


def test_who_arrives_in_the_middle_of_a_step_joins_at_its_end(engine):
    running = begun(engine(), request(1, 10, left=10))
    running.arrive(request(2, 20, left=1, asked_s=3.5), 3.5)
    ends = run_to_end(running)
    # 1 s prefill, steps end at 2, 3, 4: there it joins, 2 s of prefill and its one step until 7
    assert ends == [(pytest.approx(7), 2), (pytest.approx(13), 1)]
    assert running.waits_s == [pytest.approx(0), pytest.approx(0.5)]


def test_who_finds_no_room_waits_in_order_also_if_it_would_fit_itself(engine):
    running = begun(engine(100), request(1, 60, left=2), request(2, 60, left=1), request(3, 10, left=1))
    assert [rollout for _, rollout in run_to_end(running)] == [1, 2, 3]
    assert running.counters.preemptions == 0


def test_at_most_max_running_run(engine):
    ends = run_to_end(begun(engine(max_running=1), request(1, 10, left=1), request(2, 10, left=1)))
    assert ends == [(pytest.approx(2), 1), (pytest.approx(4), 2)]


def test_the_youngest_is_preempted_and_what_was_overwritten_is_computed_again(engine):
    running = begun(engine(50), request(1, 20, left=20), request(2, 20, left=20))
    ends = run_to_end(running)
    counters = running.counters
    # Both grow by 5 to 25; then the first goes on alone over 15 tokens of the second's 25 until it holds 40.
    assert [rollout for _, rollout in ends] == [1, 2]
    assert (counters.preemptions, counters.recomputed, counters.generated) == (1, 15, 40)
    assert ends[0][0] == pytest.approx(4 + 20)
    assert ends[1][0] == pytest.approx(4 + 20 + 1.5 + 15)


def test_kv_of_a_turn_that_ended_stays_while_there_is_room(engine):
    running = begun(engine(), request(1, 10, left=5))
    run_to_end(running)
    running.arrive(request(1, 20, left=1, asked_s=100.0, fresh=5), 100.0)
    ends = run_to_end(running)
    assert ends == [(pytest.approx(100 + 0.5 + 1), 1)]
    assert running.counters.reprefilled == 0


def test_kv_of_a_turn_that_ended_is_evicted_least_recently_used_first_when_room_is_needed(engine):
    running = begun(engine(100), request(1, 20, left=5), request(2, 20, left=6))
    run_to_end(running)
    running.arrive(request(3, 60, left=4, asked_s=50.0), 50.0)
    run_to_end(running)  # 64 held: of 25 + 26 that were kept 36 stay, 10 of them the first's
    running.arrive(request(2, 31, left=1, asked_s=100.0, fresh=5), 100.0)
    run_to_end(running)
    assert running.counters.reprefilled == 0
    running.arrive(request(1, 30, left=1, asked_s=200.0, fresh=5), 200.0)
    run_to_end(running)
    assert running.counters.reprefilled > 0


def test_a_turn_that_outgrows_the_engine_is_an_error_not_an_endless_loop(engine):
    with pytest.raises(ValueError, match="outgrows an engine of 50 tokens"):
        run_to_end(begun(engine(50), request(1, 20, left=40)))
    with pytest.raises(ValueError, match="never fits an engine of 50"):
        begun(engine(50), request(1, 60, left=4))


def test_a_failed_engine_has_nothing_and_starts_empty(engine):
    running = begun(engine(50), request(1, 20, left=20), request(2, 40, left=5))
    assert running.fail(2.5) == [1, 2]
    assert (running.running, running.live_tokens, running.next_s) == (0, 0, NEVER)
    running.arrive(request(3, 40, left=5, asked_s=7.0), 7.0)
    assert run_to_end(running) == [(pytest.approx(7 + 4 + 5), 3)]


turns = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40), st.floats(0, 50)), min_size=1, max_size=12)


@given(turns=turns, kv_tokens=st.integers(101, 400))
def test_every_turn_ends_once_at_the_time_that_single_steps_give(turns, kv_tokens):
    """Many steps in one formula are as good as one by one: interrupting the engine at every moment changes nothing."""
    model = EngineModel(kv_tokens, 1.0, 0.1, 0.01, 10.0, block_tokens=1)

    def ends(every_s: float) -> dict[int, float]:
        engine, found = SimulatedEngine(model), {}
        arrivals = sorted((at_s, n) for n, (_, _, at_s) in enumerate(turns))
        look_s = every_s
        while len(found) < len(turns):
            arrival_s = arrivals[0][0] if arrivals else NEVER
            now_s = min(arrival_s, engine.next_s, look_s)
            if now_s == arrival_s:
                at_s, number = arrivals.pop(0)
                engine.arrive(request(number, turns[number][0], turns[number][1], at_s), at_s)
            elif now_s == engine.next_s:
                found |= {rollout: now_s for rollout in engine.step()}
                engine.plan()
            else:
                if engine.running:
                    engine.look(look_s)
                look_s += every_s
            assert engine.live_tokens <= kv_tokens
        assert engine.counters.generated == sum(left for _, left, _ in turns)
        return found

    assert ends(0.37) == pytest.approx(ends(NEVER))
