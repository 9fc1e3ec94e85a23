"""Admission: the paper's K, and that no sequence of reservations loses or invents a place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.rollout.base import EngineCapacity
from engine.rollout.scheduler import KvCap, NeverFits

SMALL = EngineCapacity(kv_blocks=97, block_tokens=32, max_model_tokens=160)


def fill(policy: KvCap, tokens: int) -> list:
    places = []
    while (place := policy.reserve(tokens)) is not None:
        places.append(place)
    return places


@pytest.mark.parametrize(("tokens", "expected"), [(160, 19), (161, 16), (1, 96), (3072, 1)])
def test_k_is_what_the_cache_holds_at_full_length(tokens: int, expected: int) -> None:
    policy = KvCap(max_running=256)
    policy.open("a", SMALL)
    assert len(fill(policy, tokens)) == expected


def test_max_running_caps_k() -> None:
    policy = KvCap(max_running=5)
    policy.open("a", SMALL)
    assert len(fill(policy, 160)) == 5


def test_the_emptiest_engine_is_next() -> None:
    policy = KvCap(max_running=256)
    policy.open("small", EngineCapacity(11, 32, 160))
    policy.open("large", SMALL)
    places = fill(policy, 160)
    assert [place.engine for place in places].count("small") == 2
    assert places[0].engine == "large"


def test_a_closed_engine_gets_nothing_and_keeps_what_it_has() -> None:
    policy = KvCap(max_running=256)
    policy.open("a", SMALL)
    place = policy.reserve(160)
    assert place is not None
    policy.close("a")
    assert policy.reserve(160) is None
    policy.open("a", EngineCapacity(kv_blocks=11, block_tokens=32, max_model_tokens=160))
    assert len(fill(policy, 160)) == 1
    policy.release(place)
    assert len(fill(policy, 160)) == 1


def test_nothing_open_means_wait_and_never_fitting_means_so() -> None:
    policy = KvCap(max_running=1)
    assert policy.reserve(10**9) is None
    policy.open("a", SMALL)
    with pytest.raises(NeverFits, match="kv_cache_mb"):
        policy.reserve(96 * 32 + 1)


def test_a_place_is_given_back_once() -> None:
    policy = KvCap(max_running=1)
    policy.open("a", SMALL)
    place = policy.reserve(1)
    assert place is not None
    policy.release(place)
    with pytest.raises(ValueError, match="not held"):
        policy.release(place)


def test_max_running_must_be_positive() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        KvCap(max_running=0)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), st.integers(1, 400)),
        st.tuples(st.just("release"), st.integers(0, 30)),
        st.tuples(st.sampled_from(["open", "close"]), st.sampled_from(["a", "b"])),
    ),
    max_size=80,
)


@given(steps=STEPS, max_running=st.integers(1, 8))
def test_reservations_never_overflow_and_nothing_is_lost(steps: list, max_running: int) -> None:
    """Against the plainest model: a list of what is held."""
    capacities = {"a": EngineCapacity(11, 32, 320), "b": EngineCapacity(6, 64, 320)}
    policy, held, opened = KvCap(max_running), [], set()
    for name in capacities:
        policy.open(name, capacities[name])
        opened.add(name)
    for step, value in steps:
        if step == "open":
            policy.open(value, capacities[value])
            opened.add(value)
        elif step == "close":
            policy.close(value)
            opened.discard(value)
        elif step == "release" and held:
            policy.release(held.pop(value % len(held)))
        elif step == "reserve":
            try:
                place = policy.reserve(value)
            except NeverFits:
                assert opened
                assert all(value > (c.kv_blocks - 1) * c.block_tokens for n, c in capacities.items() if n in opened)
                continue
            if place is not None:
                assert place.engine in opened
                assert place.blocks * capacities[place.engine].block_tokens >= value
                held.append(place)
            else:
                for name in opened:
                    mine = [p for p in held if p.engine == name]
                    c = capacities[name]
                    free = c.kv_blocks - 1 - sum(p.blocks for p in mine)
                    assert len(mine) == max_running or -(-value // c.block_tokens) > free
        for name, capacity in capacities.items():
            mine = [place for place in held if place.engine == name]
            assert policy.running(name) == len(mine) <= max_running
            assert sum(place.blocks for place in mine) <= capacity.kv_blocks - 1
    for place in held:
        policy.release(place)
    for name in capacities:
        assert policy.running(name) == 0
        policy.open(name, capacities[name])
    assert len(fill(policy, 320)) == sum(min(max_running, 1) for _ in capacities)
