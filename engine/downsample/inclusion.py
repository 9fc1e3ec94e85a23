"""The probability that a draw without replacement includes each item: how lucky a kept rollout was.

Taking items one by one, each time in proportion to the weights left, is the same as giving item i a clock that rings
at T_i ~ Exp(w_i) and taking the first ones to ring (Efraimidis and Spirakis 2006: u^(1/w) is exp(-T)). So small
classes are summed exactly over all sets that may be taken, and larger ones need one integral over time:

    P(i is left out) = integral of w_i exp(-w_i t) P(at least ``drawn`` of the others rang before t) dt

Sums of floats use ``fsum``: plain ``sum`` gives other last bits from Python 3.12 on, and a record that was written
under one version has to be recomputed to the bit under another.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

EXACT_UP_TO = 8
"""Items up to which all sets are summed; beyond, the integral is quicker."""

NEGLIGIBLE = 1e-12
"""Probability that is left off at either end of the integral."""

SMALLEST = 1e-300
"""Least share of the largest weight that is told from none: what is smaller would overflow the times."""


def inclusion_probabilities(weights: Sequence[float], drawn: int) -> list[float]:
    """Chance of each item to be among ``drawn`` taken one by one, in proportion to the weights left.

    ``weights`` are over 0. Off by less than 1e-9 at any size.
    """
    count = len(weights)
    if drawn in (0, count) or len(set(weights)) == 1:
        return [drawn / count for _ in weights]
    largest = max(weights)
    scaled = [max(weight / largest, SMALLEST) for weight in weights]
    if drawn == 1:  # the first draw decides
        total = math.fsum(scaled)
        return [weight / total for weight in scaled]
    return _integrated(scaled, drawn) if count > EXACT_UP_TO else _exact(scaled, drawn)


def _exact(weights: Sequence[float], drawn: int) -> list[float]:
    """Walk over the sets that may have been taken so far, each a bit mask with its probability."""
    taken = {0: 1.0}
    for _ in range(drawn):
        taken = _one_more(taken, weights)
    return [math.fsum(chance for mask, chance in taken.items() if mask >> item & 1) for item in range(len(weights))]


def _one_more(taken: dict[int, float], weights: Sequence[float]) -> dict[int, float]:
    grown: dict[int, float] = {}
    for mask, chance in taken.items():
        left = [item for item in range(len(weights)) if not mask >> item & 1]
        total = math.fsum(weights[item] for item in left)
        for item in left:
            grown[mask | 1 << item] = grown.get(mask | 1 << item, 0.0) + chance * weights[item] / total
    return grown


def _integrated(weights: Sequence[float], drawn: int) -> list[float]:
    """The integral by the trapezoidal rule over the logarithm of time.

    There the integrand is analytic and falls off quickly at both ends, so the rule converges geometrically. The step
    follows the width in which the number of rung clocks passes ``drawn``, which shrinks with the root of the count.
    """
    distinct = list(dict.fromkeys(weights))  # equal weights have equal chances
    step = min(0.25, math.sqrt(1.3 / len(weights)))
    densities = list(_densities(weights, distinct, drawn, step))
    left_out = {
        weight: step * math.fsum(density[column] for density in densities) for column, weight in enumerate(distinct)
    }
    return [1.0 - left_out[weight] for weight in weights]


def _densities(weights: Sequence[float], distinct: Sequence[float], drawn: int, step: float) -> Iterator[list[float]]:
    """The integrand of each distinct weight, from the time when all clocks have rung back to when too few have."""
    moment = math.log(-math.log(NEGLIGIBLE) / min(weights))
    late = 1.0
    while late > NEGLIGIBLE:
        time = math.exp(moment)
        at_least = _at_least([-math.expm1(-weight * time) for weight in weights])
        yield [
            weight * time * math.exp(-weight * time) * _without(-math.expm1(-weight * time), at_least, drawn)
            for weight in distinct
        ]
        late = at_least[drawn]
        moment -= step


def _at_least(rung: Sequence[float]) -> list[float]:
    """P(at least c clocks have rung) for c = 0, 1, ... n, from each clock's own chance (Poisson binomial)."""
    unsure = [yes for yes in rung if yes < 1.0]  # the sure ones only shift the count, and late that is most of them
    exactly = [1.0]
    for yes in unsure:
        no = 1.0 - yes
        middle = [less * yes + same * no for less, same in pairwise(exactly)]
        exactly = [exactly[0] * no, *middle, exactly[-1] * yes]
    return [1.0] * (len(rung) - len(unsure)) + [*accumulate(reversed(exactly))][::-1]


def _without(rung: float, at_least: Sequence[float], drawn: int) -> float:
    """P(at least ``drawn`` of the others have rung): one clock with the chance ``rung`` divided out of ``at_least``.

    U(c) = (1 - p) V(c) + p V(c - 1), solved for V from the end where rounding errors do not grow.
    """
    silent = 1.0 - rung
    if rung <= 0.5:
        without = 1.0
        for chance in at_least[1 : drawn + 1]:
            without = (chance - rung * without) / silent
    else:
        without = 0.0
        for chance in at_least[:drawn:-1]:
            without = (chance - silent * without) / rung
    return without
