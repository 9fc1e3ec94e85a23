"""What a stage carries from step to step beside its learner; every checkpoint stores it (``state.json``, ``pending``).

Random draws need no state (``engine.randomness``) and rollouts under way are not stored: a resumed run asks the
problems that were carried over anew, by its present policy. So it is little. Leaves out storing it: ``progress.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from engine.stages.draws import Draw


@dataclass(slots=True)
class CarryOver:
    """``cursor`` counts the problems drawn so far: the place in a problem file's order. ``skips`` counts the updates
    skipped in a row, up to now. ``draws`` are those whose groups are not whole yet, ``lengths`` what the run knows of
    response lengths (``engine.rollout.scheduling.lengths``)."""

    cursor: int = 0
    skips: int = 0
    draws: list[Draw] = field(default_factory=list)
    lengths: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, pending: Mapping[str, Any]) -> Self:
        """From a checkpoint's ``pending``, also an older engine's; empty before a stage's first checkpoint."""
        return cls(
            cursor=pending.get("cursor", 0),
            skips=pending.get("skips", 0),
            draws=[Draw.of(stored) for stored in pending.get("draws", ())],
            lengths=dict(pending.get("response_lengths", {})),
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for ``json.dumps``."""
        return {
            "cursor": self.cursor,
            "skips": self.skips,
            "draws": [draw.as_dict() for draw in self.draws],
            "response_lengths": self.lengths,
        }
