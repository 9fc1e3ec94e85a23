"""The model being trained: opened from a Hugging Face folder, asked for logits where needed, written back.

Leaves out models that change logits after the output layer (soft caps, scales): Qwen3 and Llama do not.
"""

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn

from engine.learner.checkpoint import ModelCard
from engine.sink.disk import replace_file


class PolicyModel(nn.Module):
    """A causal language model in fp32 that returns logits at chosen places only.

    Always in evaluation mode: with dropout the learner's probabilities would not be the sampler's. The
    output layer is applied to hidden states that predict a trained token, which is all that a loss needs;
    with a large vocabulary it is most of time and memory.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        transformers.utils.logging.disable_progress_bar()  # it would draw on the controller's terminal
        causal = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
        )
        self.causal = causal.eval()
        self._config_json = (folder / "config.json").read_bytes()

    def forward(self, ids_BL: Tensor, place_T: Tensor) -> Tensor:
        """Logits [T, V] at flat places of [B, L]."""
        hidden_BLH: Tensor = self.causal.base_model(input_ids=ids_BL, use_cache=False).last_hidden_state
        logits_TV: Tensor = self.causal.get_output_embeddings()(hidden_BLH.flatten(0, 1).index_select(0, place_T))
        return logits_TV

    def card(self) -> ModelCard:
        config: dict[str, Any] = self.causal.config.to_dict()
        shapes = {name: tuple(weight.shape) for name, weight in self.causal.named_parameters()}
        return ModelCard.of(type(self.causal).__name__, config, shapes)

    def export(self, folder: Path) -> None:
        """``config.json`` as it was read and ``model.safetensors``, each complete or as before.

        The output layer is written even where it is tied to the embedding (cloned, since the format refuses
        shared memory): vLLM on CPU keeps a packed copy of it, and a file that does not name it leaves the
        old one serving.
        """
        weights = {name: weight.detach().clone().contiguous() for name, weight in self.causal.state_dict().items()}
        replace_file(folder / "config.json", self._write_config)
        replace_file(folder / "model.safetensors", lambda path: save_file(weights, path, metadata={"format": "pt"}))

    def _write_config(self, path: Path) -> None:
        path.write_bytes(self._config_json)
