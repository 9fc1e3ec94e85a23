"""Which problems a later stage trains on, given how often the policy solved them (paper, section 4: stage 3)."""

from collections.abc import Sequence


def unsolved(pass_rates: Sequence[float]) -> list[int]:
    """Places of the problems that stay: only those solved in every rollout are dropped (the paper keeps 0 of k)."""
    return [place for place, rate in enumerate(pass_rates) if rate < 1.0]
