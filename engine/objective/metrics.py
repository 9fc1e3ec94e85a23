"""From an update's sums over tokens to its metrics, after passes and ranks were added up.

A name says what is divided by what: ``..._tokens`` is a count and stays one, ``..._after_tool`` is a mean over
``after_tool_tokens``, everything else is a mean over the update's trained tokens.
"""

from collections.abc import Mapping

from torch import Tensor


def metrics_of(
    sums: Mapping[str, Tensor | float], maxima: Mapping[str, Tensor | float], tokens: float
) -> dict[str, float]:
    """Metrics by name. A mean over no token at all is left out: 0 would be a measurement."""
    divisors = {name: _divisor(name, sums, tokens) for name in sums}
    means = {name: float(sums[name]) / divisor for name, divisor in divisors.items() if divisor}
    return means | {name: float(value) for name, value in maxima.items()}


def _divisor(name: str, sums: Mapping[str, Tensor | float], tokens: float) -> float:
    if name.endswith("_tokens"):
        return 1.0
    return float(sums["after_tool_tokens"]) if name.endswith("_after_tool") else tokens
