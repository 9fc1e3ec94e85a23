"""A Qwen3 of any size with random weights, as a Hugging Face folder without a tokenizer: enough to time a learner."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from engine.bench.architecture import Architecture


def make_random_model(
    folder: Path,
    shape: Architecture,
    *,
    context: int,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
) -> Path:
    """Write ``config.json`` and ``model.safetensors`` to ``folder`` (made if missing) and return it.

    ``context`` is the longest sequence, tokens. Weights are drawn on ``device``: a GPU draws a billion in a moment.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.ffn,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_size,
        max_position_embeddings=context,
        tie_word_embeddings=shape.tied,
        dtype=str(dtype).removeprefix("torch."),
        architectures=["Qwen3ForCausalLM"],
    )
    torch.manual_seed(seed)
    with torch.device(device):
        network = Qwen3ForCausalLM(config).to(dtype)
    weights = {name: weight.cpu().contiguous().clone() for name, weight in network.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config.to_dict(), indent=2, default=str) + "\n")
    return folder
