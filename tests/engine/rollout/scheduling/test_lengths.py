"""What is learned of response lengths: against plain formulas, and that unfinished ones do not make them look short."""

import json
import math

import numpy as np
import pytest

from engine.rollout.scheduling.lengths import BUCKETS, DOUBT, MEMORY, PRIOR, LengthModel


def going_on(model: LengthModel, tokens: float) -> float:
    """Share of an unknown problem's responses that get longer."""
    return float((1 + model.hazard(np.array([tokens]))[0] / PRIOR) ** -PRIOR)


def test_with_nothing_seen_every_response_goes_on() -> None:
    model = LengthModel()
    model.fit()
    assert going_on(model, 10**6) == 1


def test_survival_is_kaplan_meiers_product() -> None:
    """Twenty ends, one a token, of which every other one was cut: the product over ends, at the bucket's end."""
    model = LengthModel()
    for tokens in range(20):
        model.learn("p", tokens, cut=tokens % 2 == 1)
    model.fit()
    expected = 1.0
    for tokens in range(0, 20, 2):
        expected *= 1 - 1 / (20 - tokens + DOUBT)
    assert going_on(model, 20) == pytest.approx(expected)


def test_enough_lengths_give_their_distribution() -> None:
    lengths = np.random.default_rng(0).lognormal(7, 0.6, 4000)
    model = LengthModel()
    for number, tokens in enumerate(lengths):
        model.learn(f"p{number}", int(tokens), cut=False)
    model.fit()
    for tokens in (500, 1000, 2000, 3000):
        assert going_on(model, tokens) == pytest.approx((lengths > tokens).mean(), abs=0.01)


def test_the_short_ones_that_end_first_do_not_fool_it() -> None:
    """Of 1,000 begun together 300 have ended, at 100 tokens; the 700 still going on say that most get longer."""
    model = LengthModel()
    for number in range(300):
        model.learn(f"p{number}", 100, cut=False)
    model.fit()
    naive = going_on(model, 128)
    indices = np.array([model.index(f"q{number}") for number in range(700)])
    model.fit(np.full(700, 120.0), indices)
    assert naive < 0.01
    assert going_on(model, 110) == pytest.approx(0.7, abs=0.01)


def test_a_problem_is_known_by_its_siblings() -> None:
    model = LengthModel()
    for number in range(200):
        model.learn("any", 1000 + 5 * number, cut=False)
    model.new_step()
    model.fit()
    for _ in range(6):
        model.learn("short", 600, cut=False)
        model.learn("long", 1900, cut=False)
    model.fit()
    short, long, unknown = (model.factors[model.index(problem)] for problem in ("short", "long", "unknown"))
    assert long < 1 < short
    assert unknown == 1


def test_siblings_that_still_grow_make_a_problem_likely_long() -> None:
    model = LengthModel()
    for number in range(200):
        model.learn(f"p{number}", 100 + number, cut=False)
    index = model.index("growing")
    model.fit(np.full(4, 290.0), np.full(4, index))
    assert model.factors[index] < 0.5


def test_longer_responses_than_ever_widen_the_buckets_and_lose_none() -> None:
    model = LengthModel()
    for tokens in (3, 50, 127, 10_000):
        model.learn("p", tokens, cut=False)
    saved = model.as_dict()
    assert sum(saved["ended"]) == 4
    assert saved["width"] * BUCKETS > 10_000


def test_a_step_forgets_slowly_and_its_problems_at_once() -> None:
    model = LengthModel()
    model.learn("p", 10, cut=False)
    model.new_step()
    model.fit()
    assert sum(model.as_dict()["ended"]) == pytest.approx(MEMORY)
    assert model.factors[model.index("p")] == 1


def test_a_checkpoint_brings_the_lengths_back() -> None:
    model = LengthModel()
    for tokens in range(0, 900, 7):
        model.learn("p", tokens, cut=tokens > 800)
    model.fit()
    again = LengthModel.of(json.loads(json.dumps(model.as_dict())))
    assert going_on(again, 400) == going_on(model, 400)


@pytest.mark.parametrize(
    "wrong", [{"width": 0, "ended": [0] * BUCKETS, "stopped": [0] * BUCKETS}, {"width": 1, "ended": [], "stopped": []}]
)
def test_what_is_no_checkpoint_of_lengths_is_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match="lengths want"):
        LengthModel.of(wrong)


def test_a_server_that_never_starts_a_step_remembers_no_endless_list() -> None:
    model = LengthModel()
    for number in range(20_000):
        model.learn(str(number), 10, cut=False)
    assert len(model.factors) <= 8192
    assert math.isfinite(going_on(model, 11))
