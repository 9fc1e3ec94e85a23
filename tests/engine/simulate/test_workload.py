"""Batches are what the paper's stages look like, and the same for the same seed."""

from dataclasses import replace

import numpy as np
import pytest

from engine.simulate.workload import SHAPES, make_lengths, make_workload


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_lengths_have_the_shapes_mean_and_stay_under_its_cap(shape):
    lengths = make_lengths(shape, seed=3)
    assert len(lengths) == 512 * 32
    assert np.mean(lengths) == pytest.approx(shape.mean_tokens, abs=2)
    assert max(lengths) == shape.cap_tokens


def test_a_batch_makes_as_many_calls_as_the_paper_tells_with_some_time_outs():
    batch = make_workload(SHAPES[0], seed=0)
    seconds = [one for rollout in batch for one in rollout.tool_s]
    assert 44_000 < len(seconds) < 46_000
    assert np.median(seconds) == pytest.approx(0.2, rel=0.05)
    assert np.mean(np.array(seconds) == 4.0) == pytest.approx(0.02, abs=0.005)
    assert max(len(rollout.sampled) for rollout in batch) == 10


def test_turns_and_tool_responses_add_up_to_the_length():
    shape = replace(SHAPES[1], problems=20)
    batch = make_workload(shape, seed=5)
    assert [rollout.response_tokens for rollout in batch] == make_lengths(shape, seed=5)
    assert all(len(r.sampled) == len(r.tool_s) + 1 == len(r.answered) + 1 for r in batch)
    assert min(min(rollout.sampled) for rollout in batch) >= 8


def test_rollouts_of_a_problem_are_of_similar_length():
    lengths = np.log(np.array(make_lengths(SHAPES[0], seed=1)).reshape(512, 32))
    assert lengths.std(axis=1).mean() < 0.8 * lengths.std()


def test_a_seed_is_a_batch():
    shape = replace(SHAPES[0], problems=8)
    assert make_workload(shape, 7) == make_workload(shape, 7)
    assert make_workload(shape, 7) != make_workload(shape, 8)
