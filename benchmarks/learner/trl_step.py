"""Runs in TRL's environment: ``GRPOTrainer`` steps on a batch that we chose, one for each line on standard input.

Nothing of TRL is replaced: completions come from its ``rollout_func``, advantages from a reward function, its own code
pads, shuffles and splits them into micro-batches, once and untimed. Timed is what its training loop then does for one
update: ``training_step`` of every micro-batch, clipping, its default optimizer. Micro-batches have as many samples as
fit the token budget at the batch's padded width.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.update(CI="1", HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1")  # before TRL: it would report its use

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

ONCE = 10**6
"""TRL uses a generation for so many updates: what it made of ours is then made once."""


class Batch:
    """Samples as TRL wants them: prompts, completions, which completion tokens were sampled."""

    def __init__(self, samples: list[dict[str, Any]]) -> None:
        begins = [sample["trained"].index(1) for sample in samples]
        self.prompts = [sample["ids"][:begin] for sample, begin in zip(samples, begins, strict=True)]
        self.completions = [sample["ids"][begin:] for sample, begin in zip(samples, begins, strict=True)]
        self.sampled = [sample["trained"][begin:] for sample, begin in zip(samples, begins, strict=True)]
        self.advantages = [sample["advantage"] for sample in samples]

    def per_micro_batch(self, max_tokens: int) -> int:
        """Samples of one: the most that divide the batch and fit."""
        width = max(map(len, self.prompts)) + max(map(len, self.completions))
        divisors = [each for each in range(1, len(self.prompts) + 1) if len(self.prompts) % each == 0]
        return max(each for each in divisors if each == 1 or each * width <= max_tokens)

    def rollouts(self, prompts: list[str], _trainer: object) -> dict[str, Any]:
        return {
            "prompt_ids": self.prompts,
            "completion_ids": self.completions,
            "logprobs": None,
            "env_mask": self.sampled,
        }

    def rewards(self, completions: list[str], **_: object) -> list[float]:
        """The advantages: groups have a mean of 0 and are not scaled."""
        return self.advantages


def tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    words = {f"w{each}": each for each in range(vocabulary)}
    backend = Tokenizer(WordLevel(words, unk_token="w0"))
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="w1", pad_token="w0")


def make_trainer(order: Mapping[str, Any], batch: Batch, folder: str) -> Any:
    from datasets import Dataset  # type: ignore[import-not-found]
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

    number = len(batch.prompts)
    size = batch.per_micro_batch(order["max_tokens"])
    arguments = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        report_to="none",
        gradient_checkpointing=False,
        bf16=False,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=number // size,
        num_generations=2,
        num_iterations=ONCE,
        max_completion_length=max(map(len, batch.completions)),
        scale_rewards="none",
        learning_rate=order["learning_rate"],
        epsilon=0.2,
        epsilon_high=0.28,
    )
    vocabulary = json.loads((Path(order["model"]) / "config.json").read_text())["vocab_size"]
    trainer = GRPOTrainer(
        model=order["model"],
        reward_funcs=[batch.rewards],
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["w0"] * number}),
        processing_class=tokenizer(vocabulary),
        rollout_func=batch.rollouts,
    )
    trainer.current_gradient_accumulation_steps = arguments.gradient_accumulation_steps  # its training loop sets this
    trainer.create_optimizer()
    trainer.model.train()
    trainer._prepare_inputs([{"prompt": "w0"}] * number)
    trainer._step = trainer.args.steps_per_generation  # past 0, where TRL would make the batch again
    return trainer


def update(trainer: Any) -> None:
    """One update, as in ``Trainer``'s training loop."""
    for _ in range(trainer.current_gradient_accumulation_steps):
        trainer.training_step(trainer.model, [], None)
    trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), trainer.args.max_grad_norm)
    trainer.optimizer.step()
    trainer.model.zero_grad()


def serve() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # TRL prints
    torch.set_num_threads(1)
    order = json.loads(sys.stdin.readline())
    with tempfile.TemporaryDirectory() as folder:
        batch = Batch(order["samples"])
        trainer = make_trainer(order, batch, folder)
        settings = {
            "samples_per_micro_batch": trainer.args.per_device_train_batch_size,
            "optimizer": type(trainer.optimizer).__name__,
            "optim": str(trainer.args.optim),
            **{name: version(name) for name in ("trl", "transformers", "torch")},
        }
        print(json.dumps(settings), file=answers, flush=True)
        for _ in sys.stdin:
            wall, cpu = time.perf_counter(), time.process_time()
            update(trainer)
            seconds = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
            print(json.dumps(seconds), file=answers, flush=True)


if __name__ == "__main__":
    serve()
