"""Random tokens for the formulas, as plain lists for loops and as tensors for what is tested; all in float64."""

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.objective.base import Tokens

CLOSE: dict[str, Any] = {"rel": 1e-12, "abs": 1e-12}
SEEDS = range(5)


def f64(values: list[float], *, grad: bool = False) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


@dataclass
class Drawn:
    """Tokens with ratios on both sides of the clip range, weights on both sides of the cap, advantages of all signs."""

    logp: list[float]
    old: list[float]
    sampler: list[float]
    reference: list[float]
    entropy: list[float]
    advantage: list[float]
    after_tool: list[bool]

    @classmethod
    def of(cls, seed: int, tokens: int = 60) -> "Drawn":
        luck = random.Random(seed)
        logp = [-3 * luck.random() for _ in range(tokens)]
        old = [value + luck.gauss(0, 0.3) for value in logp]
        return cls(
            logp=logp,
            old=old,
            sampler=[value + luck.gauss(0, 0.6) for value in old],
            reference=[value + luck.gauss(0, 1) for value in logp],
            entropy=[3 * luck.random() for _ in range(tokens)],
            advantage=[luck.choice([0.0, luck.gauss(0, 1)]) for _ in range(tokens)],
            after_tool=[luck.random() < 0.3 for _ in range(tokens)],
        )

    def tokens(self, part: slice = slice(None)) -> Tokens:
        """With a gradient for the policy's log-probabilities and entropies."""
        return Tokens(
            logp_T=f64(self.logp[part], grad=True),
            advantage_T=f64(self.advantage[part]),
            old_T=f64(self.old[part]),
            sampler_T=f64(self.sampler[part]),
            reference_T=f64(self.reference[part]),
            entropy_T=f64(self.entropy[part], grad=True),
            after_tool_T=torch.tensor(self.after_tool[part], dtype=torch.bool),
        )


def gradient(loss: Tensor, of: Tensor) -> list[float]:
    (gradient_T,) = torch.autograd.grad(loss, of)
    values: list[float] = gradient_T.tolist()
    return values
