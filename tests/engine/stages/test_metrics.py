"""Figures of a set of trajectories, against numbers worked out by hand."""

import math
from collections.abc import Callable

import pytest

from engine.contract.trajectory import StopReason, Trajectory
from engine.stages.metrics import eval_metrics, generated_tokens, pass_at_1, rollout_metrics

Make = Callable[..., Trajectory]


def test_rollout_metrics(make: Make) -> None:
    batch = [
        make(statuses=("ok",)),
        make(statuses=("error", "ok")),
        make(reward=0.0, statuses=("timeout",), stop_reason=StopReason.length),
        make(reward=0.0, statuses=(), stop_reason=StopReason.no_answer),
    ]
    figures = rollout_metrics(batch)
    assert figures["reward"] == 0.5
    assert figures["tool_error_rate"] == 2 / 4
    assert figures["tool_error_rate_right"] == 1 / 3
    assert figures["tool_calls"] == 1.0
    assert figures["response_tokens"] == figures["response_tokens_p95"] == 3.0
    assert figures["truncated_share"] == 0.25
    assert figures["answered_share"] == 0.5
    assert generated_tokens(batch) == 8


def test_nothing_gives_nan_not_zero() -> None:
    figures = rollout_metrics([])
    assert all(math.isnan(value) for value in figures.values())


def test_pass_at_1_is_a_mean_over_problems(make: Make) -> None:
    batch = [make(problem_id="a"), make(problem_id="a", reward=0.0), make(problem_id="b", reward=0.0)]
    centre, error = pass_at_1(batch)
    assert centre == 0.25
    assert error == pytest.approx(0.25 / math.sqrt(2))


def test_greedy_and_sampled_stand_side_by_side(make: Make) -> None:
    figures = eval_metrics([make()], [make(reward=0.0)])
    assert (figures["pass@1"], figures["pass@1_greedy"]) == (1.0, 0.0)
    assert "pass@1_greedy" not in eval_metrics([make()], [])
