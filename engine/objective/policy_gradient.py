"""What GRPO and its relatives have in common: the ratio, the sampler's weight, extra terms, metrics.

For a trained token with ratio r = pi / pi_old and behaviour policy mu (the sampler):

    loss = w policy_loss(r, A) + beta r k(pi, pi_ref) - c H(pi),      w = min(pi_old / mu, cap), detached

w is 1 unless asked for; the paper has beta = c = 0. Leaves out ``policy_loss``: that is the objective's own
(``grpo.py``, ``cispo.py``).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor

from engine.contract.stages import RlStage
from engine.objective.base import LossTerms, Tokens
from engine.objective.importance import truncated_weights
from engine.objective.kl import k3, kl_penalty
from engine.objective.ratio import log_ratio


class PolicyLoss(NamedTuple):
    """Per token: the loss, whether the clip acted, and whether a gradient is left."""

    loss_T: Tensor
    clipped_T: Tensor
    effective_T: Tensor


@dataclass(frozen=True, slots=True)
class PolicyGradient(ABC):
    """Settings as in ``RlStage``; ``cap`` is its ``sampler_weight_cap``."""

    clip_low: float = 0.2
    clip_high: float = 0.28
    sampler_weight: bool = False
    cap: float = 2.0
    kl_beta: float = 0.0
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    entropy_coef: float = 0.0

    @classmethod
    def of(cls, stage: RlStage, *, sampler_weight: bool) -> Self:
        return cls(
            clip_low=stage.clip_low,
            clip_high=stage.clip_high,
            sampler_weight=sampler_weight,
            cap=stage.sampler_weight_cap,
            kl_beta=stage.kl_beta,
            kl_estimator=stage.kl_estimator,
            entropy_coef=stage.entropy_coef,
        )

    @abstractmethod
    def policy_loss(self, tokens: Tokens, ratio_T: Tensor) -> PolicyLoss:
        """The objective's own formula, per token."""

    def __call__(self, tokens: Tokens) -> LossTerms:
        """Raises ``ValueError`` that names the setting whose log-probabilities or entropies the tokens lack."""
        ratio_T = log_ratio(tokens.logp_T, tokens.before_T).exp()
        weight_T = self._weight(tokens)
        policy = self.policy_loss(tokens, ratio_T)
        loss_T = weight_T * policy.loss_T + self._extra(tokens, ratio_T)
        sums = {
            "clip_frac": policy.clipped_T,
            "effective_tokens": policy.effective_T,
            "ratio_mean": ratio_T,
            "weight_mean": weight_T,
            "weight_capped_frac": (weight_T >= self.cap) & self.sampler_weight,
            **_distances(tokens),
            **_entropies(tokens),
        }
        return LossTerms(
            sum=loss_T.sum(),
            sums={name: each_T.detach().sum(dtype=torch.float64) for name, each_T in sums.items()},
            maxima={name: _largest(each_T) for name, each_T in {"ratio_max": ratio_T, **_gaps(tokens)}.items()},
        )

    def _weight(self, tokens: Tokens) -> Tensor:
        if not self.sampler_weight:
            return torch.ones_like(tokens.logp_T)
        sampler_T = _given(tokens.sampler_T, "sampler_weight", "log-probabilities of the sampler")
        return truncated_weights(tokens.before_T, sampler_T, cap=self.cap)

    def _extra(self, tokens: Tokens, ratio_T: Tensor) -> Tensor:
        extra_T = torch.zeros_like(ratio_T)
        if self.kl_beta:
            reference_T = _given(tokens.reference_T, "kl_beta", "log-probabilities of a reference model")
            extra_T = extra_T + self.kl_beta * kl_penalty(tokens.logp_T, reference_T, ratio_T, self.kl_estimator)
        if self.entropy_coef:
            extra_T = extra_T - self.entropy_coef * _given(tokens.entropy_T, "entropy_coef", "entropies")
        return extra_T


def _given(value_T: Tensor | None, setting: str, what: str) -> Tensor:
    if value_T is None:
        raise ValueError(f"{setting} is on, but the tokens carry no {what}")
    return value_T


def _distances(tokens: Tokens) -> dict[str, Tensor]:
    """From other policies. Each token was drawn by the sampler, so there it is KL(sampler || learner)."""
    found = {}
    if tokens.sampler_T is not None:
        found["kl_sampler"] = k3(tokens.sampler_T, tokens.before_T)
        found["logprob_gap_mean"] = (tokens.before_T - tokens.sampler_T).abs()
    if tokens.reference_T is not None:
        found["kl_reference"] = k3(tokens.logp_T, tokens.reference_T)
    return found


def _gaps(tokens: Tokens) -> dict[str, Tensor]:
    if tokens.sampler_T is None:
        return {}
    return {"logprob_gap_max": (tokens.before_T - tokens.sampler_T).abs()}


def _entropies(tokens: Tokens) -> dict[str, Tensor]:
    if tokens.entropy_T is None:
        return {}
    found = {"entropy": tokens.entropy_T}
    if tokens.after_tool_T is not None:
        found["entropy_after_tool"] = tokens.entropy_T[tokens.after_tool_T]
        found["after_tool_tokens"] = tokens.after_tool_T
    return found


def _largest(value_T: Tensor) -> Tensor:
    """Maximum of values that are not negative: 0 without any, NaN with one."""
    return torch.cat([value_T.detach(), value_T.new_zeros(1)]).max()
