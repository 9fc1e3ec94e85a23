"""The seam between stages and whatever holds and updates the weights.

Leaves out how: ``deepspeed_learner.py``. A learner is driven by one controller, one call at a time; calls block and
belong in a thread when an event loop must stay free.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Sample:
    """One sequence to learn from: prompt and response ids together.

    ``trained[i]`` says whether the loss covers token i (never i = 0). For RL, ``logprobs`` are the sampler's for the
    same positions (0.0 where not trained) and ``advantage`` holds for all of the sample's trained tokens.
    ``old_logprobs`` are the learner's own before the step's first update; empty means that the behaviour policy of
    the ratio is the present policy itself without gradient (one update a step).
    """

    ids: Sequence[int]
    trained: Sequence[bool]
    logprobs: Sequence[float] = ()
    old_logprobs: Sequence[float] = ()
    advantage: float = 0.0


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What one optimizer step did: names and units as in ``step.finished`` metrics."""

    metrics: dict[str, float] = field(default_factory=dict)


class Learner(Protocol):
    """Weights, optimizer and schedule of one stage."""

    def sft_update(self, batch: Sequence[Sample], *, lr_scale: float, normaliser: float | None = None) -> UpdateResult:
        """One optimizer step of next-token cross-entropy over the trained tokens.

        The loss is the sum over trained tokens divided by their count in the batch, or by ``normaliser`` if given.
        ``lr_scale`` multiplies every parameter group's base learning rate.
        """
        ...

    def rl_update(self, batch: Sequence[Sample], *, lr_scale: float) -> UpdateResult:
        """One optimizer step of the clipped token-level objective, normalised by the update's trained tokens."""
        ...

    def logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        """Log-probability of every token under the present weights at the rollout temperature; position 0 is 0.0."""
        ...

    def export(self, folder: Path) -> None:
        """Write weights as a Hugging Face folder's ``model.safetensors``, the tied ``lm_head.weight`` included."""

    def save(self, folder: Path) -> None:
        """Write everything needed to go on to the bit: weights, optimizer, schedule."""

    def load(self, folder: Path) -> None:
        """Go on from ``save``. Raises ``CheckpointMismatch`` for another model, both named."""

    def close(self) -> None: ...


class CheckpointMismatch(Exception):
    """A checkpoint of another model or schema."""
