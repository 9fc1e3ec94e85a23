"""Log-ratios that are safe to exponentiate, forward and backward.

exp of a large log-ratio overflows in float32, and what multiplies it in the backward pass is then NaN. So log-ratios
are bounded before exp. A NaN, or an infinity against the same infinity, is not hidden: the update that has one is
skipped. There are no masks here: tokens that are not trained are left out before (``engine.learner.packing``), so
whatever a model says about them cannot reach a loss or a gradient.
"""

from torch import Tensor

LOG_RATIO_BOUND = 20.0
"""exp(20) is 4.9e8: far outside every clip range and cap, far inside float32. No gradient comes from beyond it."""


def log_ratio(logp_T: Tensor, base_T: Tensor) -> Tensor:
    """log(p / base), bounded to +-20. Raises ``ValueError`` where shapes differ."""
    require_same_shape(logp_T=logp_T, base_T=base_T)
    return (logp_T - base_T).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def require_same_shape(**tensors: Tensor | None) -> None:
    """Refuse to broadcast: a [T, 1] against a [T] would give a [T, T] without a word."""
    shapes = {name: tuple(each.shape) for name, each in tensors.items() if each is not None}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"shapes differ: {shapes}")
