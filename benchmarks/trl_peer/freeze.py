"""Runs in TRL's environment: one GRPO batch through ``GRPOTrainer``'s own code, written down as JSON.

Nothing of TRL is replaced. Its ``rollout_func`` gives completions that we chose, a reward function their rewards; TRL
makes masks, old and reference log-probabilities and advantages of them. The weights are then moved, so that ratios
leave 1 and some are clipped, and TRL computes the loss and its gradients.

Everything that a reader needs to compute the same is in the file. Arrays of weights and gradients are base64 of
little-endian float32.
"""

import base64
import json
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.update(CI="1", HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1")  # before TRL: it would report its use

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils.logging import disable_progress_bar

COMMAND = "python -m benchmarks.trl_peer"
VOCABULARY, EOS, PAD = 32, 30, 31
GROUP, LONGEST = 4, 12
REWARDS = [1.0, 0.0, 0.0, 1.0, 0.25, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]  # three groups, the last without contrast
MOVE = 0.05
"""Standard deviation of the step between the old policy and the present one: about a quarter of tokens get clipped."""
METRICS = ("clip_ratio/region_mean", "entropy")
VARIANTS: dict[str, dict[str, Any]] = {
    "token_mean": {"loss_type": "dapo"},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "kl": {"loss_type": "dapo", "beta": 0.1},
    "entropy": {"loss_type": "dapo", "entropy_coef": 0.05},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.28},  # TRL takes the bound itself here
}


def policy() -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=64,
        initializer_range=0.2,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    torch.manual_seed(0)
    return Qwen3ForCausalLM(config).float()


def tokenizer() -> PreTrainedTokenizerFast:
    words = {f"w{each}": each for each in range(VOCABULARY)}
    backend = Tokenizer(WordLevel(words, unk_token="w0"))
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=f"w{EOS}", pad_token=f"w{PAD}")


def completions(prompts: list[str], _trainer: object) -> dict[str, Any]:
    """TRL's ``rollout_func``: prompts and completions of many lengths, each with a tool's answer in the middle."""
    luck = random.Random(0)
    prompt_ids = [[luck.randrange(EOS) for _ in range(2 + 2 * (row // GROUP))] for row in range(len(prompts))]
    lengths = [luck.randint(4, LONGEST) for _ in prompts]
    completion_ids = [[*(luck.randrange(EOS) for _ in range(length - 1)), EOS] for length in lengths]
    sampled = [[int(not 2 <= place < length // 2) for place in range(length)] for length in lengths]
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None, "env_mask": sampled}


def rewards(completions: list[str], **_: object) -> list[float]:
    return REWARDS[: len(completions)]


def trainer(options: Mapping[str, Any], folder: Path) -> Any:
    from datasets import Dataset  # type: ignore[import-not-found]
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

    policy().save_pretrained(folder)
    arguments = GRPOConfig(
        output_dir=str(folder / "out"),
        use_cpu=True,
        report_to="none",
        gradient_checkpointing=False,
        bf16=False,
        per_device_train_batch_size=len(REWARDS),
        num_generations=GROUP,
        steps_per_generation=1,
        num_iterations=2,  # so that TRL computes old log-probabilities
        max_completion_length=LONGEST,
        epsilon=0.2,
        **{"epsilon_high": 0.28, **options},
    )
    made = GRPOTrainer(
        model=str(folder),
        reward_funcs=[rewards],
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["w0"] * len(REWARDS)}),
        processing_class=tokenizer(),
        rollout_func=completions,
    )
    made.current_gradient_accumulation_steps = 1  # its training loop sets this
    made.model.train()
    return made


def move(model: torch.nn.Module) -> None:
    luck = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(MOVE * torch.randn(weight.shape, generator=luck))


def packed(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {name: base64.b64encode(each.detach().numpy().tobytes()).decode() for name, each in tensors.items()}


def rows(values: Tensor, lengths: list[int]) -> list[list[float]]:
    return [row[:length].tolist() for row, length in zip(values, lengths, strict=True)]


def run(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What goes in (the same for every variant) and what TRL makes of it."""
    with tempfile.TemporaryDirectory() as folder:
        trl = trainer(options, Path(folder))
        batch = trl._generate_and_score_completions([{"prompt": "w0"}] * len(REWARDS))
        move(trl.model)
        loss = trl.compute_loss(trl.model, batch)
        loss.backward()
    lengths = batch["completion_mask"].sum(1).tolist()
    given = {
        "config": {name: value for name, value in trl.model.config.to_dict().items() if name != "_name_or_path"},
        "weights": packed(dict(trl.model.named_parameters())),
        "prompt_ids": [
            ids[mask.bool()].tolist() for ids, mask in zip(batch["prompt_ids"], batch["prompt_mask"], strict=True)
        ],
        "completion_ids": rows(batch["completion_ids"], lengths),
        "sampled": rows(batch["tool_mask"], lengths),
        "old_logprobs": rows(batch["old_per_token_logps"], lengths),
        "rewards": REWARDS,
        "group_size": GROUP,
        "max_completion_length": LONGEST,
    }
    made = {
        "options": dict(options),
        "advantages": batch["advantages"].tolist(),
        "reference_logprobs": rows(batch["ref_per_token_logps"], lengths) if "ref_per_token_logps" in batch else [],
        "loss": loss.item(),
        "metrics": {name: values[0] for name, values in trl._metrics["train"].items() if name in METRICS},
        "gradients": packed({name: weight.grad for name, weight in trl.model.named_parameters()}),
    }
    return given, made


def main(target: Path) -> None:
    disable_progress_bar()
    warnings.filterwarnings("ignore", message="TRL currently supports vLLM")  # which is not used here
    found = {name: run(options) for name, options in VARIANTS.items()}
    (given,) = {json.dumps(each): each for each, _ in found.values()}.values()
    frozen = {
        "command": COMMAND,
        "versions": {name: version(name) for name in ("trl", "transformers", "torch")},
        **given,
        "variants": {name: made for name, (_, made) in found.items()},
    }
    target.write_text(json.dumps(frozen, indent=1) + "\n")
    print(f"written: {target} ({target.stat().st_size // 1024} KiB)")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
