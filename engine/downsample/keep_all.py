"""Plain GRPO: every rollout of a group stays, unless all rewards are equal.

``keep`` is not looked at: a recipe with this rule samples exactly as many rollouts as it learns from.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.downsample.base import Candidate, Selection, in_order
from engine.downsample.drawing import close, take_first
from engine.downsample.equal_reward import reject_equal_reward
from engine.downsample.quotas import Quotas


@dataclass(frozen=True, slots=True)
class KeepAll:
    """No down-sampling."""

    def select(self, candidates: Sequence[Candidate], keep: int) -> Selection:
        candidates = in_order(candidates)
        if rejected := reject_equal_reward(candidates):
            return rejected
        right = sum(each.right for each in candidates)
        quotas = Quotas(right=right, wrong=len(candidates) - right)
        return close(candidates, take_first(candidates, len(candidates)), quotas)
