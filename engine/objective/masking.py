"""Log-ratios that are safe to exponentiate, forward and backward.

Two things break training at places the loss does not even count: exp of a large log-ratio overflows, and its
derivative then turns a masked zero into 0 * inf = NaN; -inf minus -inf is NaN, and NaN times mask 0 is still
NaN. So masked places are replaced before anything is computed from them, and log-ratios are bounded before
exp.
"""

import torch
from torch import Tensor

LOG_RATIO_BOUND = 20.0
"""exp(20) is 4.9e8: far outside every clip range and cap, far inside float32."""


def fill_masked(value_T: Tensor, mask_T: Tensor | None) -> Tensor:
    """``value_T`` with 0 at masked places, whatever stood there, NaN and infinities included."""
    return value_T if mask_T is None else torch.where(mask_T.bool(), value_T, torch.zeros_like(value_T))


def log_ratio(logp_T: Tensor, base_T: Tensor, mask_T: Tensor | None) -> Tensor:
    """log(p / base), 0 at masked places and bounded at the others."""
    difference_T = fill_masked(logp_T, mask_T) - fill_masked(base_T, mask_T)
    return difference_T.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def require_same_shape(**tensors: Tensor | None) -> None:
    """Refuse to broadcast: a [T, 1] against a [T] would give a [T, T] without a word."""
    shapes = {name: tuple(each.shape) for name, each in tensors.items() if each is not None}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"shapes differ: {shapes}")
