"""Attention over a packed row: a token sees its own sample's past and nothing of its neighbours.

The result is that of a block-diagonal causal mask, without ever making one: on GPUs in half precision torch's
variable-length kernel reads the bounds itself; everywhere else each sample goes through
``scaled_dot_product_attention`` by itself, so that cost and memory grow with the samples' lengths and not with
the row's. Plugged into transformers under the name ``IMPLEMENTATION``; its models then hand ``segments``
through to every layer, in a recomputed backward pass too. Leaves out sliding windows and attention dropout.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

IMPLEMENTATION = "packed"
"""What ``attn_implementation`` is called. Without a mask function of that name transformers makes no mask."""


@dataclass(frozen=True, slots=True)
class Segments:
    """Where samples begin and end in a packed row; made once a pass, used by every layer."""

    lengths: list[int]
    cumulative: Tensor  # int32, one more than lengths, on the row's device

    @classmethod
    def of(cls, bounds: tuple[int, ...], device: torch.device) -> "Segments":
        """``bounds`` are the places where samples begin and, last, the row's length."""
        lengths = [end - start for start, end in pairwise(bounds)]
        return cls(lengths, torch.tensor(bounds, dtype=torch.int32, device=device))


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    segments: Segments,
    scaling: float,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: query [1, heads, P, D], key and value [1, kv heads, P, D] -> [1, P, heads, D].

    Fewer key/value heads than query heads are shared by neighbours (grouped-query attention). Raises
    ``ValueError`` for layers with a sliding window.
    """
    if sliding_window is not None:
        raise ValueError(f"packed attention knows no sliding window, this model's layers have one of {sliding_window}")
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        return _variable_length(query, key, value, segments, scaling), None
    return _sample_by_sample(query, key, value, segments, scaling), None


def _variable_length(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scaling: float) -> Tensor:
    bounds, longest = segments.cumulative, max(segments.lengths)
    q, k, v = (each[0].transpose(0, 1) for each in (query, key, value))
    grouped = query.shape[1] != key.shape[1]
    out = varlen_attn(q, k, v, bounds, bounds, longest, longest, scale=scaling, window_size=(-1, 0), enable_gqa=grouped)
    return cast(Tensor, out).unsqueeze(0)  # a pair only where log-sums are asked for


def _sample_by_sample(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scaling: float) -> Tensor:
    """One kernel call a sample: no padding and no index, and the split's gradient is one concatenation."""
    grouped = query.shape[1] != key.shape[1]
    cut = (torch.split(each, segments.lengths, dim=2) for each in (query, key, value))
    pieces = [
        scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=grouped).transpose(1, 2)
        for q, k, v in zip(*cut, strict=True)
    ]
    return torch.cat(pieces, dim=1)


AttentionInterface.register(IMPLEMENTATION, packed_attention)
