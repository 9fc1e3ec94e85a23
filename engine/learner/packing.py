"""Packs: which samples go through one forward pass of one rank together, and where their trained tokens are.

Samples stand one behind the other in a row without padding; positions begin at 0 in each and attention stays inside
it (``attention.py``). Every rank makes the same plan from the whole batch and takes its own packs: samples are shared
out so that ranks have about equal work, then each rank's are packed best fit decreasing (Johnson, 1974: at most 11/9
of the fewest packs). No sample is dropped or cut. Leaves out samples longer than a pass can hold: they go alone.

Shape suffixes: ``P`` places of a row, ``T`` trained tokens.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from engine.learner.base import Sample, segments

AFTER_TOOL = 16
"""Sampled tokens behind a tool response whose entropy is looked at apart (paper, section 3.3: reflection)."""

ATTENTION_TOKENS = 12_288
"""A sample this long costs twice its tokens: attention's share of a layer is about length / (12 x hidden size)."""

OPTIONAL = ("logprobs", "old_logprobs", "reference_logprobs")
"""Columns of a sample that all samples of a batch have, or none."""


@dataclass(frozen=True, slots=True)
class Pack:
    """One forward pass: samples one behind the other in one row of P places, no padding.

    ``bounds`` are the places where samples begin and, last, P. A sample's last token predicts nothing and has no
    place. ``place_T`` is the place of the hidden state that predicts the token, one before the token's own;
    ``row_T`` its sample's place in the caller's batch. ``after_tool_T`` marks the first ``AFTER_TOOL`` sampled tokens
    behind each tool response. Log-probabilities are None where samples carry none. ``most_tokens`` is the largest
    ``tokens`` among the packs that the ranks pass at the same time.
    """

    ids_P: Tensor
    position_P: Tensor
    bounds: tuple[int, ...]
    place_T: Tensor
    target_T: Tensor
    row_T: Tensor
    advantage_T: Tensor
    sampler_T: Tensor | None
    old_T: Tensor | None
    reference_T: Tensor | None
    after_tool_T: Tensor
    most_tokens: int

    @property
    def tokens(self) -> int:
        """Trained tokens; 0 for a filler, which only keeps a rank in step with the others."""
        return self.target_T.numel()

    def to(self, device: torch.device | str) -> "Pack":
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {name: it.to(device) for name, it in values.items() if isinstance(it, Tensor)}
        return replace(self, **moved)


def trained_tokens(samples: Sequence[Sample]) -> int:
    """Tokens that the loss of the whole batch covers, over all ranks."""
    return sum(sum(sample.trained) for sample in samples)


def pack_batch(samples: Sequence[Sample], max_tokens: int, *, rank: int = 0, world: int = 1) -> list[Pack]:
    """This rank's packs, the dearest first: one too big for memory then fails at once.

    No pack has more than ``max_tokens`` places unless a single sample has. All ranks get equally many; a rank with
    fewer gets fillers, real passes over a token or two whose loss is an exact zero with a gradient graph. Samples
    without a trained token are left out: they add nothing to loss or denominator. Raises ``ValueError`` that names
    the first malformed sample.
    """
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} is none of {world} ranks")
    for row, sample in enumerate(samples):
        _check(row, sample)
    rows = [row for row, sample in enumerate(samples) if any(sample.trained)]
    columns = [name for name in OPTIONAL if _all_or_none(samples, rows, name)]
    places = {row: len(samples[row].ids) - 1 for row in rows}
    plans = [_fit(share, places, max_tokens) for share in _shares(places, world)]
    most_tokens = [max(trained_tokens([samples[row] for row in plan]) for plan in turn) for turn in _turns(plans)]
    packs = [_pack(samples, plan, columns, most) for plan, most in zip(plans[rank], most_tokens, strict=False)]
    fillers = [_filler(samples, min(rows, key=places.__getitem__), columns, most) for most in most_tokens[len(packs) :]]
    return packs + fillers


# --- the plan ---


def _check(row: int, sample: Sample) -> None:
    places = len(sample.ids)
    for name in ("trained", *OPTIONAL):
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


def cost(places: int) -> float:
    """Work of one sample, in tokens of a short one."""
    return places * (1 + places / ATTENTION_TOKENS)


def _shares(places: dict[int, int], world: int) -> list[list[int]]:
    """Rows of each rank: the dearest sample first, always to the rank with the least work so far.

    Two ranks then differ by no more than the cost of one sample (Graham, 1969: longest processing time).
    """
    shares: list[list[int]] = [[] for _ in range(world)]
    load = [(0.0, rank) for rank in range(world)]
    for row in _longest_first(places, places):
        least, rank = load[0]
        shares[rank].append(row)
        heapq.heapreplace(load, (least + cost(places[row]), rank))
    return shares


def _fit(rows: Iterable[int], places: dict[int, int], max_tokens: int) -> list[list[int]]:
    """Rows of each pack: the longest sample first, always into the fullest pack that still takes it."""
    packs: list[list[int]] = []
    room: list[int] = []
    for row in _longest_first(rows, places):
        fitting = [at for at, left in enumerate(room) if left >= places[row]]
        if not fitting:
            fitting = [len(packs)]
            packs.append([])
            room.append(max_tokens)
        at = min(fitting, key=room.__getitem__)
        packs[at].append(row)
        room[at] -= places[row]
    return sorted(packs, key=lambda pack: -sum(cost(places[row]) for row in pack))


def _longest_first(rows: Iterable[int], places: dict[int, int]) -> list[int]:
    return sorted(rows, key=lambda row: (-places[row], row))


def _turns(plans: Sequence[list[list[int]]]) -> Iterator[tuple[list[int], ...]]:
    """Rows of the packs that the ranks pass at the same time; none on a rank that passes a filler."""
    return zip_longest(*plans, fillvalue=[])


# --- the tensors ---


def _pack(samples: Sequence[Sample], rows: Sequence[int], columns: Sequence[str], most_tokens: int) -> Pack:
    begins = [0]
    for row in rows:
        begins.append(begins[-1] + len(samples[row].ids) - 1)
    trained = [torch.tensor(samples[row].trained, dtype=torch.bool).nonzero().squeeze(1) for row in rows]
    counts = torch.tensor([each.numel() for each in trained])

    def column(name: str, dtype: torch.dtype = torch.float32) -> Tensor:
        values = (torch.tensor(getattr(samples[row], name), dtype=dtype) for row in rows)
        return torch.cat([value[at] for value, at in zip(values, trained, strict=True)])

    optional = {name: column(name) if name in columns else None for name in OPTIONAL}
    return Pack(
        ids_P=torch.cat([torch.tensor(samples[row].ids[:-1], dtype=torch.long) for row in rows]),
        position_P=torch.cat([torch.arange(len(samples[row].ids) - 1) for row in rows]),
        bounds=tuple(begins),
        place_T=torch.cat([begin + at - 1 for begin, at in zip(begins, trained, strict=False)]),
        target_T=column("ids", torch.long),
        row_T=torch.tensor(rows).repeat_interleave(counts),
        advantage_T=torch.tensor([samples[row].advantage for row in rows]).repeat_interleave(counts),
        sampler_T=optional["logprobs"],
        old_T=optional["old_logprobs"],
        reference_T=optional["reference_logprobs"],
        after_tool_T=torch.cat([_after_tool(samples[row].trained) for row in rows]),
        most_tokens=most_tokens,
    )


def _after_tool(trained: Sequence[bool]) -> Tensor:
    """Of a sample's trained tokens, those right behind a tool response: pieces after the first begin behind one."""
    marks = [
        number > 0 and at < AFTER_TOOL
        for number, (start, end) in enumerate(segments(trained))
        for at in range(end - start)
    ]
    return torch.tensor(marks, dtype=torch.bool)


def _filler(samples: Sequence[Sample], row: int, columns: Sequence[str], most_tokens: int) -> Pack:
    """A pass over the shortest sample's first token, of which nothing is trained."""
    pack = _pack(samples, [row], columns, most_tokens)
    nothing = {
        field.name: value[:0]
        for field in fields(pack)
        if field.name.endswith("_T") and (value := getattr(pack, field.name)) is not None
    }
    return replace(pack, ids_P=pack.ids_P[:1], position_P=pack.position_P[:1], bounds=(0, 1), **nothing)
