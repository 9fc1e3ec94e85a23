"""The model being trained: opened from a Hugging Face folder, asked for token scores, read weight by weight.

Leaves out models that change logits after the output layer (soft caps, scales): Qwen3 and Llama do not. Leaves out
the optimizer and ranks: ``deepspeed_learner.py`` wraps this module, ZeRO-3 included.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from engine.contract.stages import Lora
from engine.learner.adapters import add_adapters, served_weights
from engine.learner.attention import IMPLEMENTATION, Segments
from engine.learner.base import WeightSpec
from engine.learner.checkpoint import ModelCard
from engine.learner.head import Scores, score_targets
from engine.learner.packing import Pack
from engine.sink.disk import replace_file

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How a model is held. Fields as in ``LearnerResources`` and ``TrainedStage``; ``device`` is torch's name."""

    precision: Literal["fp32", "bf16"] = "fp32"
    device: str = "cpu"
    activation_checkpointing: bool = False
    lora: Lora | None = None
    logits_chunk_tokens: int = 4096


class PolicyModel(nn.Module):
    """A causal language model that scores chosen tokens of a packed row.

    Always in evaluation mode: with dropout the learner's probabilities would not be the sampler's. The output layer
    is applied only to hidden states that predict a trained token, which is all that a loss needs; with a large
    vocabulary it is most of time and memory. ``causal`` is the Hugging Face model, adapters inside it if there are any.
    """

    def __init__(self, folder: Path, settings: ModelSettings = ModelSettings()) -> None:
        super().__init__()
        transformers.utils.logging.disable_progress_bar()  # it would draw on the controller's terminal
        self.settings = settings
        self._config = json.loads((folder / "config.json").read_bytes())
        self.causal = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=DTYPES[settings.precision], attn_implementation=IMPLEMENTATION, local_files_only=True
        )
        if settings.lora is not None:
            add_adapters(self.causal, settings.lora)
        if settings.activation_checkpointing:
            self.causal.gradient_checkpointing_enable({"use_reentrant": False})
        self.to(settings.device)
        self.eval()

    def train(self, mode: bool = True) -> Self:
        """Evaluation mode whatever is asked for, except that transformers recomputes only layers "in training".

        Only the flag of the layers themselves is set, not that of what they contain, where dropout would be.
        """
        super().train(False)
        if self.settings.activation_checkpointing:
            for module in self.modules():
                if isinstance(module, GradientCheckpointingLayer):
                    module.training = True
        return self

    def forward(self, pack: Pack, temperature: float, entropy_gradient: bool = False) -> Scores:
        """Log-probability and entropy [T] of the trained tokens of ``pack``, which is on the model's device."""
        hidden_PH: Tensor = self.causal.base_model(
            input_ids=pack.ids_P[None],
            position_ids=pack.position_P[None],
            use_cache=False,
            segments=Segments.of(pack.bounds, pack.ids_P.device),
        ).last_hidden_state[0]
        return score_targets(
            hidden_PH.index_select(0, pack.place_T),
            pack.target_T,
            self.causal.get_output_embeddings(),
            temperature=temperature,
            chunk_tokens=self.settings.logits_chunk_tokens,
            most_tokens=pack.most_tokens,
            entropy_gradient=entropy_gradient,
        )

    # --- weights ---

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight that is served, by its Hugging Face name: whole, adapters merged, detached, one at a time.

        A tied ``lm_head.weight`` is named too: vLLM on CPU keeps a packed copy of it, and a push or file that does
        not name it leaves the old one serving. A tensor is good until the next is asked for: it is the parameter
        itself, and under ZeRO-3 gathered just for this. There all ranks must iterate, together and to the end.
        """
        lora = self.settings.lora
        for weight in served_weights(self.causal):
            with _gathered(weight.parts):
                yield weight.name, weight.merged(lora.alpha / lora.rank if lora else 0.0)

    def weight_specs(self) -> list[WeightSpec]:
        """Names, number formats and shapes of ``named_weights``, in its order."""
        return [
            WeightSpec(weight.name, str(weight.base.dtype).removeprefix("torch."), _full_shape(weight.base))
            for weight in served_weights(self.causal)
        ]

    def card(self) -> ModelCard:
        """Tells models apart by the parameters they have, adapters and their scale included."""
        lora = self.settings.lora
        adapters = f" with LoRA of rank {lora.rank} and alpha {lora.alpha:g}" if lora else ""
        config: dict[str, Any] = self.causal.config.to_dict()
        shapes = {name: _full_shape(weight) for name, weight in self.causal.named_parameters()}
        return ModelCard.of(type(self.causal).__name__ + adapters, config, shapes)

    @property
    def config_json(self) -> bytes:
        """``config.json`` as it was read, but naming the number format that the weights are written in."""
        keys = [key for key in ("dtype", "torch_dtype") if key in self._config] or ["dtype"]
        dtype = str(DTYPES[self.settings.precision]).removeprefix("torch.")
        return json.dumps(self._config | dict.fromkeys(keys, dtype), indent=2).encode() + b"\n"


def write_model(folder: Path, weights: Mapping[str, Tensor], config_json: bytes) -> None:
    """``config.json`` and ``model.safetensors`` as transformers and vLLM load them, each complete or as before.

    ``weights`` are those of ``PolicyModel.named_weights``, each in memory of its own: the format refuses shared memory.
    Raises ``OSError`` or ``SafetensorError`` (disk full).
    """

    def write_config(path: Path) -> None:
        path.write_bytes(config_json)

    replace_file(folder / "config.json", write_config)
    replace_file(folder / "model.safetensors", lambda path: save_file(dict(weights), path, metadata={"format": "pt"}))


def _gathered(weights: list[Tensor]) -> AbstractContextManager[Any]:
    """ZeRO-3 keeps a share of each weight on each rank; inside, they are whole on all of them."""
    if not any(hasattr(weight, "ds_id") for weight in weights):
        return nullcontext()
    from deepspeed.runtime.zero import GatheredParameters  # takes seconds to import

    context: AbstractContextManager[Any] = GatheredParameters(weights)
    return context


def _full_shape(weight: Tensor) -> tuple[int, ...]:
    """Under ZeRO-3 a weight that is not gathered has shape [0]."""
    return tuple(getattr(weight, "ds_shape", weight.shape))
