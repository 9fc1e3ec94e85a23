"""Log-probabilities and entropies of tokens, at the temperature they were sampled at.

The sampler reports processed log-probabilities, so the learner divides logits by the same temperature.
Half-precision logits are raised to float32 first. Leaves out top-p and top-k: a truncated distribution biases
every ratio, and recipes refuse it for RL. Leaves out chunking over the vocabulary: ``engine.learner``.
"""

import math

import torch
from torch import Tensor


def log_softmax(logits_TV: Tensor, temperature: float) -> Tensor:
    """log p over the vocabulary at each place; raises ``ValueError`` for a temperature that samples nothing."""
    if not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(
            f"temperature is {temperature}, expected a finite number over 0: "
            "greedy tokens have no log-probability to learn from"
        )
    wide_TV = logits_TV.float() if logits_TV.dtype in (torch.float16, torch.bfloat16) else logits_TV
    return torch.log_softmax(wide_TV if temperature == 1 else wide_TV / temperature, dim=-1)


def target_logp(logp_TV: Tensor, target_T: Tensor) -> Tensor:
    """log p(target) at each place; ``logp_TV[t]`` must be of the logits that predict ``target_T[t]``."""
    return logp_TV.gather(-1, target_T.unsqueeze(-1)).squeeze(-1)


def entropy(logp_TV: Tensor) -> Tensor:
    """Entropy in nats at each place. A token that cannot occur (log p -inf) adds nothing."""
    finite_TV = logp_TV.clamp(min=torch.finfo(logp_TV.dtype).min)  # 0 * -inf would be NaN
    entropy_T: Tensor = -torch.linalg.vecdot(logp_TV.exp(), finite_TV)
    return entropy_T
