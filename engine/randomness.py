"""Random streams that are functions of their name: (seed, stage, step, ...).

Nothing random is carried from step to step, so a resumed run draws exactly what the killed one would have drawn and
no generator state has to be stored.
"""

import random


def stream(seed: int, *name: object) -> random.Random:
    """An independent generator for this place of the run."""
    return random.Random("/".join(map(str, (seed, *name))))


def uniform(seed: int, *name: object) -> float:
    """One draw in (0, 1]."""
    return 1.0 - stream(seed, *name).random()
