"""The probability that a draw without replacement includes each item: how lucky a kept rollout was.

Exact or not at all: classes larger than ``EXACT_UP_TO`` with unequal weights get None for now, because the
exact sum runs over all subsets. (An integral over arrival times would serve them; nobody has needed it yet.)
"""

from collections.abc import Sequence

EXACT_UP_TO = 10


def inclusion_probabilities(weights: Sequence[float], drawn: int) -> list[float | None]:
    """Chance of each item to be among ``drawn`` taken one by one, in proportion to the weights left."""
    count = len(weights)
    if drawn in (0, count) or len(set(weights)) == 1:
        return [drawn / count for _ in weights]
    if count > EXACT_UP_TO:
        return [None] * count
    return [*_exact(weights, drawn)]


def _exact(weights: Sequence[float], drawn: int) -> list[float]:
    """Walk over the sets that may have been taken so far, each a bit mask with its probability."""
    taken = {0: 1.0}
    for _ in range(drawn):
        taken = _one_more(taken, weights)
    return [sum(chance for mask, chance in taken.items() if mask >> item & 1) for item in range(len(weights))]


def _one_more(taken: dict[int, float], weights: Sequence[float]) -> dict[int, float]:
    grown: dict[int, float] = {}
    for mask, chance in taken.items():
        left = [item for item in range(len(weights)) if not mask >> item & 1]
        total = sum(weights[item] for item in left)
        for item in left:
            grown[mask | 1 << item] = grown.get(mask | 1 << item, 0.0) + chance * weights[item] / total
    return grown
