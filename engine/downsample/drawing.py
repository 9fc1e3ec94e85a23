"""Drawing without replacement from stored uniforms, and closing a selection: shared by every rule that draws.

Efraimidis-Spirakis: give item i the key u_i^(1/w_i) and keep the largest keys. That equals taking items one
by one, each time with probability in proportion to the weights left. Leaves out where weights come from:
``roc.py``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.downsample.base import Candidate, Decision, Selection
from engine.downsample.equal_reward import all_equal, decide, throw_out
from engine.downsample.inclusion import inclusion_probabilities
from engine.downsample.quotas import Quotas


@dataclass(frozen=True, slots=True)
class Draw:
    """How one candidate fared within its class."""

    kept: bool
    weight: float | None = None
    key: float | None = None
    inclusion: float | None = None


def draw_weighted(members: Sequence[Candidate], weights: Sequence[float], quota: int) -> dict[int, Draw]:
    """Draw ``quota`` members without replacement; equal keys go to the lower index."""
    keys = [each.u ** (1.0 / weight) for each, weight in zip(members, weights, strict=True)]
    chances = inclusion_probabilities(weights, quota)
    best = sorted(range(len(members)), key=lambda place: (-keys[place], members[place].index))
    chosen = frozenset(best[:quota])
    return {
        each.index: Draw(place in chosen, weights[place], keys[place], chances[place])
        for place, each in enumerate(members)
    }


def draw_uniformly(members: Sequence[Candidate], quota: int) -> dict[int, Draw]:
    """Equal weights: the keys are the uniforms themselves."""
    return draw_weighted(members, [1.0] * len(members), quota)


def take_first(members: Sequence[Candidate], quota: int) -> dict[int, Draw]:
    """No luck at all: the first ``quota`` members of an order."""
    return {each.index: Draw(place < quota, inclusion=float(place < quota)) for place, each in enumerate(members)}


def close(candidates: Sequence[Candidate], draws: Mapping[int, Draw], quotas: Quotas) -> Selection:
    """The selection, with variance checked again: equal rewards among the kept ones teach nothing."""
    kept = [each for each in candidates if draws[each.index].kept]
    decisions = tuple(_decision(each, draws[each.index]) for each in candidates)
    selection = Selection(tuple(each.index for each in kept), decisions, "kept", quotas.right, quotas.wrong)
    return throw_out(selection, "roc_emptied") if all_equal(kept) else selection


def _decision(candidate: Candidate, draw: Draw) -> Decision:
    return decide(
        candidate,
        kept=draw.kept,
        reason="kept" if draw.kept else "not_drawn",
        weight=draw.weight,
        key=draw.key,
        inclusion=draw.inclusion,
    )
