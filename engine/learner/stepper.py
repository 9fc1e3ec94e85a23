"""The optimizer's step through DeepSpeed: gradients of several passes, the global norm, the step that is skipped.

An engine is told which pass is the last; DeepSpeed otherwise counts. At ZeRO 1 to 3 its optimizers take the norm over
all ranks and skip by themselves when that is not finite, leaving weights and moments alone. At ZeRO 0 there is a bare
one, which would step on anything; that is done here. Checked over stages, number formats and ranks in
``tests/engine/learner/test_gradients.py``. Leaves out losses (``deepspeed_learner.py``) and settings (``optim.py``).
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from engine.learner.optim import Optim


class Stepper:
    """Backward passes and steps of one DeepSpeed engine; all ranks call it alike."""

    def __init__(self, engine: Any, module: nn.Module, optim: Optim) -> None:
        self._engine = engine
        self._module = module
        self._optim = optim
        self._base_rates = [float(group["lr"]) for group in engine.optimizer.param_groups]

    def expect(self, *, last: bool) -> None:
        """Say of the next pass, before its forward, whether it is the step's last one on this rank."""
        self._engine.set_gradient_accumulation_boundary(last)

    def backward(self, loss: Tensor) -> None:
        """Add the pass's gradient to the step's. DeepSpeed takes the mean over ranks, with the last pass at the latest.

        A loss that is not finite gets a gradient of NaN: reduced over ranks, it makes all of them skip the step. An
        infinite loss alone may have a finite gradient. Multiplying by 1 changes no bit of the others.
        """
        self._engine.backward(loss * torch.where(loss.detach().isfinite(), 1.0, math.nan))

    def step(self, lr_scale: float) -> float:
        """Step with the base rates times ``lr_scale`` and forget the gradient.

        Returns its global 2-norm before clipping; NaN if it was not finite and the step was skipped.
        """
        for group, base in zip(self._engine.optimizer.param_groups, self._base_rates, strict=True):
            group["lr"] = base * lr_scale
        return self._bare_step() if self._optim.zero_stage == 0 else self._zero_step()

    def _bare_step(self) -> float:
        gradients = [weight.grad for weight in self._module.parameters() if weight.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        if not math.isfinite(norm):
            self._engine.zero_grad()
            return math.nan
        self._apply()
        return norm

    def _zero_step(self) -> float:
        self._apply()
        if self._engine.was_step_applied():
            return float(self._engine.get_global_grad_norm())
        self._forget_sums()
        return math.nan

    def _apply(self) -> None:
        # DeepSpeed marks Muon for torch.compile: 17 s of C++ at the first step for 6 ms less in each.
        with torch.compiler.set_stance("force_eager"):
            self._engine.step()

    def _forget_sums(self) -> None:
        """DeepSpeed 0.19 keeps what bf16 passes of a skipped step added up, at ZeRO 1 and 2 with offload.

        That sum is not finite, and every later step would be skipped too.
        """
        if self._optim.offload and self._optim.zero_stage < 3:
            for group in self._engine.optimizer.averaged_gradients:
                self._engine.optimizer.averaged_gradients[group] = None
