"""RoC, Resampling on Correct (paper, 2.2): of 2G rollouts keep G, clean right ones preferred.

O_neg is drawn uniformly, so that every way to fail stays in view. O_pos is drawn with probability inversely
proportional to p_total = p_err + p_format, so that an answer reached through broken calls is learned from
less often, without a penalty in the reward that could be gamed.

What the paper leaves open and we decided:

* w = 1 / (eps + p_total), eps 0.05: a spotless rollout (p_total 0) gets a large weight, not an infinite one.
* Without replacement, by Efraimidis-Spirakis keys u^(1/w) over stored uniforms (``drawing.py``).
* Quotas, odd counts and the least kept of each class (``quotas.py``); ``min_per_class`` 0 is the paper to the
  letter, 2 is the release.
* Groups with equal rewards are rejected first, variance is checked again afterwards (``equal_reward.py``).
* ``mode="sorted"`` is the release's rule: right ones by rising penalty, wrong ones in batch order, no luck, and
  (``min_per_class`` 2) its quotas. Where its rounding loses a rollout, as at 5 right of 10, ours is taken:
  exactly K stay in both modes.

Leaves out the penalties' own definitions (``penalty.py``) and the release's way to find errors in text.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from engine.downsample.base import Candidate, Selection, in_order
from engine.downsample.drawing import Draw, close, draw_uniformly, draw_weighted, take_first
from engine.downsample.equal_reward import reject_equal_reward
from engine.downsample.penalty import error_penalty, format_penalty, total_penalty
from engine.downsample.quotas import Quotas, QuotaSteps, quota_steps, release_steps

__all__ = ["Roc", "draw_weight", "error_penalty", "format_penalty"]


def draw_weight(p_total: float, eps: float) -> float:
    """w = 1 / (eps + p_total)."""
    return 1.0 / (eps + p_total)


@dataclass(frozen=True, slots=True)
class Roc:
    """Resampling on Correct. ``mode`` chooses between drawing right rollouts and sorting them."""

    mode: Literal["drawn", "sorted"] = "drawn"
    min_per_class: int = 1
    eps: float = 0.05

    def __post_init__(self) -> None:
        if self.mode not in ("drawn", "sorted"):
            raise ValueError(f"mode is {self.mode!r}, expected 'drawn' or 'sorted'")
        if not (self.eps > 0 and math.isfinite(self.eps) and math.isfinite(draw_weight(0.0, self.eps))):
            raise ValueError(f"eps must be over 0, is {self.eps}: a rollout without penalty needs a finite weight")
        if self.min_per_class < 0:
            raise ValueError(f"min_per_class must be 0 or more, is {self.min_per_class}")

    def select(self, candidates: Sequence[Candidate], keep: int) -> Selection:
        candidates = in_order(candidates)
        if rejected := reject_equal_reward(candidates):
            return rejected
        o_pos = [each for each in candidates if each.right]
        o_neg = [each for each in candidates if not each.right]
        quotas = self.quota_steps(len(o_pos), len(o_neg), keep).quotas
        return close(candidates, self._draws(o_pos, o_neg, quotas), quotas)

    def quota_steps(self, right: int, wrong: int, keep: int) -> QuotaSteps:
        """How the places of a group with contrast are split between its classes."""
        split = release_steps if self.mode == "sorted" else quota_steps
        return split(right, wrong, keep, self.min_per_class)

    def _draws(self, o_pos: list[Candidate], o_neg: list[Candidate], quotas: Quotas) -> dict[int, Draw]:
        if self.mode == "sorted":  # a stable sort: equal penalties stay in batch order
            return take_first(sorted(o_pos, key=total_penalty), quotas.right) | take_first(o_neg, quotas.wrong)
        weights = [draw_weight(total_penalty(each), self.eps) for each in o_pos]
        return draw_weighted(o_pos, weights, quotas.right) | draw_uniformly(o_neg, quotas.wrong)
