"""The seam between learner and rollout engines: how new weights get from one to the others.

Leaves out the way itself: ``file_link.py`` is one, through files; another may broadcast.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

Export = Callable[[Path], None]
"""Writes weights into a folder, as ``Learner.export`` does. Blocks; is called in a thread."""


class TakesWeights(Protocol):
    """What is given the weights: a pool of engines, or one engine."""

    async def load_weights(self, folder: Path, version: int) -> None: ...


class IncompleteWeights(Exception):
    """Weights that would leave a part of the old ones in place, without any error from the engine."""


class WeightLink(Protocol):
    """Publishes weights; one at a time."""

    async def publish(self, export: Export, version: int) -> None:
        """Return when the engines serve what ``export`` writes, as ``version``."""

    async def close(self) -> None:
        """Leave no copy. May be called twice."""
