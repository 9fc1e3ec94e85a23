"""Sampler against learner: truncated importance weights.

The sampler (vLLM) and the learner compute the same probabilities with different kernels. Where that matters (bf16),
each token's policy loss is weighted with min(pi_learner / pi_sampler, cap), capped above and not below, without
gradient (truncated importance sampling, verl #2953). Leaves out when it is switched on, and that the sampler must
neither truncate (top-p, top-k) nor hide its log-probabilities: recipes are checked for both.
"""

from torch import Tensor

from engine.objective.ratio import log_ratio


def truncated_weights(logp_train_T: Tensor, logp_sampler_T: Tensor, *, cap: float = 2.0) -> Tensor:
    """min(exp(logp_train - logp_sampler), cap), detached. Raises ``ValueError`` for a cap that is not over 0."""
    if cap <= 0:
        raise ValueError(f"cap must be over 0, is {cap}")
    return log_ratio(logp_train_T, logp_sampler_T).exp().clamp(max=cap).detach()
