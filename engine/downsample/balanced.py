"""As many wrong rollouts as right ones: a batch in which a positive advantage always faces a negative one.

One rule: each class keeps min(right, wrong, floor(keep / 2)) rollouts. So where there is room all right ones stay
and as many wrong ones are drawn; with fewer wrong ones than right ones, right ones are drawn down to them. ``keep``
is a cap shared in halves, and a group with a small class keeps fewer than ``keep``. Penalties play no part: both
classes are drawn uniformly, from the same stored uniforms as in ``roc.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.downsample.base import Candidate, Selection, in_order
from engine.downsample.drawing import close, draw_uniformly
from engine.downsample.equal_reward import reject_equal_reward
from engine.downsample.quotas import balanced_quotas


@dataclass(frozen=True, slots=True)
class Balanced:
    """The smaller class stays whole, the larger one is drawn down to it uniformly."""

    def select(self, candidates: Sequence[Candidate], keep: int) -> Selection:
        candidates = in_order(candidates)
        if rejected := reject_equal_reward(candidates):
            return rejected
        o_pos = [each for each in candidates if each.right]
        o_neg = [each for each in candidates if not each.right]
        quotas = balanced_quotas(len(o_pos), len(o_neg), keep)
        return close(candidates, draw_uniformly(o_pos, quotas.right) | draw_uniformly(o_neg, quotas.wrong), quotas)
