"""Percentiles of measured times."""

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0 to 1) of all do not exceed. `values` may not be empty."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def p50_p99_ms(seconds: Sequence[float]) -> dict[str, float]:
    """Both in milliseconds, and of how many: below a hundred, the 99th is the slowest."""
    return {
        "p50_ms": 1000 * percentile(seconds, 0.5),
        "p99_ms": 1000 * percentile(seconds, 0.99),
        "calls": len(seconds),
    }
