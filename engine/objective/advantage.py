"""Group-relative advantages (paper, eq. 2): A = (r - mean) / std over the kept rollouts of one problem.

What the paper leaves open and we decided: population std (``ddof=0``; the release uses 1), 1e-6 added to it,
``norm="none"`` divides by nothing (Dr. GRPO, arXiv 2503.20783). A group of one and a group of equals get exact zeros.
A reward that is not a number is an error: a rollout without a score is left out before it gets here. Leaves out which
rollouts are kept (``engine.downsample``) and that every trained token gets its rollout's (``engine.learner.packing``).
"""

from typing import Literal

import torch
from torch import Tensor


def group_advantages(
    reward_N: Tensor, *, norm: Literal["std", "none"] = "std", ddof: int = 0, eps: float = 1e-6
) -> Tensor:
    """Advantages of one group, in its order."""
    if norm not in ("std", "none"):
        raise ValueError(f"norm is {norm!r}, expected 'std' or 'none'")
    if not torch.isfinite(reward_N).all():
        raise ValueError(f"reward is not finite: {reward_N.tolist()}; leave rollouts without a score out of the group")
    if reward_N.numel() <= 1 or bool((reward_N == reward_N[0]).all()):
        return torch.zeros_like(reward_N)  # exactly: a rounded mean would leave dust that 1/eps blows up
    centred_N = reward_N - reward_N.mean()
    return centred_N if norm == "none" else centred_N / (reward_N.std(correction=ddof) + eps)
