"""Log-probabilities and entropies in chunks are those at once, with the logits of one chunk alive at a time."""

import math
from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from engine.learner.head import Scores, score_targets
from engine.objective.logprob import entropy, log_softmax, target_logp

VOCABULARY, HIDDEN = 200, 3
chunks = st.integers(1, 20)
tokens = st.integers(1, 17)
temperatures = st.sampled_from([1.0, 0.7])


def inputs(count: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, nn.Linear]:
    torch.manual_seed(count)
    hidden_TH = torch.randn(count, HIDDEN, dtype=dtype, requires_grad=True)
    return hidden_TH, torch.randint(VOCABULARY, (count,)), nn.Linear(HIDDEN, VOCABULARY, bias=False, dtype=dtype)


def loss_of(scores: Scores, entropy_weight: float) -> Tensor:
    weight_T = torch.linspace(-1, 2, scores.logp_T.numel(), dtype=scores.logp_T.dtype)
    return (weight_T * scores.logp_T).sum() + entropy_weight * (weight_T * scores.entropy_T).sum()


@settings(max_examples=40)
@given(tokens, chunks, temperatures, st.booleans())
def test_any_chunks_give_the_values_and_gradients_of_the_formulas(
    count: int, chunk_tokens: int, temperature: float, entropy_gradient: bool
) -> None:
    hidden_TH, target_T, layer = inputs(count)
    leaves = [hidden_TH, layer.weight]
    logits_TV = layer(hidden_TH)
    logp_TV = log_softmax(logits_TV, temperature)
    wanted = Scores(target_logp(logp_TV, target_T), entropy(logp_TV))
    ours = score_targets(
        hidden_TH,
        target_T,
        layer,
        temperature=temperature,
        chunk_tokens=chunk_tokens,
        entropy_gradient=entropy_gradient,
    )
    for one, other in zip(ours, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert ours.entropy_T.requires_grad is entropy_gradient
    theirs = torch.autograd.grad(loss_of(wanted, 0.5 * entropy_gradient), leaves)
    for one, other in zip(torch.autograd.grad(loss_of(ours, 0.5), leaves), theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def peak_elements(tokens: int, chunk_tokens: int, entropy_gradient: bool) -> float:
    """Most fp32 numbers allocated at a time by forward and backward pass, by the allocator's own record."""
    hidden_TH, target_T, layer = inputs(tokens, torch.float32)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        scores = score_targets(
            hidden_TH,
            target_T,
            layer,
            temperature=0.7,
            chunk_tokens=chunk_tokens,
            entropy_gradient=entropy_gradient,
        )
        loss_of(scores, 0.5 * entropy_gradient).backward()
    assert recorded.profiler is not None
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() / 4 for event in sorted(events, key=lambda event: event.start_ns())]
    return max(accumulate(changes))


@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_peak_memory_is_that_of_one_chunk_however_many_tokens_there_are(entropy_gradient: bool) -> None:
    one = peak_elements(16, 16, entropy_gradient)
    assert one < 6 * 16 * VOCABULARY
    assert peak_elements(128, 16, entropy_gradient) < 1.5 * one
    assert peak_elements(128, 128, entropy_gradient) > 7 * one


@pytest.mark.parametrize("count", [64, 60])
def test_between_the_passes_one_chunks_log_probabilities_are_kept_and_no_others(count: int) -> None:
    hidden_TH, target_T, layer = inputs(count)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        score_targets(hidden_TH, target_T, layer, temperature=1.0, chunk_tokens=8)
    del kept[layer.weight.untyped_storage().data_ptr()]
    assert [elements for elements in kept.values() if elements >= VOCABULARY] == [8 * VOCABULARY]


@pytest.mark.parametrize(("count", "calls"), [(0, 3), (3, 3), (8, 3), (20, 3), (24, 3)])
def test_all_ranks_call_the_output_layer_equally_often_whatever_they_have(count: int, calls: int) -> None:
    """The rank with most has 20 tokens, or this one has more. Forward, and once more for all chunks but the last."""
    hidden_TH, target_T, layer = inputs(24)
    sizes: list[int] = []
    layer.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    scores = score_targets(hidden_TH[:count], target_T[:count], layer, temperature=1.0, chunk_tokens=8, most_tokens=20)
    assert len(sizes) == calls
    assert sizes[-1] == min(count, 8)
    scores.logp_T.sum().backward()
    assert len(sizes) == 2 * calls - 1


def test_half_precision_logits_are_raised_to_fp32() -> None:
    hidden_TH, target_T, layer = inputs(5, torch.bfloat16)
    scores = score_targets(hidden_TH, target_T, layer, temperature=0.7, chunk_tokens=2)
    assert scores.logp_T.dtype == scores.entropy_T.dtype == torch.float32
    wanted = target_logp(log_softmax(layer(hidden_TH).float(), 0.7), target_T)
    torch.testing.assert_close(scores.logp_T, wanted, rtol=1e-6, atol=1e-6)
    scores.logp_T.sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.bfloat16


def test_a_pass_without_tokens_is_an_exact_zero_with_a_gradient() -> None:
    hidden_TH, target_T, layer = inputs(4)
    scores = score_targets(hidden_TH[:0], target_T[:0], layer, temperature=1.0, chunk_tokens=8)
    total = scores.logp_T.sum()
    assert total.item() == 0.0
    total.backward()
    for leaf in (hidden_TH, layer.weight):
        assert leaf.grad is not None
        assert not leaf.grad.any()


def test_a_token_that_cannot_occur_adds_nothing_to_the_entropy() -> None:
    logits_TV = torch.tensor([[0.0, 0.0, -math.inf]])
    scores = score_targets(logits_TV, torch.tensor([1]), nn.Identity(), temperature=1.0, chunk_tokens=8)
    assert scores.entropy_T.item() == pytest.approx(math.log(2))
    assert scores.logp_T.item() == pytest.approx(-math.log(2))


def test_not_a_number_stays_visible() -> None:
    logits_TV = torch.tensor([[0.0, math.nan]])
    scores = score_targets(logits_TV, torch.tensor([0]), nn.Identity(), temperature=1.0, chunk_tokens=8)
    assert math.isnan(scores.logp_T.item())
    assert math.isnan(scores.entropy_T.item())
