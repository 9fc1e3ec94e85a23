"""2G -> G without penalties: the control that isolates what RoC's penalty does.

Same quotas, same rejections, same stored uniforms as ``roc.py``; only the weights of the right ones are all
1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.downsample.base import Candidate, Selection, in_order
from engine.downsample.drawing import close, draw_uniformly
from engine.downsample.equal_reward import reject_equal_reward
from engine.downsample.quotas import QuotaSteps, quota_steps


@dataclass(frozen=True, slots=True)
class Uniform:
    """Draw each class uniformly."""

    min_per_class: int = 1

    def __post_init__(self) -> None:
        if self.min_per_class < 0:
            raise ValueError(f"min_per_class must be 0 or more, is {self.min_per_class}")

    def select(self, candidates: Sequence[Candidate], keep: int) -> Selection:
        candidates = in_order(candidates)
        if rejected := reject_equal_reward(candidates):
            return rejected
        o_pos = [each for each in candidates if each.right]
        o_neg = [each for each in candidates if not each.right]
        quotas = self.quota_steps(len(o_pos), len(o_neg), keep).quotas
        return close(candidates, draw_uniformly(o_pos, quotas.right) | draw_uniformly(o_neg, quotas.wrong), quotas)

    def quota_steps(self, right: int, wrong: int, keep: int) -> QuotaSteps:
        """How the places of a group with contrast are split between its classes."""
        return quota_steps(right, wrong, keep, self.min_per_class)
