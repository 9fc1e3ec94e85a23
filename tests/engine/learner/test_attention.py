"""Attention in a packed row is that of a block-diagonal causal mask: nobody sees a neighbour."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from engine.learner.attention import Segments, packed_attention

SCALING = 0.4
lengths = st.lists(st.integers(1, 12), min_size=1, max_size=6)
heads = st.sampled_from([(4, 4), (4, 2), (4, 1)])


def rows(places: int, query_heads: int, kv_heads: int, seed: int = 0) -> list[Tensor]:
    """Query, key and value, heads in front as transformers has them."""
    random = torch.Generator().manual_seed(seed)
    shapes = [(1, count, places, 8) for count in (query_heads, kv_heads, kv_heads)]
    return [torch.randn(shape, generator=random, dtype=torch.float64).requires_grad_() for shape in shapes]


def bounds_of(segment_lengths: list[int]) -> tuple[int, ...]:
    return tuple(sum(segment_lengths[:count]) for count in range(len(segment_lengths) + 1))


def attend(query: Tensor, key: Tensor, value: Tensor, segment_lengths: list[int]) -> Tensor:
    segments = Segments.of(bounds_of(segment_lengths), query.device)
    out, weights = packed_attention(nn.Module(), query, key, value, None, segments=segments, scaling=SCALING)
    assert weights is None
    return out


def attend_with_mask(query: Tensor, key: Tensor, value: Tensor, segment_lengths: list[int]) -> Tensor:
    """softmax(Q K^T scaling + mask) V over the whole row: slow, and plain to see."""
    places = query.shape[2]
    sample_P = torch.repeat_interleave(torch.tensor(segment_lengths))
    place_P = torch.arange(places)
    seen_PP = (sample_P[:, None] == sample_P[None, :]) & (place_P[:, None] >= place_P[None, :])
    key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], dim=1) for each in (key, value))
    scores = (query @ key.transpose(-1, -2) * SCALING).masked_fill(~seen_PP, -math.inf)
    return (scores.softmax(dim=-1) @ value).transpose(1, 2)


@settings(max_examples=30)
@given(lengths, heads)
def test_packed_attention_is_that_of_a_block_mask_and_so_are_its_gradients(
    segment_lengths: list[int], counts: tuple[int, int]
) -> None:
    ours, theirs = rows(sum(segment_lengths), *counts), rows(sum(segment_lengths), *counts)
    out, wanted = attend(*ours, segment_lengths), attend_with_mask(*theirs, segment_lengths)
    assert out.shape == wanted.shape == (1, sum(segment_lengths), counts[0], 8)
    torch.testing.assert_close(out, wanted, rtol=1e-12, atol=1e-12)
    weight = torch.sin(torch.arange(out.numel(), dtype=torch.float64)).view(out.shape)
    (out * weight).sum().backward()
    (wanted * weight).sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-10, atol=1e-12)


@settings(max_examples=30)
@given(lengths, heads)
def test_a_sample_in_company_is_to_the_bit_what_it_is_alone(
    segment_lengths: list[int], counts: tuple[int, int]
) -> None:
    query, key, value = rows(sum(segment_lengths), *counts)
    together = attend(query, key, value, segment_lengths)
    for start, end in pairwise(bounds_of(segment_lengths)):
        alone = attend(*(each[:, :, start:end] for each in (query, key, value)), [end - start])
        assert torch.equal(together[:, start:end], alone)


def test_a_sliding_window_is_refused() -> None:
    segments = Segments.of((0, 3), torch.device("cpu"))
    with pytest.raises(ValueError, match="sliding window, this model's layers have one of 2"):
        packed_attention(nn.Module(), *rows(3, 4, 4), None, segments=segments, scaling=1.0, sliding_window=2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: the variable-length kernel was not run")
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_the_variable_length_kernel_agrees_with_the_block_mask(kv_heads: int) -> None:
    segment_lengths = [70, 5, 130, 1]
    states = [torch.randn(1, count, 206, 64, dtype=torch.float64) for count in (4, kv_heads, kv_heads)]
    wanted = attend_with_mask(*states, segment_lengths)
    out = attend(*(each.to("cuda", torch.bfloat16) for each in states), segment_lengths)
    torch.testing.assert_close(out.cpu().double(), wanted, rtol=2e-2, atol=2e-2)
