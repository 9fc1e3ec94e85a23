"""Estimators of KL(policy || reference) per token.

After Schulman: k1 is unbiased, k2 has low variance, k3 has both and is never negative. The paper uses no KL
term and neither do our recipes: with beta 0 no reference model is even loaded. These serve ablations and the
drift chart. With d = log(policy / reference), bounded before exp and 0 at masked places: k1 = d, k2 = d^2 /
2, k3 = exp(-d) - 1 + d.
"""

from torch import Tensor

from engine.objective.masking import log_ratio, require_same_shape


def k1(logp_T: Tensor, logp_ref_T: Tensor, mask_T: Tensor | None = None) -> Tensor:
    require_same_shape(logp_T=logp_T, logp_ref_T=logp_ref_T, mask_T=mask_T)
    return log_ratio(logp_T, logp_ref_T, mask_T)


def k2(logp_T: Tensor, logp_ref_T: Tensor, mask_T: Tensor | None = None) -> Tensor:
    return k1(logp_T, logp_ref_T, mask_T).square() / 2


def k3(logp_T: Tensor, logp_ref_T: Tensor, mask_T: Tensor | None = None) -> Tensor:
    d_T = k1(logp_T, logp_ref_T, mask_T)
    return (-d_T).expm1() + d_T
