"""CISPO (MiniMax-M1, arXiv 2506.13585, eq. 4 and 5): the ratio is a bounded weight, and no token loses its gradient.

    policy_loss = -clip(r, 1 - clip_low, 1 + clip_high) A log pi,      the clip without gradient

MiniMax uses no lower bound: that is ``clip_low = 1``. With one update a step its gradient is GRPO's.
"""

from dataclasses import dataclass

from torch import Tensor

from engine.objective.base import Tokens
from engine.objective.policy_gradient import PolicyGradient, PolicyLoss


@dataclass(frozen=True, slots=True)
class Cispo(PolicyGradient):
    """The objective called ``cispo`` in recipes."""

    def policy_loss(self, tokens: Tokens, ratio_T: Tensor) -> PolicyLoss:
        weight_T = ratio_T.detach().clamp(1 - self.clip_low, 1 + self.clip_high)
        loss_T = -weight_T * tokens.advantage_T * tokens.logp_T
        return PolicyLoss(loss_T, weight_T != ratio_T, tokens.advantage_T != 0)
