"""GRPO with clip-higher (rStar2-Agent, arXiv 2508.20722, eq. 1). For a token with advantage A and ratio r:

    policy_loss = -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)

Summed over the update's tokens and divided by their number (``normalisation.py``). Dr. GRPO is this loss with
advantages that no std divides and a constant denominator. Rollouts that were cut (stop reason ``length``) stay in
the loss. Leaves out sequence means.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.objective.base import Tokens
from engine.objective.policy_gradient import PolicyGradient, PolicyLoss


@dataclass(frozen=True, slots=True)
class Grpo(PolicyGradient):
    """The objective called ``grpo`` in recipes. A token whose clipped branch is the smaller has no gradient."""

    def policy_loss(self, tokens: Tokens, ratio_T: Tensor) -> PolicyLoss:
        raw_T = ratio_T * tokens.advantage_T
        bounded_T = ratio_T.clamp(1 - self.clip_low, 1 + self.clip_high) * tokens.advantage_T
        clipped_T = bounded_T < raw_T
        return PolicyLoss(-torch.minimum(raw_T, bounded_T), clipped_T, (tokens.advantage_T != 0) & ~clipped_T)
