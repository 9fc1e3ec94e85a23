"""Settings of the optimizers, and how DeepSpeed is told about them.

AdamW is torch's: one implementation to compare with, and nothing to compile; with offload it is DeepSpeed's CPU Adam.
Muon is DeepSpeed's: it orthogonalizes the update of the layers' matrices and hands embeddings, norms and head to an
Adam of its own (torch's). Weight decay is decoupled and holds for every trained weight.

Which ZeRO stage DeepSpeed is given is not always the one asked for:

* Muon in fp32 runs at 0. At 1, DeepSpeed's shards cut through matrices that have to be orthogonalized whole: its first
  steps learned far worse (loss 2.7 against 1.2 after 15 steps).
* bf16 at 0 runs at 1, Muon too. Only from 1 on does DeepSpeed accumulate gradients in fp32 (it refuses to at 0), and
  its optimizer for bf16 at 1 puts matrices together again for Muon. One rank holds the same either way.

Muon leaves offload aside. Leaves out schedules (``schedule.py``): a learner is given each update's factor of the rates.
"""

from dataclasses import dataclass
from typing import Any, Literal

from engine.contract.resources import LearnerResources
from engine.contract.stages import TrainedStage

MOMENTUM = 0.95
"""Muon's, as in its first publication and in DeepSpeed."""

ALWAYS = {
    "train_micro_batch_size_per_gpu": 1,  # a number that DeepSpeed wants; passes are cut by tokens
    "gradient_accumulation_steps": 1,  # DeepSpeed divides losses by it; ours are normalised
    "steps_per_print": 10**9,
}

BF16 = {
    "bf16": {"enabled": True},
    "data_types": {"grad_accum_dtype": "fp32"},
    "communication_data_type": "fp32",
}
"""bf16 weights with fp32 masters; gradients are added up in fp32, over passes and over ranks."""


BUCKET = 500_000_000
"""DeepSpeed's default of ``reduce_bucket_size``."""


@dataclass(frozen=True, slots=True)
class Optim:
    """Fields as in ``TrainedStage`` and ``LearnerResources``. Rates are the base that ``lr_scale`` multiplies."""

    optimizer: Literal["adamw", "muon"]
    learning_rate: float
    muon_learning_rate: float
    betas: tuple[float, float]
    weight_decay: float
    max_grad_norm: float
    precision: Literal["fp32", "bf16"]
    zero_stage: int
    offload: bool

    @classmethod
    def of(cls, stage: TrainedStage, resources: LearnerResources) -> "Optim":
        muon = stage.optimizer == "muon"
        return cls(
            optimizer=stage.optimizer,
            learning_rate=stage.learning_rate,
            muon_learning_rate=stage.muon_learning_rate,
            betas=stage.betas,
            weight_decay=stage.weight_decay,
            max_grad_norm=stage.max_grad_norm,
            precision=resources.precision,
            zero_stage=_zero_stage(resources, muon=muon),
            offload=resources.offload_optimizer and not muon,
        )

    def rates(self, scale: float) -> dict[str, float]:
        """The rates of one update, as metrics."""
        rates = {"lr": self.learning_rate * scale}
        return rates | {"muon_lr": self.muon_learning_rate * scale} if self.optimizer == "muon" else rates

    def deepspeed(self, trained: int) -> dict[str, Any]:
        """DeepSpeed's configuration for ``trained`` parameters."""
        zero: dict[str, Any] = {"stage": self.zero_stage, "reduce_bucket_size": bucket_places(trained)}
        if self.offload:
            zero["offload_optimizer"] = {"device": "cpu"}
        return {
            **ALWAYS,
            **(BF16 if self.precision == "bf16" else {}),
            "optimizer": self._muon() if self.optimizer == "muon" else self._adamw(),
            "gradient_clipping": self.max_grad_norm,
            "zero_optimization": zero,
        }

    def _adamw(self) -> dict[str, Any]:
        return {"type": "AdamW", "params": {"lr": self.learning_rate, "torch_adam": not self.offload, **self._common()}}

    def _muon(self) -> dict[str, Any]:
        """DeepSpeed finds the layers' matrices by shape and by no ``embed`` or ``lm_head`` in the name."""
        rates = {"muon_lr": self.muon_learning_rate, "adam_lr": self.learning_rate, "momentum": MOMENTUM}
        return {"type": "Muon", "params": {"torch_adam": True, **rates, **self._common()}}

    def _common(self) -> dict[str, Any]:
        return {"betas": list(self.betas), "weight_decay": self.weight_decay}


def bucket_places(trained: int) -> int:
    """Places of the buffer that gradients are reduced in. DeepSpeed allocates all of it, however small the model."""
    return min(BUCKET, trained)


def _zero_stage(resources: LearnerResources, *, muon: bool) -> int:
    if resources.precision == "bf16":
        return 1 if muon else max(1, resources.zero_stage)
    return 0 if muon else resources.zero_stage
