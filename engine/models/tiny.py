"""A tiny Qwen3 with random weights and its own tokenizer: a whole Hugging Face folder from nothing.

The architecture is the paper's base family (Qwen3), tied embeddings included, at 0.8 million parameters. Leaves out
training of either: SFT does that.
"""

import json
import random
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from engine.contract.models import TinyModel
from engine.contract.problems import ArithmeticProblems
from engine.contract.stages import PlantedErrors
from engine.data.arithmetic import make_problems
from engine.data.protocol import CONTROL_TOKENS, END, PAD, SYSTEM
from engine.data.sft_trajectories import sample_texts
from engine.data.tokenizer import save_tokenizer, train_tokenizer

TOKENIZER_PROBLEMS = 2000
# What tools answer: without these texts in its corpus the tokenizer would spell tracebacks byte by byte.
RESPONSES = (
    "  File \"main.py\", line 2, in <module>\n    print(y)\nNameError: name 'y' is not defined. Did you mean: 'x'?",
    "  File \"main.py\", line 1, in <module>\n    x=math.gcd(\nNameError: name 'math' is not defined. "
    "Did you forget to import 'math'",
    "  File \"main.py\", line 2\n    print(x\nSyntaxError: '(' was never closed",
    "  File \"main.py\", line 3, in <module>\n    print(result)\nNameError: name 'result' is not defined",
    "user\n",
    "assistant\n",
    "system\n",
)


def make_tiny_model(folder: Path, model: TinyModel, *, seed: int) -> None:
    """Write config.json, model.safetensors and the tokenizer to ``folder`` (made if missing)."""
    folder.mkdir(parents=True, exist_ok=True)
    save_tokenizer(train_tokenizer(_corpus(seed), model.vocab_size), folder)
    config = _config(model)
    torch.manual_seed(seed)
    network = Qwen3ForCausalLM(config)
    weights = {name: tensor.contiguous().clone() for name, tensor in network.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config.to_dict(), indent=2, default=str) + "\n")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": CONTROL_TOKENS.index(END)}) + "\n")


def _corpus(seed: int) -> list[str]:
    rng = random.Random(f"tokenizer/{seed}")
    problems = make_problems(rng, TOKENIZER_PROBLEMS, ArithmeticProblems().operations)
    texts = sample_texts(rng, problems, PlantedErrors())
    return [*texts, *[SYSTEM] * TOKENIZER_PROBLEMS, *list(RESPONSES) * (TOKENIZER_PROBLEMS // 4)]


def _config(model: TinyModel) -> Qwen3Config:
    config = Qwen3Config(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.ffn_size,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.heads,
        head_dim=model.hidden_size // model.heads,
        max_position_embeddings=model.context_tokens,
        tie_word_embeddings=True,
        pad_token_id=CONTROL_TOKENS.index(PAD),
        eos_token_id=CONTROL_TOKENS.index(END),
        bos_token_id=None,
        rope_theta=10_000.0,
        dtype="float32",
        architectures=["Qwen3ForCausalLM"],
    )
    return config
