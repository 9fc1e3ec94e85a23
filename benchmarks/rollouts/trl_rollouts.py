"""Runs in TRL's environment: the rollout phase of ``GRPOTrainer`` with a tool, once for each line on standard input.

Nothing of TRL is replaced: it renders the conversation with the template that we give its tokenizer (our protocol), it
samples with its own generation on the CPU, parses calls with its own schema for Qwen3, runs ``wait`` in its own tool
loop. Timed is ``_generate``: its generation and its tools, no scoring. ``wait`` is synchronous: an asynchronous tool is
gathered with the others of its own turn only, and each turn has one call.
"""

import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from typing import Any

from benchmarks.rollouts.waits import wait as wait_for
from benchmarks.rollouts.waits import workers

TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{{ '<|im_start|>user\\n<tool_response>' + message.content + '</tool_response><|im_end|>\\n' }}
{%- else -%}
{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] -%}
{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""
"""Our protocol (``engine.data.protocol``) as a chat template; the system prompt comes as a message."""


def serve() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # TRL prints
    order = json.loads(sys.stdin.readline())
    with tempfile.TemporaryDirectory() as folder, workers() as pool:
        arm = Arm(order, folder, pool)
        settings = {name: version(name) for name in ("trl", "transformers", "torch")}
        print(json.dumps({**settings, **arm.settings()}), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(arm.phase(**json.loads(line))), file=answers, flush=True)


class Arm:
    """TRL's trainer and the tool that it is given."""

    def __init__(self, order: Mapping[str, Any], folder: str, pool: ProcessPoolExecutor) -> None:
        self.order = order
        self.kind = "none"
        self.trainer = make_trainer(order, folder, self.tool(pool))

    def tool(self, pool: ProcessPoolExecutor) -> Any:
        def wait(turn: str) -> str:
            """Wait, then say which turn it was.

            Args:
                turn: Which turn it is.
            """
            wait_for(self.kind, pool)
            return turn

        return wait

    def settings(self) -> dict[str, Any]:
        chosen = ("use_vllm", "use_transformers_continuous_batching", "max_tool_calling_iterations", "temperature")
        return {name: getattr(self.trainer.args, name) for name in chosen} | {"tool": "synchronous"}

    def phase(self, rollouts: int, kind: str) -> dict[str, Any]:
        """Seconds of one rollout phase, and what came out of it."""
        self.kind = kind
        given = [row for row in range(rollouts // self.order["group"]) for _ in range(self.order["group"])]
        batch = [{"prompt": self.prompt(self.order["problems"][row])} for row in given]
        made = self.trainer._generate_and_score_completions(batch)
        prompt = made["prompt_ids"][0][made["prompt_mask"][0].bool()].tolist()
        completion = made["completion_ids"][0][made["completion_mask"][0].bool()].tolist()
        return {
            "wall_s": self.trainer.seconds,
            "sampled_tokens": int((made["tool_mask"] * made["completion_mask"]).sum()),
            "response_tokens": int(made["completion_mask"].sum()),
            "calls": self.trainer.calls,
            "first": [prompt, completion],
        }

    def prompt(self, problem: str) -> list[dict[str, str]]:
        return [{"role": "system", "content": self.order["system"]}, {"role": "user", "content": problem}]


def make_trainer(order: Mapping[str, Any], folder: str, tool: Any) -> Any:
    import torch
    from datasets import Dataset  # type: ignore[import-not-found]
    from transformers import PreTrainedTokenizerFast
    from transformers.utils.logging import disable_progress_bar
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]
    from trl.chat_template_utils import add_response_schema, qwen3_chat_template  # type: ignore[import-not-found]

    disable_progress_bar()
    warnings.filterwarnings("ignore", message="TRL currently supports vLLM")  # which is not used here
    torch.set_num_threads(1)

    class Timed(GRPOTrainer):  # type: ignore[misc]
        """TRL's trainer with a clock at its rollout phase."""

        def _generate(self, prompts: list[Any]) -> Any:
            began = time.perf_counter()
            made = super()._generate(prompts)
            self.seconds = time.perf_counter() - began
            return made

        def _tool_call_loop(self, *given: Any) -> Any:
            made = super()._tool_call_loop(*given)
            self.calls = made[4]
            return made

    tokenizer = PreTrainedTokenizerFast.from_pretrained(order["model"])
    tokenizer.chat_template = qwen3_chat_template  # by which TRL knows how calls look
    add_response_schema(tokenizer)
    tokenizer.chat_template = TEMPLATE
    arguments = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        report_to="none",
        gradient_checkpointing=False,
        bf16=False,
        per_device_train_batch_size=order["group"],
        num_generations=order["group"],
        max_completion_length=order["max_response_tokens"],
        max_tool_calling_iterations=order["turns"],
        temperature=order["temperature"],
        epsilon_high=0.28,
    )
    trainer = Timed(
        model=order["model"],
        reward_funcs=[lambda completions, **_: [0.0] * len(completions)],
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": "0"}]] * order["group"]}),
        processing_class=tokenizer,
        tools=[tool],
    )
    trainer.current_gradient_accumulation_steps = 1  # its training loop sets this
    trainer.model.train()
    return trainer


if __name__ == "__main__":
    os.environ.update(CI="1", HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1")  # or it would report its use
    serve()
