"""The update's loss over W ranks, rank w with passes P_w, T_u trained tokens altogether:

    loss_u = 1 / T_u sum_w sum_{p in P_w} sum_{t in p} loss_t

Data parallelism takes the mean over ranks, so a pass contributes (W / T_u) sum_t loss_t. However the tokens are cut
into passes and dealt out to ranks, loss, gradient and metrics are the same.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.objective.grpo import Grpo
from engine.objective.metrics import metrics_of
from engine.objective.normalisation import token_mean
from tests.numerics.support import CLOSE, Drawn, gradient

TOKENS = 24
OBJECTIVE = Grpo(sampler_weight=True, kl_beta=0.1, entropy_coef=0.01)


def update(drawn: Drawn, ranks: list[list[slice]]) -> tuple[float, list[float], dict[str, float]]:
    """Loss, gradient by token and metrics, as ranks would have them after their all-reduce."""
    loss, slopes = 0.0, [0.0] * TOKENS
    passes = []
    for part in (part for parts in ranks for part in parts):
        tokens = drawn.tokens(part)
        terms = OBJECTIVE(tokens)
        share = token_mean(terms.sum, TOKENS, world=len(ranks)) / len(ranks)  # the mean over ranks
        loss += share.item()
        slopes[part] = gradient(share, tokens.logp_T)
        passes.append(terms)
    sums = {name: torch.stack([each.sums[name] for each in passes]).sum() for name in passes[0].sums}
    maxima = {name: torch.stack([each.maxima[name] for each in passes]).max() for name in passes[0].maxima}
    return loss, slopes, metrics_of(sums, maxima, TOKENS)


@st.composite
def splits(draw: st.DrawFn) -> list[list[slice]]:
    """Tokens cut at any places, passes without tokens among them, and every pass given to any rank."""
    cuts = sorted(draw(st.lists(st.integers(0, TOKENS), max_size=8)))
    passes = [slice(start, end) for start, end in zip([0, *cuts], [*cuts, TOKENS], strict=True)]
    world = draw(st.integers(1, 4))
    ranks: list[list[slice]] = [[] for _ in range(world)]
    for each in passes:
        ranks[draw(st.integers(0, world - 1))].append(each)
    return ranks


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 1000), ranks=splits())
def test_any_cut_into_passes_and_ranks_is_the_same_update(seed: int, ranks: list[list[slice]]) -> None:
    drawn = Drawn.of(seed, TOKENS)
    loss, slopes, metrics = update(drawn, ranks)
    whole_loss, whole_slopes, whole_metrics = update(drawn, [[slice(0, TOKENS)]])
    assert loss == pytest.approx(whole_loss, **CLOSE)
    assert slopes == pytest.approx(whole_slopes, **CLOSE)
    assert metrics == pytest.approx(whole_metrics, **CLOSE)


@pytest.mark.parametrize(("tokens", "world"), [(0, 1), (5, 0)])
def test_an_update_without_tokens_is_an_error_and_not_a_nan(tokens: int, world: int) -> None:
    with pytest.raises(ValueError, match="must be over 0"):
        token_mean(torch.zeros(()), tokens, world)
