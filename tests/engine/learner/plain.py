"""Small random models, samples, and the plain forward pass: one sample, no packing, transformers' own attention."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from engine.learner.base import Sample

VOCABULARY = 64
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,  # large: distributions then differ from place to place
}
MODELS = {
    "qwen3, tied": lambda: Qwen3ForCausalLM(
        Qwen3Config(**SHAPE, num_key_value_heads=4, head_dim=8, tie_word_embeddings=True)
    ),
    "qwen3, grouped": lambda: Qwen3ForCausalLM(
        Qwen3Config(**SHAPE, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True)
    ),
    "llama, untied": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, num_key_value_heads=2, tie_word_embeddings=False)),
}


def write_folder(folder: Path, name: str = "qwen3, tied") -> Path:
    """A Hugging Face folder of the model, random but the same each time."""
    torch.manual_seed(0)
    model = MODELS[name]()
    folder.mkdir()
    weights = {key: weight.clone().contiguous() for key, weight in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model.config.architectures = [type(model).__name__]
    (folder / "config.json").write_text(json.dumps(model.config.to_dict(), default=str))
    return folder


def trajectories(count: int, *, shortest: int = 6, longest: int = 30, seed: int = 0) -> list[Sample]:
    """Prompt, sampled text, tool text, sampled text, with advantages."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        length = rng.randint(shortest, longest)
        trained = [at > 2 and at not in (length // 2, length // 2 + 1) for at in range(length)]
        ids = [rng.randrange(VOCABULARY) for _ in range(length)]
        made.append(Sample(ids=ids, trained=trained, advantage=rng.choice([-1.2, -0.4, 0.6, 1.5])))
    return made


def plain_model(folder: Path, dtype: torch.dtype = torch.float64) -> torch.nn.Module:
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    return model.to(dtype).eval()


def plain_scores(model: torch.nn.Module, samples: Sequence[Sample], temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of every trained token, sample by sample and in the samples' order."""
    logp, entropy = [], []
    for sample in samples:
        logits_LV = model(input_ids=torch.tensor([list(sample.ids)])).logits[0] / temperature
        for at in (at for at, on in enumerate(sample.trained) if on):
            logp_V = torch.log_softmax(logits_LV[at - 1], dim=-1)
            logp.append(logp_V[sample.ids[at]])
            entropy.append(-(logp_V.exp() * logp_V).sum())
    return torch.stack(logp), torch.stack(entropy)


def gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def largest_error(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """Largest over weights of |ours - theirs| / |theirs| (2-norms)."""
    assert ours.keys() == theirs.keys()
    return max(((ours[name] - theirs[name]).norm() / theirs[name].norm()).item() for name in theirs)
