"""Estimators of KL(policy || reference) per token, and the penalty that a loss takes of them.

With d = log(policy / reference) at a token that the policy drew (Schulman, http://joschu.net/blog/kl-approx.html):

    k1 = d                    unbiased, may be negative
    k2 = d^2 / 2              biased, low variance
    k3 = exp(-d) - 1 + d      unbiased, low variance, never negative

A good estimate need not have a good gradient (Tang and Munos, arXiv 2506.09477; verl #2953): differentiated as they
stand, k1 gives E[grad log policy] = 0, which is no penalty but noise, and k3 gives the gradient of KL(reference ||
policy). What is missing is that the policy also decides which tokens are drawn. So the penalty is

    r k,    r = policy / old policy, differentiated too

whose mean over the old policy's tokens is the mean of k over the policy's, and whose gradient is that mean's: exactly
grad KL(policy || reference) for k1 and k3, with one update a step or several (DeepSeek-V3.2, arXiv 2512.02556, 3.1;
the default of TRL since #6503). At r = 1 k3's gradient is d grad log policy, k1's is (d + 1) grad log policy: the same
on average, but noisier. What a token does to later tokens is left out, as everywhere.

The paper uses no KL term and neither do our recipes: with beta 0 no reference model is even loaded.
"""

from collections.abc import Callable, Mapping

from torch import Tensor

from engine.objective.ratio import log_ratio


def k1(logp_T: Tensor, logp_ref_T: Tensor) -> Tensor:
    return log_ratio(logp_T, logp_ref_T)


def k2(logp_T: Tensor, logp_ref_T: Tensor) -> Tensor:
    return log_ratio(logp_T, logp_ref_T).square() / 2


def k3(logp_T: Tensor, logp_ref_T: Tensor) -> Tensor:
    d_T = log_ratio(logp_T, logp_ref_T)
    return (-d_T).expm1() + d_T


ESTIMATORS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def kl_penalty(logp_T: Tensor, logp_ref_T: Tensor, ratio_T: Tensor, estimator: str) -> Tensor:
    """r k at each token; ``ratio_T`` must carry its gradient, ``logp_ref_T`` gets none."""
    return ratio_T * ESTIMATORS[estimator](logp_T, logp_ref_T.detach())
