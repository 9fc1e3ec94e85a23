"""What a stage carries from step to step beside its learner; every checkpoint stores it (``state.json``, ``pending``).

Random draws need no state (``randomness.py``) and no group is left over between steps (refill ends within its step), so
it is little. Leaves out storing it: ``progress.py``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from engine.stages.metrics import percentile

RECENT = 0.1
"""Weight of a step in the running length statistics: they look back about ten steps."""


@dataclass(slots=True)
class LengthStatistics:
    """Running mean and 95th percentile of response lengths, tokens; NaN-free, 0 before the first rollout."""

    mean: float = 0.0
    p95: float = 0.0

    def take(self, lengths: Sequence[int]) -> None:
        """Blend a step's response lengths in; the first step counts in full."""
        if not lengths:
            return
        weight = RECENT if self.mean else 1.0
        self.mean += weight * (sum(lengths) / len(lengths) - self.mean)
        self.p95 += weight * (percentile(lengths, 0.95) - self.p95)


@dataclass(slots=True)
class CarryOver:
    """``cursor`` counts the problems drawn so far: the place in a problem file's order. ``skips`` counts the updates
    skipped in a row, up to now."""

    cursor: int = 0
    skips: int = 0
    lengths: LengthStatistics = field(default_factory=LengthStatistics)

    @classmethod
    def of(cls, pending: Mapping[str, Any]) -> Self:
        """From a checkpoint's ``pending``; empty before a stage's first checkpoint."""
        lengths = LengthStatistics(**pending.get("lengths", {}))
        return cls(cursor=pending.get("cursor", 0), skips=pending.get("skips", 0), lengths=lengths)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for ``json.dumps``."""
        return asdict(self)
