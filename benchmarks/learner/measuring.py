"""Arms of one shape, one step each in every round, and the ratios of their seconds.

An arm is a step on the whole batch: forward, loss, backward, clipping, AdamW; fp32, one thread. Ratios are taken
within a round, where a busy machine slows all arms alike; told are their median and spread. Musts are those of the
project; one that is not reached is printed as such.
"""

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.learner.trl_arm import TrlArm
from benchmarks.trl_peer.process import TrlMissing
from engine.bench.architecture import Architecture
from engine.bench.batches import Lengths, describe_batch, make_batch
from engine.bench.padded_loop import LoopSettings, PaddedLoop
from engine.bench.random_model import make_random_model
from engine.bench.stopwatch import Seconds, timed
from engine.contract.resources import LearnerResources
from engine.contract.stages import RlStage
from engine.environment import prepare_environment
from engine.learner.base import Sample
from engine.learner.deepspeed_learner import DeepSpeedLearner

Step = Callable[[], Seconds]

PADDED: dict[str, tuple[Literal["random", "sorted"], Literal["every", "trained"]]] = {
    "padded, random order": ("random", "every"),
    "padded, random order, our head": ("random", "trained"),
    "padded, sorted by length": ("sorted", "every"),
}
"""Order of samples, and where the output layer is applied. Ours goes to trained tokens only; given to the padded loop
too, it leaves what packing alone does."""

MUSTS: dict[str, float | None] = {
    "padded, random order": 1.5,
    "padded, random order, our head": None,
    "padded, sorted by length": 0.95,
    "TRL trainer step": 1.5,
}
"""Least seconds of the other arm for one second of ours."""

LEARNING_RATE, MAX_GRAD_NORM = 1e-6, 1.0


@dataclass(frozen=True, slots=True)
class Shape:
    model: Architecture
    lengths: Lengths
    micro_batch_tokens: int
    rounds: int


SHAPES = {
    "demo": Shape(
        Architecture(hidden=128, layers=3, heads=4, kv_heads=4, head_size=32, ffn=384, vocabulary=1024),
        Lengths(samples=64, shortest=60, tail=90, longest=500),
        micro_batch_tokens=4096,
        rounds=5,
    ),
    "larger": Shape(
        Architecture(hidden=384, layers=4, heads=6, kv_heads=3, head_size=64, ffn=1152, vocabulary=16_384),
        Lengths(samples=16, shortest=60, tail=90, longest=500),
        micro_batch_tokens=2048,
        rounds=3,
    ),
}


def measure(python: Path | TrlMissing) -> dict[str, Any]:
    """Every shape; ``python`` is that of TRL's environment, or why there is none."""
    prepare_environment()
    torch.set_num_threads(1)
    return {name: measure_shape(shape, python) for name, shape in SHAPES.items()}


def measure_shape(shape: Shape, python: Path | TrlMissing) -> dict[str, Any]:
    """Settings, each arm's seconds, and rows of ratios."""
    batch = make_batch(shape.lengths, shape.model.vocabulary)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="starloom-bench-")))
        model = make_random_model(folder / "model", shape.model, context=shape.lengths.longest)
        arms, trl = open_arms(stack, model, shape, batch, python)
        rounds = alternate(arms, shape.rounds)
    tokens = sum(len(sample.ids) for sample in batch)
    return {
        "settings": asdict(shape) | {"parameters": shape.model.parameters, "optimizer": "AdamW", "threads": 1},
        "batch": describe_batch(batch),
        "trl": trl,
        "arms": {name: describe_arm(seconds, tokens) for name, seconds in rounds.items()},
        "ratios": [ratio_row(name, must, rounds, trl) for name, must in MUSTS.items()],
    }


# --- arms ---


def open_arms(
    stack: ExitStack, model: Path, shape: Shape, batch: list[Sample], python: Path | TrlMissing
) -> tuple[dict[str, Step], dict[str, Any]]:
    """Steps by the name of their arm, closed with ``stack``, and TRL's settings or why it is not among them."""
    device = torch.device("cpu")
    stage = RlStage(name="bench", kind="rl", steps=1, max_response_tokens=1, learning_rate=LEARNING_RATE)
    resources = LearnerResources(device="cpu", micro_batch_tokens=shape.micro_batch_tokens)
    learner = DeepSpeedLearner.for_rl(model, stage, resources)
    stack.callback(learner.close)
    arms: dict[str, Step] = {"packed": lambda: timed(lambda: learner.rl_update(batch, lr_scale=1.0), device)}
    for name, (order, scored) in PADDED.items():
        settings = LoopSettings(shape.micro_batch_tokens, LEARNING_RATE, MAX_GRAD_NORM, order=order, scored=scored)
        arms[name] = padded_step(PaddedLoop(model, settings), batch, device)
    if isinstance(python, TrlMissing):
        return arms, {"ran": False, "reason": str(python)}
    try:
        trl = stack.enter_context(TrlArm(python, model, batch, shape.micro_batch_tokens, LEARNING_RATE))
    except TrlMissing as error:
        return arms, {"ran": False, "reason": str(error)}
    return arms | {"TRL trainer step": trl.step}, {"ran": True, **trl.settings}


def padded_step(loop: PaddedLoop, batch: list[Sample], device: torch.device) -> Step:
    return lambda: timed(lambda: loop.update(batch), device)


def alternate(arms: Mapping[str, Step], rounds: int) -> dict[str, list[Seconds]]:
    """One round that does not count, then ``rounds``; the order turns, so that no arm always follows the same one."""
    names = list(arms)
    for name in names:
        arms[name]()
    seconds: dict[str, list[Seconds]] = {name: [] for name in names}
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            seconds[name].append(arms[name]())
    return seconds


# --- what it comes to ---


def describe_arm(seconds: Sequence[Seconds], tokens: int) -> dict[str, Any]:
    """``tokens`` are those of the samples: padding is none."""
    wall = statistics.median(each.wall for each in seconds)
    return {
        "median_s": wall,
        "tokens_per_s": tokens / wall,
        "wall_s": [each.wall for each in seconds],
        "cpu_s": [each.cpu for each in seconds],
    }


def ratio_row(
    name: str, must: float | None, rounds: Mapping[str, Sequence[Seconds]], trl: dict[str, Any]
) -> dict[str, Any]:
    """How many times faster ours is; ``cpu_ratio`` is that of processor time. ``reached`` is None without a must."""
    row: dict[str, Any] = {"against": name, "must": must}
    if name not in rounds:
        return row | {"ran": False, "reason": trl["reason"], "reached": False}
    pairs = list(zip(rounds[name], rounds["packed"], strict=True))
    ratios = [theirs.wall / ours.wall for theirs, ours in pairs]
    ratio = statistics.median(ratios)
    return row | {
        "ran": True,
        "ratio": ratio,
        "spread": [min(ratios), max(ratios)],
        "cpu_ratio": statistics.median(theirs.cpu / ours.cpu for theirs, ours in pairs),
        "reached": None if must is None else ratio >= must,
    }
