"""What an update adds up over its passes and over ranks, so that every rank reports the whole update.

Leaves out what is added (``engine.objective``) and how sums become metrics (``metrics_of`` there).
"""

import torch
from torch import Tensor

from engine.learner import distributed
from engine.objective.base import LossTerms


class Tally:
    """Sums and maxima of an update by name. They stay tensors until the end: no pass waits for its device."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._maxima: dict[str, Tensor] = {}

    def add(self, terms: LossTerms) -> None:
        """Add a pass. All passes of an update, on every rank, have the same names."""
        for name, value in {"loss": terms.sum.detach(), **terms.sums}.items():
            wide = value.to(torch.float64)
            self._sums[name] = self._sums[name] + wide if name in self._sums else wide
        for name, value in terms.maxima.items():
            self._maxima[name] = torch.maximum(self._maxima[name], value) if name in self._maxima else value

    def over_ranks(self) -> tuple[dict[str, float], dict[str, float]]:
        """Sums and maxima of the whole update, the same on every rank; ``loss`` is the sum of token losses.

        A collective. Both are empty where no rank had a pass. A NaN anywhere stays a NaN.
        """
        sums = _combined(self._sums, distributed.summed_over_ranks)
        return sums, _combined(self._maxima, distributed.largest_over_ranks)


def _combined(values: dict[str, Tensor], combine: distributed.Combine) -> dict[str, float]:
    if not values:
        return {}
    stacked = torch.stack([value.to(torch.float64) for value in values.values()])
    return dict(zip(values, combine(stacked).tolist(), strict=True))
