"""Micro-batches: which samples go through one forward pass together, and where their trained tokens are.

Samples are sorted by length and padded on the right. Attention is causal, so padding behind a sample
changes nothing in front of it and no attention mask is needed. Leaves out real packing (several samples in
one row with positions reset), which pays when lengths differ much inside a micro-batch; a later issue.
Leaves out shares of several ranks.

Shape suffixes: ``B`` samples of a micro-batch, ``L`` places of its longest sample but the last, ``T``
trained tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.learner.base import Sample

PAD_ID = 0
"""Any valid id: nothing is ever predicted from or at a padded place."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Inputs of one forward pass and, for each trained token, what the loss needs.

    ``place_T`` is a flat place in [B, L]: that of the hidden state which predicts the token, one before the
    token's own. ``row_T`` is its sample's place in the caller's batch. ``sampler_T`` and ``old_T`` are None
    where samples carry no such log-probabilities.
    """

    ids_BL: Tensor
    place_T: Tensor
    target_T: Tensor
    row_T: Tensor
    advantage_T: Tensor
    sampler_T: Tensor | None
    old_T: Tensor | None

    @property
    def tokens(self) -> int:
        return self.target_T.numel()


def micro_batches(samples: Sequence[Sample], max_tokens: int) -> list[MicroBatch]:
    """Cut a batch so that no forward pass sees more than ``max_tokens`` padded tokens.

    A single sample over the limit gets a micro-batch of its own. Samples without a trained token are left
    out: they would add nothing to loss or denominator. Raises ``ValueError`` that names the first malformed
    sample.
    """
    for row, sample in enumerate(samples):
        _check(row, sample)
    rows = [row for row, sample in enumerate(samples) if any(sample.trained)]
    has_sampler = _all_or_none(samples, rows, "logprobs")
    has_old = _all_or_none(samples, rows, "old_logprobs")
    return [_pack(samples, cut, has_sampler, has_old) for cut in _cut(samples, rows, max_tokens)]


def _check(row: int, sample: Sample) -> None:
    places = len(sample.ids)
    for name in ("trained", "logprobs", "old_logprobs"):
        length = len(getattr(sample, name))
        if length != places and (length or name == "trained"):
            raise ValueError(f"sample {row}: {name} has {length} places, ids has {places}")
    if places and sample.trained[0]:
        raise ValueError(f"sample {row}: token 0 is marked as trained, but nothing stands before it to predict it")


def _all_or_none(samples: Sequence[Sample], rows: Sequence[int], name: str) -> bool:
    given = [bool(getattr(samples[row], name)) for row in rows]
    if any(given) and not all(given):
        raise ValueError(f"sample {rows[given.index(False)]}: {name} is missing, but other samples have it")
    return any(given)


def _cut(samples: Sequence[Sample], rows: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Rows in cuts within the limit, longest first: a pass too big for memory then comes first."""
    cut: list[int] = []
    for row in sorted(rows, key=lambda each: -len(samples[each].ids)):
        if cut and (len(cut) + 1) * (len(samples[cut[0]].ids) - 1) > max_tokens:
            yield cut
            cut = []
        cut.append(row)
    if cut:
        yield cut


def _pack(samples: Sequence[Sample], rows: Sequence[int], has_sampler: bool, has_old: bool) -> MicroBatch:
    width = max(len(samples[row].ids) for row in rows) - 1  # the last token predicts nothing
    ids_BL = torch.full((len(rows), width), PAD_ID, dtype=torch.long)
    for line, row in enumerate(rows):
        ids = samples[row].ids
        ids_BL[line, : len(ids) - 1] = torch.tensor(ids[:-1], dtype=torch.long)
    trained = [(line, row, at) for line, row in enumerate(rows) for at, on in enumerate(samples[row].trained) if on]

    def column(value: Callable[[Sample, int], float], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor([value(samples[row], at) for _, row, at in trained], dtype=dtype)

    return MicroBatch(
        ids_BL=ids_BL,
        place_T=torch.tensor([line * width + at - 1 for line, _, at in trained], dtype=torch.long),
        target_T=column(lambda sample, at: sample.ids[at], torch.long),
        row_T=torch.tensor([row for _, row, _ in trained], dtype=torch.long),
        advantage_T=column(lambda sample, _: sample.advantage),
        sampler_T=column(lambda sample, at: sample.logprobs[at]) if has_sampler else None,
        old_T=column(lambda sample, at: sample.old_logprobs[at]) if has_old else None,
    )
