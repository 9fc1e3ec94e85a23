"""The seam between stages and whatever holds and updates the weights.

Leaves out how: ``deepspeed_learner.py`` is one rank, ``ranks.py`` several in processes of their own. A learner is
driven by one controller, one call at a time; calls block and belong in a thread when an event loop must stay free.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Sample:
    """One sequence to learn from: prompt and response ids together.

    ``trained[i]`` says whether the loss covers token i (never i = 0). For RL, ``logprobs`` are the sampler's for the
    same positions (0.0 where not trained) and ``advantage`` holds for all of the sample's trained tokens.
    ``old_logprobs`` are the learner's own before the step's first update; empty means that the behaviour policy of
    the ratio is the present policy itself without gradient (one update a step). ``reference_logprobs`` are the
    reference model's; empty without a KL term.
    """

    ids: Sequence[int]
    trained: Sequence[bool]
    logprobs: Sequence[float] = ()
    old_logprobs: Sequence[float] = ()
    reference_logprobs: Sequence[float] = ()
    advantage: float = 0.0


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What one optimizer step did: names and units as in ``step.finished`` metrics."""

    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """One tensor that rollout engines are given: its Hugging Face name, torch dtype name, shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TransferGroup:
    """A process group for weights: the learner is rank 0, the engines' workers are ranks 1 and up."""

    host: str
    port: int
    world: int
    backend: str = "gloo"


class Saving(Protocol):
    """A checkpoint that is being written behind the learner's back."""

    def wait(self) -> None:
        """Block until everything is on disk. Raises what the writing raised (``OSError`` for a full disk).

        May be called from another thread than the learner's, and again.
        """


class Learner(Protocol):
    """Weights, optimizer and schedule of one stage."""

    def sft_update(self, batch: Sequence[Sample], *, lr_scale: float, normaliser: float | None = None) -> UpdateResult:
        """One optimizer step of next-token cross-entropy over the trained tokens.

        The loss is the sum over trained tokens divided by their count in the batch, or by ``normaliser`` if given.
        ``lr_scale`` multiplies every parameter group's base learning rate.
        """
        ...

    def rl_update(self, batch: Sequence[Sample], *, lr_scale: float, normaliser: float | None = None) -> UpdateResult:
        """One optimizer step of the stage's objective, divided by the update's trained tokens or ``normaliser``."""
        ...

    def logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        """Log-probability of every token under the present weights at the rollout temperature; position 0 is 0.0."""
        ...

    def reference_logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        """The same under the reference model. Raises ``RuntimeError`` on a learner that was opened without one."""
        ...

    # --- weights for rollout engines ---

    def export(self, folder: Path) -> None:
        """Write weights as a Hugging Face folder's ``model.safetensors``, the tied ``lm_head.weight`` included."""

    def weight_specs(self) -> Sequence[WeightSpec]:
        """What ``broadcast`` sends, in that order, the tied ``lm_head.weight`` included."""
        ...

    def join_transfer(self, group: TransferGroup) -> None:
        """Be rank 0 of a process group with the engines' workers; one joined before is left. Blocks for all of them."""

    def broadcast(self) -> None:
        """Send every weight, one after the other; the engines' workers must be receiving. Blocks until all have it."""

    # --- checkpoints ---

    def save(self, folder: Path, *, model_folder: Path | None = None) -> Saving:
        """Begin to write everything needed to go on to the bit: weights, optimizer, counters, random state.

        What is written is the state at this call, whatever the learner does next; only the copy is waited for here.
        ``model_folder`` gets what ``export`` writes, from the same copy. Neither folder is made complete by a rename:
        the caller's atomic folder does that after ``wait``.
        """
        ...

    def load(self, folder: Path) -> None:
        """Go on from ``save``, also one of another number of ranks or ZeRO stage.

        Raises ``CheckpointMismatch`` for another model or schema, both named.
        """

    def close(self) -> None: ...


class CheckpointMismatch(Exception):
    """A checkpoint of another model or schema."""


def segments(flags: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Runs of True as (first, one past the last): the pieces of a trajectory that the policy sampled."""
    start: int | None = None
    for at, flag in enumerate(flags):
        if flag and start is None:
            start = at
        elif not flag and start is not None:
            yield start, at
            start = None
    if start is not None:
        yield start, len(flags)
