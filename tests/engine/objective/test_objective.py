"""The objective against loops in plain Python, gradients included, in float64 to 1e-9."""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.objective.advantage import advantages_by_group, group_advantages, spread_over_tokens
from engine.objective.importance import mean_gap, truncated_weights
from engine.objective.kl import k1, k2, k3
from engine.objective.logprob import entropy, token_logp
from engine.objective.policy_loss import policy_loss, token_mean

CLOSE: dict[str, Any] = {"rel": 1e-9, "abs": 1e-9}
T = 60
SEEDS = range(5)


def f64(values: list[float], *, grad: bool = False) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


class Batch:
    """Tokens with ratios on both sides of the clip range and weights on both sides of the cap."""

    def __init__(self, seed: int) -> None:
        luck = random.Random(seed)
        self.logp = [-3 * luck.random() for _ in range(T)]
        self.old = [value + luck.gauss(0, 0.3) for value in self.logp]
        self.sampler = [value + luck.gauss(0, 0.6) for value in self.old]
        self.advantage = [luck.gauss(0, 1) for _ in range(T)]
        self.mask = [luck.random() < 0.7 for _ in range(T)]


def reference_loss(batch: Batch, *, weighted: bool) -> tuple[float, list[float], int]:
    """The objective as the paper writes it: sum, gradient by hand, number of clipped tokens."""
    total, gradient, clipped = 0.0, [0.0] * T, 0
    for t in range(T):
        if not batch.mask[t]:
            continue
        r, a = math.exp(batch.logp[t] - batch.old[t]), batch.advantage[t]
        w = min(math.exp(batch.old[t] - batch.sampler[t]), 2.0) if weighted else 1.0
        bounded = max(1 - 0.2, min(r, 1 + 0.28)) * a
        total -= w * min(r * a, bounded)
        if bounded < r * a:
            clipped += 1
        else:
            gradient[t] = -w * r * a  # d r / d logp = r
    return total, gradient, clipped


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("weighted", [False, True])
class TestPolicyLoss:
    def test_equals_the_loop_with_its_gradient(self, seed: int, weighted: bool) -> None:
        batch = Batch(seed)
        logp_T = f64(batch.logp, grad=True)
        loss = policy_loss(
            logp_T,
            f64(batch.old),
            f64(batch.advantage),
            logp_sampler_T=f64(batch.sampler) if weighted else None,
            mask_T=torch.tensor(batch.mask),
        )
        (gradient_T,) = torch.autograd.grad(loss.sum, logp_T)
        total, gradient, clipped = reference_loss(batch, weighted=weighted)
        tokens = sum(batch.mask)
        ratios = [math.exp(batch.logp[t] - batch.old[t]) for t in range(T) if batch.mask[t]]
        assert loss.sum.item() == pytest.approx(total, **CLOSE)
        assert gradient_T.tolist() == pytest.approx(gradient, **CLOSE)
        assert loss.tokens == tokens
        assert loss.clip_frac.item() == pytest.approx(clipped / tokens)
        assert 0 < clipped < tokens
        assert loss.ratio_mean.item() == pytest.approx(sum(ratios) / tokens, **CLOSE)
        assert loss.ratio_max.item() == pytest.approx(max(ratios), **CLOSE)

    def test_is_the_same_for_any_cut_into_micro_batches_and_ranks(self, seed: int, weighted: bool) -> None:
        batch = Batch(seed)
        tokens = sum(batch.mask)

        def share(part: slice, world: int) -> float:
            loss = policy_loss(
                f64(batch.logp[part]),
                f64(batch.old[part]),
                f64(batch.advantage[part]),
                logp_sampler_T=f64(batch.sampler[part]) if weighted else None,
                mask_T=torch.tensor(batch.mask[part]),
            )
            return token_mean(loss.sum, tokens, world).item()

        whole = share(slice(None), world=1)
        micro = [share(slice(start, start + 13), world=1) for start in range(0, T, 13)]
        assert sum(micro) == pytest.approx(whole, **CLOSE)
        ranks = [share(slice(0, 7), world=2), share(slice(7, T), world=2)]
        assert sum(ranks) / 2 == pytest.approx(whole, **CLOSE)

    def test_what_stands_at_masked_places_is_irrelevant(self, seed: int, weighted: bool) -> None:
        batch = Batch(seed)

        def run(junk: float) -> tuple[float, list[float]]:
            def junked(values: list[float]) -> list[float]:
                return [value if counted else junk for value, counted in zip(values, batch.mask, strict=True)]

            logp_T = f64(junked(batch.logp), grad=True)
            loss = policy_loss(
                logp_T,
                f64(batch.old),
                f64(junked(batch.advantage)),
                logp_sampler_T=f64(junked(batch.sampler)) if weighted else None,
                mask_T=torch.tensor(batch.mask),
            )
            return loss.sum.item(), torch.autograd.grad(loss.sum, logp_T)[0].tolist()

        assert run(0.0) == run(-math.inf) == run(math.nan) == run(1e30)


class TestOneUpdateAStep:
    """Without old log-probabilities the behaviour policy is the policy itself, without gradient."""

    def test_is_the_policy_gradient(self) -> None:
        logp_T, advantage = f64([-1.0, -2.0], grad=True), [0.7, -0.3]
        loss = policy_loss(logp_T, None, f64(advantage))
        (gradient_T,) = torch.autograd.grad(loss.sum, logp_T)
        assert gradient_T.tolist() == pytest.approx([-a for a in advantage], **CLOSE)
        assert [each.item() for each in (loss.ratio_mean, loss.ratio_max, loss.clip_frac)] == [1, 1, 0]

    def test_old_log_probabilities_get_no_gradient(self) -> None:
        logp_T = f64([-1.0], grad=True)
        loss = policy_loss(logp_T, logp_T * 1.0, f64([1.0]), logp_sampler_T=logp_T * 2)
        (gradient_T,) = torch.autograd.grad(loss.sum, logp_T)
        assert gradient_T.tolist() == pytest.approx([-2.0])  # weight min(exp(1), 2), nothing through old or sampler


class TestExtremes:
    @pytest.mark.parametrize("gap", [-1e4, -200.0, 200.0, 1e4])
    @pytest.mark.parametrize("advantage", [-1.0, 1.0])
    def test_a_counted_token_with_an_absurd_ratio_stays_finite(self, gap: float, advantage: float) -> None:
        logp_T = torch.tensor([gap], requires_grad=True)
        loss = policy_loss(logp_T, torch.zeros(1), torch.tensor([advantage]), logp_sampler_T=torch.tensor([-gap]))
        (gradient_T,) = torch.autograd.grad(loss.sum, logp_T)
        assert loss.sum.isfinite()
        assert gradient_T.isfinite().all()

    @pytest.mark.parametrize("mask_T", [torch.zeros(3), torch.zeros(0)])
    def test_a_batch_without_sampled_tokens_is_a_plain_zero(self, mask_T: Tensor) -> None:
        """Ranks are padded with such batches."""
        logp_T = torch.zeros(len(mask_T), requires_grad=True)
        loss = policy_loss(logp_T, None, torch.ones(len(mask_T)), mask_T=mask_T)
        (gradient_T,) = torch.autograd.grad(loss.sum, logp_T)
        assert not gradient_T.any()
        figures = [loss.sum, loss.tokens, loss.clip_frac, loss.ratio_mean, loss.ratio_max, loss.weight_mean]
        assert [figure.item() for figure in figures] == [0.0] * 6

    @pytest.mark.parametrize(("tokens", "world"), [(0, 1), (5, 0)])
    def test_an_update_without_tokens_is_an_error_and_not_a_nan(self, tokens: int, world: int) -> None:
        with pytest.raises(ValueError, match="must be over 0"):
            token_mean(torch.zeros(()), tokens, world)


def test_capped_weights_are_reported() -> None:
    loss = policy_loss(f64([0, 0]), None, f64([1, 1]), logp_sampler_T=f64([-5, math.log(2)]))
    assert loss.weight_capped_frac == 0.5
    assert loss.weight_mean.item() == pytest.approx((2 + 0.5) / 2)


class TestAdvantages:
    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize("ddof", [0, 1])
    def test_equal_the_loop(self, seed: int, ddof: int) -> None:
        luck = random.Random(seed)
        rewards = [float(luck.random() < 0.4) for _ in range(15)] + [1.0, 0.0]
        mean = sum(rewards) / len(rewards)
        std = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - ddof))
        expected = [(reward - mean) / (std + 1e-6) for reward in rewards]
        assert group_advantages(f64(rewards), ddof=ddof).tolist() == pytest.approx(expected, **CLOSE)

    def test_without_norm_only_the_mean_is_taken_off(self) -> None:
        assert group_advantages(f64([1, 0, 0, 0]), norm="none").tolist() == [0.75, -0.25, -0.25, -0.25]

    def test_equal_rewards_give_exact_zeros_whatever_their_size(self) -> None:
        for reward in (0.1, 1 / 3, 1e9):
            assert group_advantages(torch.full((7,), reward)).tolist() == [0.0] * 7

    def test_an_empty_group_is_empty(self) -> None:
        assert group_advantages(f64([])).tolist() == []

    def test_an_unknown_norm_is_refused(self) -> None:
        with pytest.raises(ValueError, match="norm"):
            group_advantages(f64([1, 0]), norm="max")  # type: ignore[arg-type]

    def test_groups_do_not_touch_each_other(self) -> None:
        together_S = advantages_by_group(f64([1, 5, 0, 7]), ["a", "b", "a", "b"])
        assert together_S[[0, 2]].equal(group_advantages(f64([1, 0])))
        assert together_S[[1, 3]].equal(group_advantages(f64([5, 7])))

    def test_as_many_ids_as_rewards(self) -> None:
        with pytest.raises(ValueError, match="2 rewards but 1 group ids"):
            advantages_by_group(f64([1, 0]), ["a"])

    def test_tokens_get_their_own_sequences_advantage(self) -> None:
        spread_T = spread_over_tokens(f64([0.5, -2]), torch.tensor([0, 0, 1, 1, 0]), torch.tensor([1, 0, 1, 0, 1]))
        assert spread_T.tolist() == [0.5, 0.0, -2.0, 0.0, 0.5]


class TestKl:
    @pytest.mark.parametrize(
        ("estimator", "formula"),
        [
            (k1, lambda d: d),
            (k2, lambda d: d * d / 2),
            (k3, lambda d: math.exp(-d) - 1 + d),
        ],
    )
    def test_equals_its_formula(self, estimator: Callable[..., Tensor], formula: Callable[[float], float]) -> None:
        batch = Batch(0)
        kl_T = estimator(f64(batch.logp), f64(batch.old), torch.tensor(batch.mask))
        expected = [
            formula(logp - old) if counted else 0.0
            for logp, old, counted in zip(batch.logp, batch.old, batch.mask, strict=True)
        ]
        assert kl_T.tolist() == pytest.approx(expected, **CLOSE)

    def test_k1_and_k3_average_to_the_divergence(self) -> None:
        p, q = f64([0.5, 0.3, 0.2]), f64([0.2, 0.3, 0.5])
        divergence = (p * (p / q).log()).sum().item()
        for estimator in (k1, k3):
            assert (p * estimator(p.log(), q.log())).sum().item() == pytest.approx(divergence, **CLOSE)

    def test_k3_is_never_negative(self) -> None:
        assert (k3(f64(Batch(1).logp), f64(Batch(1).old)) >= 0).all()


class TestImportance:
    def test_equals_the_loop(self) -> None:
        batch = Batch(2)
        weight_T = truncated_weights(f64(batch.old), f64(batch.sampler), cap=2.0)
        expected = [min(math.exp(a - b), 2.0) for a, b in zip(batch.old, batch.sampler, strict=True)]
        assert weight_T.tolist() == pytest.approx(expected, **CLOSE)

    def test_carries_no_gradient(self) -> None:
        assert not truncated_weights(f64([-1], grad=True), f64([-2])).requires_grad

    def test_a_cap_of_nothing_is_refused(self) -> None:
        with pytest.raises(ValueError, match="cap"):
            truncated_weights(f64([0]), f64([0]), cap=0.0)

    def test_the_gap_is_not_bounded_and_is_zero_without_tokens(self) -> None:
        assert mean_gap(f64([0, 0]), f64([-100, -50]), torch.tensor([1, 1])) == 75
        assert mean_gap(f64([0]), f64([-100]), torch.tensor([0])) == 0


class TestTokenLogp:
    def logits(self) -> list[list[float]]:
        luck = random.Random(3)
        return [[luck.gauss(0, 2) for _ in range(7)] for _ in range(5)]

    @pytest.mark.parametrize("temperature", [0.6, 1.0, 1.2])
    def test_equals_the_loop_with_its_gradient(self, temperature: float) -> None:
        logits, targets = self.logits(), [0, 6, 3, 3, 1]
        logits_TV = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
        logp_T = token_logp(logits_TV, torch.tensor(targets), temperature)
        (gradient_TV,) = torch.autograd.grad(logp_T.sum(), logits_TV)
        for t, (row, target) in enumerate(zip(logits, targets, strict=True)):
            scaled = [math.exp(value / temperature) for value in row]
            p = [value / sum(scaled) for value in scaled]
            assert logp_T[t].item() == pytest.approx(math.log(p[target]), **CLOSE)
            expected = [((v == target) - p[v]) / temperature for v in range(7)]
            assert gradient_TV[t].tolist() == pytest.approx(expected, **CLOSE)

    def test_entropy_equals_the_loop(self) -> None:
        entropy_T = entropy(torch.tensor(self.logits(), dtype=torch.float64), 0.8)
        for t, row in enumerate(self.logits()):
            scaled = [math.exp(value / 0.8) for value in row]
            p = [value / sum(scaled) for value in scaled]
            assert entropy_T[t].item() == pytest.approx(-sum(x * math.log(x) for x in p), **CLOSE)

    def test_a_token_that_cannot_occur_adds_no_entropy_and_no_nan(self) -> None:
        logits_TV = torch.tensor([[0.0, 0.0, -math.inf]], requires_grad=True)
        entropy_T = entropy(logits_TV, 1.0)
        (gradient_TV,) = torch.autograd.grad(entropy_T.sum(), logits_TV)
        assert entropy_T.item() == pytest.approx(math.log(2))
        assert gradient_TV.isfinite().all()

    def test_half_precision_logits_are_raised_first(self) -> None:
        logits_TV = torch.tensor(self.logits(), dtype=torch.bfloat16)
        logp_T = token_logp(logits_TV, torch.zeros(5, dtype=torch.long), 1.0)
        assert logp_T.dtype == torch.float32
        assert logp_T.equal(token_logp(logits_TV.float(), torch.zeros(5, dtype=torch.long), 1.0))

    @pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
    def test_a_temperature_that_divides_by_nothing_is_refused(self, temperature: float) -> None:
        with pytest.raises(ValueError, match="temperature"):
            entropy(torch.zeros(1, 3), temperature)
