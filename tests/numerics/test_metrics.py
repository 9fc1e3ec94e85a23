"""Metrics of an update. With d = logp_sampler - logp_old at a token that the sampler drew:

kl_sampler = mean(exp(-d) - 1 + d)     kl_reference = mean(exp(-e) - 1 + e),  e = logp - logp_ref
logprob_gap_mean, _max: of abs(d)      effective_tokens: advantage not 0 and not clipped
"""

import math
from dataclasses import replace

import pytest

from engine.objective.base import LossTerms, Tokens
from engine.objective.grpo import Grpo
from engine.objective.metrics import metrics_of
from tests.numerics.support import CLOSE, SEEDS, Drawn, f64

CAP = 1.5


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def k3(p: list[float], q: list[float]) -> float:
    return mean([math.exp(b - a) - 1 + a - b for a, b in zip(p, q, strict=True)])


def loop(drawn: Drawn) -> dict[str, float]:
    ratios = [math.exp(logp - old) for logp, old in zip(drawn.logp, drawn.old, strict=True)]
    weights = [min(math.exp(old - sampler), CAP) for old, sampler in zip(drawn.old, drawn.sampler, strict=True)]
    gaps = [abs(old - sampler) for old, sampler in zip(drawn.old, drawn.sampler, strict=True)]
    clipped = [(a > 0 and r > 1.28) or (a < 0 and r < 0.8) for r, a in zip(ratios, drawn.advantage, strict=True)]
    reflecting = [h for h, after in zip(drawn.entropy, drawn.after_tool, strict=True) if after]
    return {
        "clip_frac": mean([float(each) for each in clipped]),
        "ratio_mean": mean(ratios),
        "ratio_max": max(ratios),
        "weight_mean": mean(weights),
        "weight_capped_frac": mean([float(each == CAP) for each in weights]),
        "kl_sampler": k3(drawn.sampler, drawn.old),
        "kl_reference": k3(drawn.logp, drawn.reference),
        "logprob_gap_mean": mean(gaps),
        "logprob_gap_max": max(gaps),
        "entropy": mean(drawn.entropy),
        "entropy_after_tool": mean(reflecting),
        "after_tool_tokens": float(len(reflecting)),
        "effective_tokens": float(sum(a != 0 and not c for a, c in zip(drawn.advantage, clipped, strict=True))),
    }


def metrics(terms: LossTerms, tokens: int) -> dict[str, float]:
    return metrics_of(terms.sums, terms.maxima, tokens)


@pytest.mark.parametrize("seed", SEEDS)
def test_metrics_are_those_of_the_loop(seed: int) -> None:
    drawn = Drawn.of(seed)
    terms = Grpo(sampler_weight=True, cap=CAP)(drawn.tokens())
    assert metrics(terms, len(drawn.logp)) == pytest.approx(loop(drawn), **CLOSE)


def test_they_carry_no_gradient() -> None:
    terms = Grpo(kl_beta=0.1, entropy_coef=0.1)(Drawn.of(0).tokens())
    assert not any(each.requires_grad for each in [*terms.sums.values(), *terms.maxima.values()])


def test_what_is_not_known_is_not_told() -> None:
    told = metrics(Grpo()(Tokens(f64([-1.0]), f64([1.0]))), 1)
    assert not {"kl_sampler", "kl_reference", "logprob_gap_mean", "logprob_gap_max", "entropy"} & told.keys()


def test_without_a_tool_response_there_is_no_entropy_behind_one() -> None:
    tokens = Drawn.of(0).tokens()
    assert tokens.after_tool_T is not None
    told = metrics(Grpo()(replace(tokens, after_tool_T=tokens.after_tool_T & False)), 60)
    assert "entropy_after_tool" not in told
    assert told["after_tool_tokens"] == 0


def test_weights_that_are_off_are_one_and_never_capped() -> None:
    told = metrics(Grpo(sampler_weight=False, cap=0.5)(Drawn.of(0).tokens()), 60)
    assert (told["weight_mean"], told["weight_capped_frac"]) == (1.0, 0.0)


def test_a_gap_that_is_no_number_stays_visible() -> None:
    terms = Grpo()(Tokens(f64([-1.0, -2.0]), f64([1.0, 1.0]), sampler_T=f64([math.nan, -2.0])))
    assert math.isnan(metrics(terms, 2)["logprob_gap_max"])


def test_the_gap_is_not_bounded() -> None:
    terms = Grpo()(Tokens(f64([0.0, 0.0]), f64([1.0, 1.0]), sampler_T=f64([-100.0, -50.0])))
    assert (metrics(terms, 2)["logprob_gap_mean"], metrics(terms, 2)["logprob_gap_max"]) == (75.0, 100.0)


def test_an_update_without_tokens_has_counts_and_maxima_but_no_means() -> None:
    told = metrics(Grpo()(Drawn.of(0).tokens(slice(0, 0))), 0)
    assert told.keys() == {"effective_tokens", "after_tool_tokens", "ratio_max", "logprob_gap_max"}
