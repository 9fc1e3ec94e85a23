"""``python -m engine bench learner``: GRPO steps of a random-weight Qwen3, timed and weighed on one device.

The learner's packed steps are held against three things: the rate at which the device multiplies large matrices (model
FLOPs utilisation), the padded loop that one would write first, and the memory that ``engine plan`` foresees. What is
aimed at is printed beside what came out, reached or not. The arms follow one another, since a second model would show
in the first one's memory; needs a device that does nothing else. Needs no vLLM.
"""

import platform
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch

from engine.bench.architecture import Architecture
from engine.bench.batches import Lengths, describe_batch, make_batch
from engine.bench.live_memory import peak_bytes
from engine.bench.padded_loop import LoopSettings, PaddedLoop
from engine.bench.plan import plan_learner
from engine.bench.random_model import make_random_model
from engine.bench.stopwatch import Seconds, matrix_rate, timed
from engine.contract.resources import LearnerResources
from engine.contract.stages import RlStage
from engine.learner.base import Sample
from engine.learner.deepspeed_learner import DeepSpeedLearner
from engine.learner.packing import pack_batch

AIM_UTILISATION, AIM_RATIO, AIM_MEMORY = 0.40, 1.5, 0.10


@dataclass(frozen=True, slots=True)
class Scale:
    """What is trained on what; ``rounds`` steps are timed after one that is not."""

    shape: Architecture
    lengths: Lengths
    micro_batch_tokens: int
    precision: Literal["fp32", "bf16"]
    zero_stage: Literal[0, 1]
    rounds: int
    matrix: int


GPU = Scale(
    # Layers of Qwen3-1.7B, 16 of its 28: 1.1 billion parameters.
    shape=Architecture(
        hidden=2048, layers=16, heads=16, kv_heads=8, head_size=128, ffn=6144, vocabulary=151_936, tied=True
    ),
    lengths=Lengths(samples=64, shortest=300, tail=1200, longest=6000),
    micro_batch_tokens=8192,
    precision="bf16",
    zero_stage=1,
    rounds=5,
    matrix=8192,
)
CPU = Scale(
    # The demo's model.
    shape=Architecture(hidden=128, layers=3, heads=4, kv_heads=4, head_size=32, ffn=384, vocabulary=1024),
    lengths=Lengths(samples=24, shortest=60, tail=90, longest=500),
    micro_batch_tokens=2048,
    precision="fp32",
    zero_stage=0,
    rounds=3,
    matrix=1024,
)


def not_run(device: str) -> str | None:
    """Why nothing can be measured on ``device``; None if it can."""
    if device == "cuda" and not torch.cuda.is_available():
        return "torch finds no GPU on this machine"
    return None


def bench_learner(device: Literal["cpu", "cuda"], scale: Scale | None = None) -> dict[str, Any]:
    """Measure and return everything, settings included, as JSON goes. One thread on a CPU."""
    scale = scale or (GPU if device == "cuda" else CPU)
    batch = make_batch(scale.lengths, scale.shape.vocabulary)
    dtype = torch.bfloat16 if scale.precision == "bf16" else torch.float32
    with tempfile.TemporaryDirectory(prefix="starloom-bench-") as folder:
        model = make_random_model(Path(folder), scale.shape, context=scale.lengths.longest, dtype=dtype, device=device)
        torch.set_num_threads(1)
        found = {
            "ran": True,
            "machine": describe_machine(device),
            "settings": asdict(scale) | {"parameters": scale.shape.parameters, "device": device},
            "batch": describe_batch(batch),
            "matrix_flops_per_s": matrix_rate(torch.device(device), dtype, size=scale.matrix),
            "packed": measure_learner(model, scale, batch, device),
            "padded": measure_loop(model, scale, batch, device),
        }
    return found | {"aims": judge(found, scale, batch)}


def describe_machine(device: str) -> dict[str, Any]:
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU, 1 thread",
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers", "deepspeed")},
    }


# --- the arms ---


def measure_learner(model: Path, scale: Scale, batch: list[Sample], device: Literal["cpu", "cuda"]) -> dict[str, Any]:
    """Packed steps through ``DeepSpeedLearner``; their peak memory beside the planned."""
    stage = bench_stage()
    resources = LearnerResources(
        device=device,
        precision=scale.precision,
        zero_stage=scale.zero_stage,
        micro_batch_tokens=scale.micro_batch_tokens,
    )
    learner = DeepSpeedLearner.for_rl(model, stage, resources)
    try:

        def step() -> None:
            learner.rl_update(batch, lr_scale=1.0)

        seconds = time_rounds(step, scale.rounds, torch.device(device))
        peak = peak_bytes(step, torch.device(device))
    finally:
        learner.close()
    trained = max(pack.tokens for pack in pack_batch(batch, scale.micro_batch_tokens))
    planned = plan_learner(scale.shape, stage, resources, trained_places=trained)
    return describe_arm(seconds, batch) | {"peak_bytes": peak, "planned_bytes": planned.peak_bytes}


def measure_loop(model: Path, scale: Scale, batch: list[Sample], device: Literal["cpu", "cuda"]) -> dict[str, Any]:
    """The plain loop, or that the device's memory did not do for it."""
    settings = LoopSettings(
        max_tokens=scale.micro_batch_tokens,
        learning_rate=bench_stage().learning_rate,
        max_grad_norm=bench_stage().max_grad_norm,
        order="random",
        scored="every",
        bf16=scale.precision == "bf16",
        device=device,
    )
    try:
        loop = PaddedLoop(model, settings)
        seconds = time_rounds(lambda: loop.update(batch), scale.rounds, torch.device(device))
    except torch.OutOfMemoryError as error:
        return {"ran": False, "reason": f"out of memory: {error}"}
    return describe_arm(seconds, batch)


def bench_stage() -> RlStage:
    return RlStage(name="bench", kind="rl", steps=1, max_response_tokens=1, learning_rate=1e-6)


def time_rounds(step: Callable[[], object], rounds: int, device: torch.device) -> list[Seconds]:
    timed(step, device)  # the first one makes optimizer states and chooses kernels
    return [timed(step, device) for _ in range(rounds)]


def describe_arm(seconds: Sequence[Seconds], batch: Sequence[Sample]) -> dict[str, Any]:
    """Tokens are those of the samples, prompt and padding: no padding is counted."""
    walls = [each.wall for each in seconds]
    tokens = sum(len(sample.ids) for sample in batch)
    median = statistics.median(walls)
    return {"ran": True, "median_s": median, "min_s": min(walls), "max_s": max(walls), "tokens_per_s": tokens / median}


# --- what it comes to ---


def judge(found: dict[str, Any], scale: Scale, batch: Sequence[Sample]) -> list[dict[str, Any]]:
    """Each aim with what was measured; a value of None was not measured, and counts as not reached."""
    packed, padded = found["packed"], found["padded"]
    flops = scale.shape.training_flops(
        (len(sample.ids) for sample in batch), sum(sum(sample.trained) for sample in batch)
    )
    utilisation = flops / packed["median_s"] / found["matrix_flops_per_s"]
    ratio = padded["median_s"] / packed["median_s"] if padded["ran"] else None
    error = packed["planned_bytes"] / packed["peak_bytes"] - 1
    return [
        _aim("model FLOPs utilisation", utilisation, f">= {AIM_UTILISATION}", utilisation >= AIM_UTILISATION),
        _aim("padded loop's seconds / ours", ratio, f">= {AIM_RATIO}", ratio is not None and ratio >= AIM_RATIO),
        _aim("planned / measured memory - 1", error, f"within {AIM_MEMORY}", abs(error) <= AIM_MEMORY),
    ]


def _aim(name: str, value: float | None, aim: str, reached: bool) -> dict[str, Any]:
    return {"name": name, "value": value, "aim": aim, "reached": reached}
