"""Sampler against learner: truncated importance weights, and the gap that makes them needed.

The sampler (vLLM) and the learner compute the same probabilities with different kernels. Where that matters
(bf16), each token's loss is weighted with min(pi_learner / pi_sampler, cap), capped above and not below,
without gradient. Leaves out when it is switched on, and that the sampler must neither truncate (top-p, top-k)
nor hide its log-probabilities: recipes are checked for both.
"""

from torch import Tensor

from engine.objective.masking import fill_masked, log_ratio, require_same_shape


def truncated_weights(
    logp_train_T: Tensor, logp_rollout_T: Tensor, *, cap: float = 2.0, mask_T: Tensor | None = None
) -> Tensor:
    """min(exp(logp_train - logp_rollout), cap), detached; 1 at masked places (capped like the others)."""
    if cap <= 0:
        raise ValueError(f"cap must be over 0, is {cap}")
    require_same_shape(logp_train_T=logp_train_T, logp_rollout_T=logp_rollout_T, mask_T=mask_T)
    return log_ratio(logp_train_T, logp_rollout_T, mask_T).exp().clamp(max=cap).detach()


def mean_gap(logp_train_T: Tensor, logp_rollout_T: Tensor, mask_T: Tensor) -> Tensor:
    """Mean of abs(logp_train - logp_rollout) over sampled tokens; 0 without any. Nothing is bounded here."""
    require_same_shape(logp_train_T=logp_train_T, logp_rollout_T=logp_rollout_T, mask_T=mask_T)
    gap_T = fill_masked(logp_train_T, mask_T) - fill_masked(logp_rollout_T, mask_T)
    return gap_T.abs().sum().detach() / mask_T.sum().clamp(min=1)
