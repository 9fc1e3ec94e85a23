"""Drawing without replacement from stored uniforms, and closing a selection: shared by every rule that draws.

Efraimidis-Spirakis: give item i the key u_i^(1/w_i) and keep the largest keys. That equals taking items one
by one, each time with probability in proportion to the weights left. Leaves out where weights come from:
``roc.py``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.downsample.base import Candidate, Decision, Selection
from engine.downsample.equal_reward import all_equal, decide, throw_out
from engine.downsample.inclusion import inclusion_probabilities
from engine.downsample.quotas import Quotas


@dataclass(frozen=True, slots=True)
class Draw:
    """How one candidate fared within its class. ``rank`` counts from 1."""

    kept: bool
    rank: int
    weight: float | None = None
    key: float | None = None
    inclusion: float | None = None


def draw_weighted(members: Sequence[Candidate], weights: Sequence[float], quota: int) -> dict[int, Draw]:
    """Draw ``quota`` members without replacement."""
    keys = [each.u ** (1.0 / weight) for each, weight in zip(members, weights, strict=True)]
    chances = inclusion_probabilities(weights, quota)
    return {
        members[place].index: Draw(rank <= quota, rank, weights[place], keys[place], chances[place])
        for rank, place in enumerate(key_order(members, weights, keys), start=1)
    }


def key_order(members: Sequence[Candidate], weights: Sequence[float], keys: Sequence[float]) -> list[int]:
    """Places of the members, largest key first; of equal ones the lower index.

    Keys that a float cannot tell apart (0 for a very small weight, 1 for a very large one) are told apart by their
    logarithms, so that the draw stays fair with any weights.
    """
    log_keys = [math.log(each.u) / weight for each, weight in zip(members, weights, strict=True)]
    return sorted(range(len(members)), key=lambda place: (-keys[place], -log_keys[place], members[place].index))


def draw_uniformly(members: Sequence[Candidate], quota: int) -> dict[int, Draw]:
    """Equal weights: the keys are the uniforms themselves."""
    return draw_weighted(members, [1.0] * len(members), quota)


def take_first(members: Sequence[Candidate], quota: int) -> dict[int, Draw]:
    """No luck at all: the first ``quota`` members of an order."""
    return {
        each.index: Draw(rank <= quota, rank, inclusion=float(rank <= quota))
        for rank, each in enumerate(members, start=1)
    }


def close(candidates: Sequence[Candidate], draws: Mapping[int, Draw], quotas: Quotas) -> Selection:
    """The selection, with variance checked again: equal rewards among the kept ones teach nothing."""
    kept = [each for each in candidates if draws[each.index].kept]
    decisions = tuple(_decision(each, draws[each.index], quotas) for each in candidates)
    selection = Selection(tuple(each.index for each in kept), decisions, "kept", quotas.right, quotas.wrong)
    return throw_out(selection, "roc_emptied") if all_equal(kept) else selection


def _decision(candidate: Candidate, draw: Draw, quotas: Quotas) -> Decision:
    return decide(
        candidate,
        kept=draw.kept,
        reason="kept" if draw.kept else "not_drawn",
        quota=quotas.right if candidate.right else quotas.wrong,
        weight=draw.weight,
        key=draw.key,
        rank=draw.rank,
        inclusion=draw.inclusion,
    )
