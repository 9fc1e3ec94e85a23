"""Settings of the two optimizers, and how DeepSpeed is told about them.

SFT: DeepSpeed's Muon at ZeRO stage 0. It orthogonalizes the update of the layers' matrices and hands
embeddings and norms to an Adam of its own; at ZeRO 1 its first steps learned far worse (loss 2.7 against
1.2 after 15 steps). RL: AdamW at ZeRO stage 1. Both Adams are torch's: one implementation to compare with,
and nothing to compile. Leaves out schedules: a stage gives every update its factor of the rates.
"""

from dataclasses import dataclass
from typing import Any, Literal

from engine.contract.job import RlStage, SftStage

ALWAYS = {
    "train_micro_batch_size_per_gpu": 1,  # a number that DeepSpeed wants; micro-batches are cut by tokens
    "gradient_accumulation_steps": 1,  # DeepSpeed divides losses by it; ours are normalised
    "managed_gradient_accumulation": False,  # step() is the boundary after any number of them
    "steps_per_print": 10**9,
}


@dataclass(frozen=True, slots=True)
class SftOptim:
    """Muon for the layers' matrices, Adam for the rest. Rates are the base that ``lr_scale`` multiplies."""

    learning_rate: float
    muon_learning_rate: float
    momentum: float = 0.95
    betas: tuple[float, float] = (0.9, 0.98)
    max_grad_norm: float = 1.0
    temperature: float = 1.0
    kind: Literal["SFT"] = "SFT"

    @classmethod
    def of(cls, stage: SftStage) -> "SftOptim":
        return cls(stage.learning_rate, stage.muon_learning_rate)

    def deepspeed(self) -> dict[str, Any]:
        """DeepSpeed finds the layers' matrices by shape and by no ``embed`` or ``lm_head`` in the name."""
        params = {
            "muon_lr": self.muon_learning_rate,
            "adam_lr": self.learning_rate,
            "momentum": self.momentum,
            "betas": list(self.betas),
            "weight_decay": 0.0,
            "torch_adam": True,
        }
        return _config("Muon", params, stage=0, max_grad_norm=self.max_grad_norm)


@dataclass(frozen=True, slots=True)
class RlOptim:
    """AdamW, and the constants of the clipped objective.

    ``truncated_weight`` weighs tokens with min(pi_old / pi_sampler, 2): for sampler and learner that differ
    (bf16). In fp32 they agree to 1e-5, and it stays off.
    """

    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.95)
    clip_low: float = 0.2
    clip_high: float = 0.28
    temperature: float = 1.0
    max_grad_norm: float = 1.0
    truncated_weight: bool = False
    kind: Literal["RL"] = "RL"

    @classmethod
    def of(cls, stage: RlStage) -> "RlOptim":
        return cls(
            learning_rate=stage.learning_rate,
            betas=stage.betas,
            clip_low=stage.clip_low,
            clip_high=stage.clip_high,
            temperature=stage.temperature,
            max_grad_norm=stage.max_grad_norm,
        )

    def deepspeed(self) -> dict[str, Any]:
        params = {
            "lr": self.learning_rate,
            "betas": list(self.betas),
            "weight_decay": 0.0,
            "torch_adam": True,
        }
        return _config("AdamW", params, stage=1, max_grad_norm=self.max_grad_norm)


def _config(optimizer: str, params: dict[str, Any], *, stage: int, max_grad_norm: float) -> dict[str, Any]:
    return {
        **ALWAYS,
        "optimizer": {"type": optimizer, "params": params},
        "gradient_clipping": max_grad_norm,
        "zero_optimization": {"stage": stage},
    }
