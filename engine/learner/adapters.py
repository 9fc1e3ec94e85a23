"""Low-rank adapters (LoRA, arXiv 2106.09685) inside a model's blocks, and their product merged into its weights.

For a frozen weight W [out, in] two small ones are trained, A [r, in] and B [out, r]; the layer computes with
W + (alpha / r) B A, and that is what is served and exported. B starts at 0, so that nothing changes before the first
update. peft puts them in; its layers keep W under the name ``base_layer``. Leaves out embeddings and the output layer.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from engine.contract.stages import Lora

SEED = 0
"""A's first values are the same on every rank: under ZeRO-3 nothing else would make them so."""

BASE, A, B = ".base_layer.", ".lora_A.default.", ".lora_B.default."
"""What peft puts into names of parameters."""


def add_adapters(model: nn.Module, lora: Lora) -> None:
    """Put adapters on all linear layers of the blocks of a transformers model and freeze everything else."""
    from peft import LoraConfig, inject_adapter_in_model  # takes seconds to import

    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # peft says int and only divides it
        target_modules="all-linear",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        inject_adapter_in_model(config, model)


class Weight(NamedTuple):
    """One weight of the served model by its Hugging Face name; ``a`` and ``b`` where it has adapters."""

    name: str
    base: Tensor
    a: Tensor | None = None
    b: Tensor | None = None

    @property
    def parts(self) -> list[Tensor]:
        return [part for part in (self.base, self.a, self.b) if part is not None]

    def merged(self, scaling: float) -> Tensor:
        """W + scaling B A, detached, in W's number format but computed in fp32 at least. W stays as it is."""
        if self.a is None or self.b is None:
            return self.base.detach()
        wide = torch.promote_types(self.base.dtype, torch.float32)
        base, a, b = (part.detach().to(wide) for part in (self.base, self.a, self.b))
        return base.addmm(b, a, alpha=scaling).to(self.base.dtype)


def served_weights(model: nn.Module) -> Iterator[Weight]:
    """Weights as a model without adapters names them, in the order of its ``state_dict``; tied ones once a name."""
    state = model.state_dict(keep_vars=True)  # the parameters themselves: under ZeRO-3 they know how to be gathered
    for key, weight in state.items():
        if BASE in key:
            yield Weight(
                key.replace(BASE, "."), weight, state.get(key.replace(BASE, A)), state.get(key.replace(BASE, B))
            )
        elif A not in key and B not in key:
            yield Weight(key, weight)
