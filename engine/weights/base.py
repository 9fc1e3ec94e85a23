"""The seam between learner and rollout engines: how new weights get from one to the others.

Two ways, chosen by the recipe: ``broadcast_link.py`` through a process group, ``file_link.py`` through files. The first
falls back to the second.
"""

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Protocol, TypeVar

from engine.learner.base import Learner

HEAD = "lm_head.weight"

T = TypeVar("T")


class LearnerThread(Protocol):
    """Runs a learner's blocking calls, one at a time and in the order in which they are asked for."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]: ...


class TakesWeights(Protocol):
    """What is given a folder of weights: a pool of engines, or one engine."""

    async def load_weights(self, folder: Path, version: int) -> None: ...


class IncompleteWeights(Exception):
    """Weights that would leave a part of the old ones in place, without any error from the engine."""


class WeightLink(Protocol):
    """Publishes weights; one at a time."""

    async def publish(self, learner: Learner, version: int) -> None:
        """Return when the engines serve the learner's present weights as ``version``.

        Raises ``EngineUnavailable`` when no engine is left, ``IncompleteWeights``, and what the learner raises.
        """

    async def close(self) -> None:
        """Leave no copy. May be called twice."""


def refuse_without_head(names: Iterable[str], source: str) -> None:
    """Raise ``IncompleteWeights`` unless ``names`` hold the output layer.

    On CPU vLLM keeps a prepacked copy of it. New weights that do not name it (what ``save_pretrained`` writes for tied
    embeddings) leave the old one in place without an error, and the run then trains on samples of a policy that is half
    a step old.
    """
    names = list(names)
    if not any(name == HEAD or name.endswith(f".{HEAD}") for name in names):
        raise IncompleteWeights(
            f"{source} {len(names)} tensors without {HEAD}: an engine would keep its old head."
            " With tied embeddings write the tied tensor under both names"
        )
