"""One rank's share of the matrix of ZeRO stages and number formats: ``python -m tests.engine.learner.matrix``.

A case is a learner that makes three updates with a spoiled one behind the first. What it found is written as files, by
rank 0. Run in the test's own process for one rank, as two processes for two.
"""

import hashlib
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from engine.learner import distributed
from engine.learner.base import Sample
from engine.learner.deepspeed_learner import DeepSpeedLearner
from tests.engine.learner.support import first_gradients, resources, rl_stage, samples, state_of

LEARNING_RATE, MAX_GRAD_NORM, TEMPERATURE = 1e-3, 0.05, 0.7
PASS_TOKENS = 40
"""Of packed tokens: passes of unequal numbers of samples, and on two ranks not equally many of them."""

CHUNK_TOKENS = 7
"""Of trained tokens, fewer than a pass has: ranks differ in chunks, and at ZeRO 3 each chunk is a collective."""

SCALES = (1.0, 0.5, 1.0)


@dataclass(frozen=True)
class Case:
    precision: str
    zero_stage: int
    offload_optimizer: bool = False

    def __str__(self) -> str:
        return f"{self.precision}-zero{self.zero_stage}{'-offload' if self.offload_optimizer else ''}"


CASES = [
    *(Case(precision, stage) for precision in ("fp32", "bf16") for stage in range(4)),
    Case("fp32", 3, offload_optimizer=True),
    Case("bf16", 2, offload_optimizer=True),
]


@dataclass
class Found:
    """Of one case on one number of ranks; tensors by parameter name."""

    updates: list[dict[str, float]]
    spoiled: dict[str, float]
    changed_by_spoiled: list[str]
    logprobs: list[list[float]]
    gradients: dict[str, torch.Tensor]
    masters: dict[str, torch.Tensor]

    def write(self, folder: Path, case: Case) -> None:
        save_file(self.gradients, folder / f"{case}.gradients")
        save_file(self.masters, folder / f"{case}.masters")
        rest = {name: value for name, value in asdict(self).items() if name not in ("gradients", "masters")}
        (folder / f"{case}.json").write_text(json.dumps(rest))

    @classmethod
    def read(cls, folder: Path, case: Case) -> "Found":
        rest: dict[str, Any] = json.loads((folder / f"{case}.json").read_text())
        parts = {name: load_file(folder / f"{case}.{name}") for name in ("gradients", "masters")}
        return cls(**rest, **parts)


def batches() -> Iterator[list[Sample]]:
    """One a step; the first is the one whose gradient is compared."""
    for step in range(len(SCALES)):
        yield samples(5, seed=2 + step, rl=True)


def spoiled_batch() -> list[Sample]:
    """The longest sample is spoiled: of two ranks only one sees it, and with good passes behind it."""
    batch = next(batches())
    longest = max(range(len(batch)), key=lambda row: len(batch[row].ids))
    spoiled = replace(batch[longest], advantage=math.inf, logprobs=[math.nan] * len(batch[longest].ids))
    return [*batch[:longest], spoiled, *batch[longest + 1 :]]


def run(case: Case, model_folder: Path) -> Found:
    on = {**asdict(case), "logits_chunk_tokens": CHUNK_TOKENS}
    stage = rl_stage(learning_rate=LEARNING_RATE, max_grad_norm=MAX_GRAD_NORM, temperature=TEMPERATURE)
    learner = DeepSpeedLearner.for_rl(model_folder, stage, resources(PASS_TOKENS, **on))
    before = learner.logprobs(next(batches()))
    updates = []
    for batch, scale in zip(batches(), SCALES, strict=True):
        updates.append(learner.rl_update(batch, lr_scale=scale).metrics)
        if len(updates) == 1:
            norm = updates[0]["grad_norm"]
            gradients = {name: g * (norm / MAX_GRAD_NORM) for name, g in first_gradients(learner).items()}
            state = digests(learner)
            spoiled = learner.rl_update(spoiled_batch(), lr_scale=1.0).metrics
            after = digests(learner)
            learner.logprobs(batch)  # reading in between leaves no trace in training
    masters = {n.removeprefix("master/causal."): t for n, t in state_of(learner).items() if n.startswith("master/")}
    learner.close()
    changed = [name for name in state if state[name] != after[name]]
    return Found(updates, spoiled, changed, before, gradients, masters)


def digests(learner: DeepSpeedLearner) -> dict[str, str]:
    return {name: hashlib.sha256(t.numpy().tobytes()).hexdigest() for name, t in state_of(learner).items()}


def main(rank: str, store: str, model_folder: str, out: str) -> None:
    distributed.join(int(rank), 2, f"file://{store}")
    for case in CASES:
        found = run(case, Path(model_folder))
        if rank == "0":
            found.write(Path(out), case)


if __name__ == "__main__":
    main(*sys.argv[1:])
