"""Group-relative advantages (paper, eq. 2): A = (r - mean) / std over the kept rollouts of one problem.

What the paper leaves open and we decided: population std (``ddof=0``; the release uses 1), 1e-6 added to it,
``norm="none"`` divides by nothing (Dr. GRPO). A group of one and a group of equals get exact zeros. A reward
that is not a number is an error: a rollout without a score is left out before it gets here. Leaves out which
rollouts are kept: ``engine.downsample``.
"""

from collections.abc import Hashable, Sequence
from typing import Literal

import torch
from torch import Tensor

from engine.objective.masking import fill_masked, require_same_shape


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


def advantages_by_group(
    reward_S: Tensor,
    group_S: Sequence[Hashable],
    *,
    norm: Literal["std", "none"] = "std",
    ddof: int = 0,
    eps: float = 1e-6,
) -> Tensor:
    """Advantages of several groups at once. Rollouts belong together by id, wherever they stand."""
    if len(group_S) != reward_S.numel():
        raise ValueError(f"{reward_S.numel()} rewards but {len(group_S)} group ids")
    places: dict[Hashable, list[int]] = {}
    for place, group in enumerate(group_S):
        places.setdefault(group, []).append(place)
    advantage_S = torch.zeros_like(reward_S)
    for members in places.values():
        advantage_S[members] = group_advantages(reward_S[members], norm=norm, ddof=ddof, eps=eps)
    return advantage_S


def spread_over_tokens(advantage_S: Tensor, sequence_T: Tensor, mask_T: Tensor) -> Tensor:
    """Give every sampled token its sequence's advantage, and 0 to the others (prompt, tool text, padding).

    ``sequence_T[t]`` is the place in ``advantage_S`` of the sequence that token t belongs to.
    """
    require_same_shape(sequence_T=sequence_T, mask_T=mask_T)
    return fill_masked(advantage_S[sequence_T], mask_T)
