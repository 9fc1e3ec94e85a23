"""Log-probability and entropy at temperature tau, z the logits that predict token t:

p_v = exp(z_v / tau) / sum_u exp(z_u / tau)     logp = log p_target     H = -sum_v p_v log p_v

d logp / d z_v = ([v = target] - p_v) / tau     d H / d z_v = -p_v (log p_v + H) / tau
"""

import math
import random

import pytest
import torch

from engine.objective.logprob import entropy, log_softmax, target_logp
from tests.numerics.support import CLOSE

TARGETS = [0, 6, 3, 3, 1]
LUCK = random.Random(3)
LOGITS = [[LUCK.gauss(0, 2) for _ in range(7)] for _ in TARGETS]


def softmax(row: list[float], temperature: float) -> list[float]:
    scaled = [math.exp(value / temperature) for value in row]
    return [value / sum(scaled) for value in scaled]


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.2])
def test_log_probabilities_and_their_gradient_are_those_of_the_loop(temperature: float) -> None:
    logits_TV = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    logp_T = target_logp(log_softmax(logits_TV, temperature), torch.tensor(TARGETS))
    (gradient_TV,) = torch.autograd.grad(logp_T.sum(), logits_TV)
    for t, (row, target) in enumerate(zip(LOGITS, TARGETS, strict=True)):
        p = softmax(row, temperature)
        assert logp_T[t].item() == pytest.approx(math.log(p[target]), **CLOSE)
        expected = [((v == target) - p[v]) / temperature for v in range(7)]
        assert gradient_TV[t].tolist() == pytest.approx(expected, **CLOSE)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.2])
def test_entropies_and_their_gradient_are_those_of_the_loop(temperature: float) -> None:
    logits_TV = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    entropy_T = entropy(log_softmax(logits_TV, temperature))
    (gradient_TV,) = torch.autograd.grad(entropy_T.sum(), logits_TV)
    for t, row in enumerate(LOGITS):
        p = softmax(row, temperature)
        h = -sum(x * math.log(x) for x in p)
        assert entropy_T[t].item() == pytest.approx(h, **CLOSE)
        assert gradient_TV[t].tolist() == pytest.approx([-x * (math.log(x) + h) / temperature for x in p], **CLOSE)


def test_a_token_that_cannot_occur_adds_no_entropy_and_no_nan() -> None:
    logits_TV = torch.tensor([[0.0, 0.0, -math.inf]], requires_grad=True)
    entropy_T = entropy(log_softmax(logits_TV, 1.0))
    (gradient_TV,) = torch.autograd.grad(entropy_T.sum(), logits_TV)
    assert entropy_T.item() == pytest.approx(math.log(2))
    assert gradient_TV.isfinite().all()


def test_half_precision_logits_are_raised_first() -> None:
    logits_TV = torch.tensor(LOGITS, dtype=torch.bfloat16)
    logp_TV = log_softmax(logits_TV, 1.0)
    assert logp_TV.dtype == torch.float32
    assert logp_TV.equal(log_softmax(logits_TV.float(), 1.0))


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
def test_a_temperature_that_divides_by_nothing_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature"):
        log_softmax(torch.zeros(1, 3), temperature)
