"""The clipped token-level objective (paper, eq. 1): clip-higher, no KL, no entropy.

For token t of a rollout with advantage A and ratio r = pi / pi_old:

    loss_t = -min(r A, clip(r, 1 - eps_low, 1 + eps_high) A)

times the truncated sampler weight where one is asked for. The paper divides by the sum of |o_i| over the kept
rollouts; we divide by T_u, the sampled tokens of the whole update over all ranks and micro-batches, so that
the loss is the same for every way to cut an update into micro-batches. ``policy_loss`` therefore returns a
sum and ``token_mean`` makes the update's share of it.

Rollouts that were cut (stop reason ``length``) stay in the loss: leaving them out is a mask, and a mask
leaves the denominator too. A constant denominator (Dr. GRPO) is ``token_mean`` with another count. Leaves out
sequence means.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.objective.importance import truncated_weights
from engine.objective.masking import fill_masked, log_ratio, require_same_shape


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """``sum`` carries the gradient; the rest are detached figures over this batch's tokens.

    They stay tensors so that a micro-batch does not wait for the device. ``clip_frac`` counts tokens where
    the clipped branch was chosen and the gradient is zero.
    """

    sum: Tensor
    tokens: Tensor
    clip_frac: Tensor
    ratio_mean: Tensor
    ratio_max: Tensor
    weight_mean: Tensor
    weight_capped_frac: Tensor


def policy_loss(
    logp_T: Tensor,
    logp_old_T: Tensor | None,
    advantage_T: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    logp_sampler_T: Tensor | None = None,
    cap: float = 2.0,
    mask_T: Tensor | None = None,
) -> PolicyLoss:
    """Sum of token losses over sampled tokens.

    ``logp_old_T`` None means one update a step: the behaviour policy is the policy itself without gradient, r
    is 1 and only its gradient is left. ``logp_sampler_T`` switches the truncated weight on.
    """
    old_T = logp_T.detach() if logp_old_T is None else logp_old_T.detach()
    require_same_shape(
        logp_T=logp_T, logp_old_T=old_T, advantage_T=advantage_T, logp_sampler_T=logp_sampler_T, mask_T=mask_T
    )
    counted_T = torch.ones_like(logp_T, dtype=torch.bool) if mask_T is None else mask_T.bool()
    gain_T = fill_masked(advantage_T, counted_T)
    ratio_T = log_ratio(logp_T, old_T, counted_T).exp()
    raw_T = ratio_T * gain_T
    clipped_T = ratio_T.clamp(1 - clip_low, 1 + clip_high) * gain_T
    weight_T = torch.ones_like(ratio_T)
    if logp_sampler_T is not None:
        weight_T = truncated_weights(old_T, logp_sampler_T, cap=cap, mask_T=counted_T)
    loss_T = -weight_T * torch.minimum(raw_T, clipped_T)  # 0 at masked places, where the gain is 0
    return PolicyLoss(
        sum=loss_T.sum(),
        tokens=counted_T.sum(),
        clip_frac=_mean(clipped_T < raw_T, counted_T),
        ratio_mean=_mean(ratio_T, counted_T),
        ratio_max=_max(ratio_T, counted_T),
        weight_mean=_mean(weight_T, counted_T),
        weight_capped_frac=_mean(weight_T >= cap, counted_T),
    )


def token_mean(loss_sum: Tensor, tokens_of_update: int, world: int = 1) -> Tensor:
    """A micro-batch's share of the update's loss: (world / T_u) * sum.

    ``world`` undoes the mean over ranks that data parallelism takes of gradients. Nothing is divided by the
    number of accumulation steps.
    """
    if tokens_of_update <= 0 or world <= 0:
        raise ValueError(f"tokens_of_update {tokens_of_update} and world {world} must be over 0; skip an empty update")
    return loss_sum * (world / tokens_of_update)


def _mean(value_T: Tensor, mask_T: Tensor) -> Tensor:
    """Over counted tokens; 0 without any, never NaN."""
    floats_T = value_T.detach() if value_T.is_floating_point() else value_T.float()
    return fill_masked(floats_T, mask_T).sum() / mask_T.sum().clamp(min=1)


def _max(ratio_T: Tensor, mask_T: Tensor) -> Tensor:
    """Over counted tokens; 0 without any. Ratios are positive."""
    if ratio_T.numel() == 0:
        return ratio_T.new_zeros(())
    return fill_masked(ratio_T.detach(), mask_T).max()
