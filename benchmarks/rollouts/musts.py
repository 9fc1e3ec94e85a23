"""What each measurement must reach, told whether it did or not."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Must:
    """A bound on a figure; ``unit`` is ``x`` for ratios."""

    name: str
    bound: float
    sense: Literal["at least", "at most"] = "at least"
    unit: str = "x"

    def judge(self, value: float | None, reason: str = "") -> dict[str, Any]:
        """The row for the results. None is a figure that was not measured, for ``reason``: that reaches nothing."""
        row: dict[str, Any] = {"name": self.name, "must": f"{self.sense} {self.bound:g} {self.unit}", "value": value}
        if value is None:
            return row | {"reached": False, "reason": reason}
        return row | {"reached": value >= self.bound if self.sense == "at least" else value <= self.bound}


def ratio(slower: Sequence[float], faster: Sequence[float]) -> dict[str, Any]:
    """Median and spread of the ratios within rounds: a busy machine slows both arms of a round alike."""
    ratios = [one / other for one, other in zip(slower, faster, strict=True)]
    return {"ratio": statistics.median(ratios), "spread": [min(ratios), max(ratios)], "rounds": len(ratios)}


def turned(names: Sequence[str], number: int) -> list[str]:
    """The order of arms in round ``number``: none always follows the same one."""
    turn = number % len(names)
    return [*names[turn:], *names[:turn]]
