"""Warm-up, constant, decay: factors of the rates as a function of the step alone."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.contract.stages import RlStage
from engine.learner.schedule import rate_factor


def stage(**changes: object) -> RlStage:
    return RlStage.model_validate({"name": "s", "kind": "rl", "max_response_tokens": 8, **changes})


def factors(**changes: object) -> list[float]:
    made = stage(**changes)
    return [rate_factor(made, step) for step in range(1, made.steps + 1)]


def test_without_warm_up_and_decay_the_rate_is_constant() -> None:
    assert factors(steps=5) == [1.0] * 5


def test_warm_up_rises_in_equal_parts_and_is_over_at_its_last_step() -> None:
    assert factors(steps=6, warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_decay_takes_the_last_share_of_the_steps() -> None:
    assert factors(steps=10, decay_share=0.4) == pytest.approx([1, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25])


def test_cosine_decay_is_half_a_period() -> None:
    wanted = [1, 1, 1, *(0.5 + 0.5 * math.cos(math.pi * done / 4) for done in (1, 2, 3))]
    assert factors(steps=6, decay_share=4 / 6, schedule="cosine") == pytest.approx(wanted)


def test_a_warm_up_longer_than_the_stage_never_reaches_the_base_rate() -> None:
    assert factors(steps=3, warmup_steps=30) == pytest.approx([1 / 30, 2 / 30, 3 / 30])


@given(
    steps=st.integers(1, 60),
    warmup=st.integers(0, 80),
    share=st.floats(0, 1),
    form=st.sampled_from(["linear", "cosine"]),
)
def test_the_factor_is_over_0_at_most_1_and_falls_after_its_warm_up(
    steps: int, warmup: int, share: float, form: str
) -> None:
    found = factors(steps=steps, warmup_steps=warmup, decay_share=share, schedule=form)
    assert all(0 < factor <= 1 for factor in found)
    after = found[max(0, warmup - 1) :]
    assert after == sorted(after, reverse=True)


@pytest.mark.parametrize("step", [0, 6])
def test_a_step_outside_the_stage_is_refused(step: int) -> None:
    with pytest.raises(ValueError, match=f"step {step} is none of the 5 steps of stage s"):
        rate_factor(stage(steps=5), step)
