"""Log-probabilities and entropies from hidden states, without all logits at once.

With a vocabulary of 150,000 the logits of 8,192 tokens are 4.6 GiB in fp32, and a softmax and its gradient are as
much again. So the output layer is applied to chunks of tokens, and all but the last are computed again in the
backward pass instead of kept. Leaves out models that change logits after the output layer.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from engine.objective.logprob import entropy, log_softmax, target_logp

OutputLayer = Callable[[Tensor], Tensor]
"""Hidden states [C, H] -> logits [C, V]; called as a module, so that ZeRO-3's hooks see it."""


class Scores(NamedTuple):
    """What the policy says about each target token, fp32 (fp64 in a float64 model): nats."""

    logp_T: Tensor
    entropy_T: Tensor


def score_targets(
    hidden_TH: Tensor,
    target_T: Tensor,
    output_layer: OutputLayer,
    *,
    temperature: float,
    chunk_tokens: int,
    most_tokens: int = 0,
    entropy_gradient: bool = False,
) -> Scores:
    """log p(target) and the entropy of the distribution it was drawn from, at ``temperature``.

    At most ``chunk_tokens`` tokens have logits at a time. ``most_tokens`` is the largest T on any rank: all ranks
    then call the output layer equally often, some with nothing. ZeRO-3 gathers weights at every call, and a rank that
    made fewer would leave the others waiting for ever. Without ``entropy_gradient`` entropies are detached.
    """

    def score_chunk(hidden_CH: Tensor, target_C: Tensor) -> Scores:
        logp_CV = log_softmax(output_layer(hidden_CH), temperature)
        return Scores(target_logp(logp_CV, target_C), entropy(logp_CV if entropy_gradient else logp_CV.detach()))

    sizes = _chunk_sizes(target_T.numel(), max(most_tokens, target_T.numel()), chunk_tokens)
    *earlier, last = zip(torch.split(hidden_TH, sizes), torch.split(target_T, sizes), strict=True)
    chunks = [checkpoint(score_chunk, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in earlier]
    chunks.append(score_chunk(*last))  # the backward pass begins with it: kept, it is still the only one with logits
    return Scores(*(torch.cat(parts) for parts in zip(*chunks, strict=True)))


def _chunk_sizes(tokens: int, most_tokens: int, chunk_tokens: int) -> list[int]:
    """As many chunks as ``most_tokens`` take, filled from behind: the last one, which is not computed again, first."""
    count = max(1, math.ceil(most_tokens / chunk_tokens))
    return [min(chunk_tokens, max(0, tokens - behind * chunk_tokens)) for behind in reversed(range(count))]
