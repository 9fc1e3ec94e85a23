"""Packing: nothing lost, nothing trained twice, every trained token predicted from the place before it."""

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.learner.base import Sample
from engine.learner.packing import AFTER_TOOL, Pack, cost, pack_batch, trained_tokens
from tests.engine.learner.plain import trajectories


@st.composite
def batches(draw: st.DrawFn) -> list[Sample]:
    """Any lengths, any tokens trained but the first; every number tells its sample and place."""
    masks = random.Random(draw(st.integers(0, 1000)))
    batch = []
    for row, length in enumerate(draw(st.lists(st.integers(0, 40), max_size=12))):
        share = masks.random()
        trained = [at > 0 and masks.random() < share for at in range(length)]
        numbers = [row + at / 64 for at in range(length)]  # exact in fp32
        ids = [100 * row + at for at in range(length)]
        batch.append(Sample(ids, trained, numbers, [-n for n in numbers], [n / 2 for n in numbers], advantage=row))
    return batch


limits = st.integers(1, 100)
worlds = st.integers(1, 4)


def all_packs(batch: list[Sample], limit: int, world: int) -> list[list[Pack]]:
    return [pack_batch(batch, limit, rank=rank, world=world) for rank in range(world)]


def lengths_of(pack: Pack) -> list[int]:
    return [end - start for start, end in pairwise(pack.bounds)]


def tokens_of(pack: Pack) -> list[tuple[int, int]]:
    """(row, place in the sample) of every trained token, all that the pack says about it being checked."""
    assert pack.sampler_T is not None
    assert pack.old_T is not None
    assert pack.reference_T is not None
    columns = (pack.place_T, pack.target_T, pack.row_T, pack.advantage_T, pack.sampler_T, pack.old_T, pack.reference_T)
    found = []
    for place, target, row, advantage, sampler, old, reference in zip(*(c.tolist() for c in columns), strict=True):
        start = max(bound for bound in pack.bounds[:-1] if bound <= place)
        at = place - start + 1
        assert pack.ids_P[start : place + 1].tolist() == [100 * row + before for before in range(at)]
        assert pack.position_P[start : place + 1].tolist() == list(range(at))
        assert target == 100 * row + at
        assert (advantage, sampler, old, reference) == (row, row + at / 64, -(row + at / 64), (row + at / 64) / 2)
        found.append((row, at))
    return found


@settings(max_examples=40)
@given(batches(), limits, worlds)
def test_every_trained_token_is_predicted_once_from_the_tokens_before_it(
    batch: list[Sample], limit: int, world: int
) -> None:
    found = [token for packs in all_packs(batch, limit, world) for pack in packs for token in tokens_of(pack)]
    wanted = [(row, at) for row, sample in enumerate(batch) for at, on in enumerate(sample.trained) if on]
    assert sorted(found) == wanted
    assert len(found) == trained_tokens(batch)


@settings(max_examples=40)
@given(batches(), limits, worlds)
def test_packs_are_full_but_within_the_limit_and_the_dearest_comes_first(
    batch: list[Sample], limit: int, world: int
) -> None:
    """Only a single sample may be over it; no two packs of a rank would fit into one."""
    for packs in all_packs(batch, limit, world):
        sizes = [pack.bounds[-1] for pack in packs if pack.tokens]
        assert all(pack.ids_P.numel() == pack.position_P.numel() == pack.bounds[-1] for pack in packs)
        assert all(pack.bounds[-1] <= limit or len(pack.bounds) == 2 for pack in packs)
        assert len(sizes) < 2 or sum(sorted(sizes)[:2]) > limit
        costs = [sum(map(cost, lengths_of(pack))) for pack in packs if pack.tokens]
        assert costs == sorted(costs, reverse=True)


@settings(max_examples=40)
@given(batches(), limits, worlds)
def test_all_ranks_get_equally_many_packs_and_fillers_train_nothing(
    batch: list[Sample], limit: int, world: int
) -> None:
    ranks = all_packs(batch, limit, world)
    assert len({len(packs) for packs in ranks}) == 1
    for packs in ranks:
        fillers = [pack for pack in packs if not pack.tokens]
        assert packs[len(packs) - len(fillers) :] == fillers  # behind the work
        assert all(pack.ids_P.numel() == 1 and pack.bounds == (0, 1) for pack in fillers)
    for turn in zip(*ranks, strict=True):
        assert {pack.most_tokens for pack in turn} == {max(pack.tokens for pack in turn)}


@settings(max_examples=40)
@given(batches(), limits, worlds)
def test_two_ranks_work_differs_by_no_more_than_one_sample(batch: list[Sample], limit: int, world: int) -> None:
    work = []
    for packs in all_packs(batch, limit, world):
        work.append(sum(cost(length) for pack in packs if pack.tokens for length in lengths_of(pack)))
    dearest = max((cost(len(sample.ids) - 1) for sample in batch if any(sample.trained)), default=0.0)
    assert max(work) - min(work) <= dearest + 1e-9


def test_packs_are_few_and_full() -> None:
    """Best fit decreasing is within 11/9 of the fewest packs; on many short samples it is nearly perfect."""
    batch = trajectories(200, shortest=60, longest=320)
    packs = pack_batch(batch, 2048)
    places = sum(len(sample.ids) - 1 for sample in batch)
    assert len(packs) == math.ceil(places / 2048)


def test_advantage_is_broadcast_over_the_trained_tokens_alone() -> None:
    """Case C013 behind a prompt token: advantage 0.7 and mask 1 1 0 1 give 0.7 0.7 0 0.7."""
    sample = Sample(ids=[9, 1, 2, 3, 4], trained=[False, True, True, False, True], advantage=0.7)
    (pack,) = pack_batch([sample], 100)
    dense = torch.zeros(pack.ids_P.numel())
    dense[pack.place_T] = pack.advantage_T
    assert dense.tolist() == pytest.approx([0.7, 0.7, 0.0, 0.7])


def test_tokens_right_behind_a_tool_response_are_marked() -> None:
    """A prompt is no tool response; a second turn's first tokens are marked, and no more than that."""
    turn, tool = [True] * (AFTER_TOOL + 3), [False] * 2
    trained = [False, *turn, *tool, *turn, *tool, True]
    (pack,) = pack_batch([Sample(ids=[1] * len(trained), trained=trained)], 1000)
    marked = [True] * AFTER_TOOL + [False] * 3
    assert pack.after_tool_T.tolist() == [False] * len(turn) + marked + [True]


def test_numbers_at_untrained_places_are_not_read() -> None:
    ids, trained = [1, 2, 3, 4], [False, True, False, True]
    numbers = [math.nan, -1.0, math.nan, -2.0]
    (pack,) = pack_batch([Sample(ids, trained, numbers, numbers, numbers)], 100)
    for column_T in (pack.sampler_T, pack.old_T, pack.reference_T):
        assert column_T is not None
        assert column_T.tolist() == [-1.0, -2.0]


def test_columns_that_samples_do_not_carry_are_none() -> None:
    for pack in pack_batch(trajectories(3), 1000) + pack_batch(trajectories(1), 1000, rank=1, world=2):
        assert pack.sampler_T is pack.old_T is pack.reference_T is None


def test_samples_without_a_trained_token_are_left_out() -> None:
    silent = Sample(ids=[1, 2, 3], trained=[False] * 3)
    assert pack_batch([silent, Sample(ids=[], trained=[])], 100, rank=1, world=2) == []
    (pack,) = pack_batch([silent, *trajectories(1)], 100)
    assert len(pack.bounds) == 2
    assert set(pack.row_T.tolist()) == {1}


def test_a_pack_moves_as_a_whole() -> None:
    (pack,) = pack_batch(trajectories(2), 100)
    moved = pack.to("meta")
    assert moved.ids_P.device.type == moved.after_tool_T.device.type == "meta"
    assert moved.bounds == pack.bounds
    assert moved.old_T is None


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (Sample(ids=[1, 2], trained=[False]), "sample 1: trained has 1 places, ids has 2"),
        (Sample(ids=[1, 2], trained=[True, True]), "sample 1: token 0 is marked as trained"),
        (Sample(ids=[1, 2], trained=[False, True], logprobs=[0.0]), "sample 1: logprobs has 1 places"),
        (Sample(ids=[1, 2], trained=[False, True], logprobs=[0.0, -1.0]), "sample 0: logprobs is missing"),
        (Sample(ids=[1, 2], trained=[False, True], reference_logprobs=[0.0]), "sample 1: reference_logprobs has 1"),
    ],
)
def test_a_malformed_sample_is_named(sample: Sample, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack_batch([*trajectories(1), sample], 100)


def test_a_sample_that_lacks_what_the_others_have_is_named() -> None:
    first, *others = trajectories(3)
    batch = [replace(first, reference_logprobs=[0.0] * len(first.ids)), *others]
    with pytest.raises(ValueError, match="sample 1: reference_logprobs is missing"):
        pack_batch(batch, 100)


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_outside_the_world_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=f"rank {rank} is none of 2 ranks"):
        pack_batch(trajectories(1), 100, rank=rank, world=2)
