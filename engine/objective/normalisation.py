"""From a pass's sum of token losses to its share of the update's loss.

The paper divides by the sum of |o_i| over the kept rollouts. We divide by T_u, the trained tokens of the whole
update over all ranks and passes, so that the loss is the same for every way to cut an update. Dr. GRPO
(arXiv 2503.20783) divides by a constant instead: the same function with another number.
"""

from torch import Tensor


def token_mean(loss_sum: Tensor, tokens_of_update: float, world: int = 1) -> Tensor:
    """A pass's share of the update's loss: (world / T_u) * sum.

    ``world`` undoes the mean over ranks that data parallelism takes of gradients. Nothing is divided by the
    number of accumulation steps. Raises ``ValueError`` for an update without tokens.
    """
    if tokens_of_update <= 0 or world <= 0:
        raise ValueError(f"tokens_of_update {tokens_of_update} and world {world} must be over 0; skip an empty update")
    return loss_sum * (world / tokens_of_update)
