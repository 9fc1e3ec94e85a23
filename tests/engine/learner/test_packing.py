"""Micro-batches: nothing lost, nothing trained twice, every trained token predicted from the place before it."""

import math
from dataclasses import replace

import pytest
import torch

from engine.learner.base import Sample
from engine.learner.packing import micro_batches
from tests.engine.learner.support import samples


@pytest.mark.parametrize("limit", [1, 30, 64, 100, 10_000])
def test_every_trained_token_is_predicted_once_from_the_token_before(limit: int) -> None:
    batch = samples(9, rl=True, old=True)
    seen = []
    for pack in micro_batches(batch, limit):
        width = pack.ids_BL.shape[1]
        for place, target, row in zip(pack.place_T.tolist(), pack.target_T.tolist(), pack.row_T.tolist(), strict=True):
            line, before = divmod(place, width)
            ids = list(batch[row].ids)
            assert pack.ids_BL[line, : before + 1].tolist() == ids[: before + 1]
            assert ids[before + 1] == target
            seen.append((row, before + 1))
    wanted = [(row, at) for row, sample in enumerate(batch) for at, on in enumerate(sample.trained) if on]
    assert sorted(seen) == wanted


@pytest.mark.parametrize("limit", [29, 58, 100])
def test_padded_tokens_stay_within_the_limit(limit: int) -> None:
    assert all(pack.ids_BL.numel() <= limit for pack in micro_batches(samples(9), limit))


def test_a_sample_over_the_limit_goes_alone() -> None:
    assert [pack.ids_BL.shape[0] for pack in micro_batches(samples(3), 1)] == [1, 1, 1]


def test_advantage_is_broadcast_then_masked() -> None:
    """Case C013 behind a prompt token: advantage 0.7 and mask 1 1 0 1 give 0.7 0.7 0 0.7."""
    sample = Sample(ids=[9, 1, 2, 3, 4], trained=[False, True, True, False, True], advantage=0.7)
    (pack,) = micro_batches([sample], 100)
    dense = torch.zeros(pack.ids_BL.shape[1])
    dense[pack.place_T] = pack.advantage_T
    assert dense.tolist() == pytest.approx([0.7, 0.7, 0.0, 0.7])


def test_numbers_at_untrained_places_are_not_read() -> None:
    (sample,) = samples(1, rl=True, old=True)
    spoiled = replace(
        sample,
        logprobs=[v if on else math.nan for v, on in zip(sample.logprobs, sample.trained, strict=True)],
        old_logprobs=[v if on else math.nan for v, on in zip(sample.old_logprobs, sample.trained, strict=True)],
    )
    (ours,), (theirs,) = micro_batches([sample], 100), micro_batches([spoiled], 100)
    for one, other in ((ours.sampler_T, theirs.sampler_T), (ours.old_T, theirs.old_T)):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)


def test_samples_without_a_trained_token_are_left_out() -> None:
    silent = Sample(ids=[1, 2, 3], trained=[False] * 3)
    assert micro_batches([silent, Sample(ids=[], trained=[])], 100) == []
    (pack,) = micro_batches([silent, *samples(1)], 100)
    assert pack.ids_BL.shape[0] == 1
    assert set(pack.row_T.tolist()) == {1}


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (Sample(ids=[1, 2], trained=[False]), "sample 1: trained has 1 places, ids has 2"),
        (Sample(ids=[1, 2], trained=[True, True]), "sample 1: token 0 is marked as trained"),
        (Sample(ids=[1, 2], trained=[False, True], logprobs=[0.0]), "sample 1: logprobs has 1 places"),
        (Sample(ids=[1, 2], trained=[False, True], logprobs=[0.0, -1.0]), "sample 0: logprobs is missing"),
    ],
)
def test_a_malformed_sample_is_named(sample: Sample, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        micro_batches([*samples(1), sample], 100)
