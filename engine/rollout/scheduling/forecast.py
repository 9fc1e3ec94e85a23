"""What the rollouts of an engine will come to hold of its KV cache, as mean and variance over the tokens to come.

All that run decode in lock step, so after d more tokens the rollout i, which has kv_i tokens in the cache and g_i of
a response, holds kv_i + d if it still goes on, and nothing otherwise. With L the cumulated hazard of response lengths
and a problem's factor f known with weight w (``lengths.py``) it goes on with the chance

    p_i(d) = (1 + f (L(g_i + d) - L(g_i)) / w) ** -w.

Of an unknown problem that is S(g_i + d) / S(g_i), with S the survival over all problems. Hence

    mean(d) = sum of (kv_i + d) p_i(d)
    variance(d) = (1 + LIKENESS (m - 1)) * sum of (kv_i + d)^2 p_i(d) (1 - p_i(d)),

where m is how many siblings a rollout has on the engine, itself included: they err together. Progress comes in buckets,
f and w in classes: the sums are counts times tables, and the tables are made again only now and then. Rollouts that
wait for a tool count as if they sampled. Leaves out what to do about it (``growth.py``).
"""

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.rollout.scheduling.ledger import Ledger, Rollout
from engine.rollout.scheduling.lengths import PRIOR, LengthModel

BUCKETS: Final = 48
"""Of progress, from nothing to the longest response allowed."""

OFFSETS: Final = 32
"""Numbers of tokens to come that are looked at, from none to the longest; the nearer, the closer together."""

FACTORS: Final = np.array([0.25, 0.4, 0.65, 1.0, 1.6, 2.5])
"""Classes of f, from problems with long responses to those with short ones."""

WEIGHTS: Final = np.array([PRIOR + 0.5, PRIOR + 4, PRIOR + 16])
"""Classes of w, from problems of which nothing is known to well known ones."""

LIKENESS: Final = 0.5
"""How far siblings err together; rounded up, as the lengths too were learned from siblings."""

REFIT_SHARE: Final = 1 / 32
"""New lengths, as a share of the rollouts in flight, after which the tables are made again."""

_FACTOR_EDGES: Final = np.sqrt(FACTORS[1:] * FACTORS[:-1])
_WEIGHT_EDGES: Final = np.sqrt(WEIGHTS[1:] * WEIGHTS[:-1])


class Forecast:
    """The tables; ``refresh`` before use. One for all engines."""

    def __init__(self, lengths: LengthModel) -> None:
        self.lengths = lengths
        self.edition = 0
        """Goes up when the tables are made again."""
        self._horizon = 0
        self._known = 0
        self._width = 1.0
        self._classes = np.zeros(0, dtype=np.int64)
        """Of each problem: its classes of factor and weight in one number."""
        self._going_on = self._holding = self._squares = np.zeros((0, OFFSETS))

    def expect(self, problem: int, max_response: int) -> None:
        """A response of so many tokens is allowed, of this problem."""
        if max_response > self._horizon or problem >= len(self._classes):
            self._horizon = max(max_response, self._horizon)
            self._known = 0

    def replace(self, lengths: LengthModel) -> None:
        """Know other lengths from now on."""
        self.lengths = lengths
        self._known = 0

    def learn(self, problem: str, tokens: int, *, cut: bool) -> None:
        """One more length is known; ``cut``: by itself it would have been longer."""
        self.lengths.learn(problem, tokens, cut=cut)
        self._known -= 1

    def refresh(self, ledgers: Iterable[Ledger]) -> None:
        """Make the tables again if enough was learned since, with what all that are in flight show."""
        if self._known > 0:
            return
        busy = [ledger for ledger in ledgers if ledger.in_flight]
        self._known = max(1, int(sum(ledger.in_flight for ledger in busy) * REFIT_SHARE))
        self.edition += 1
        growing = np.concatenate([np.zeros(0), *(ledger.responses() for ledger in busy)])
        problems = np.concatenate([np.zeros(0, dtype=np.int64), *(ledger.problems() for ledger in busy)])
        self.lengths.fit(growing, problems)
        factors = np.searchsorted(_FACTOR_EDGES, self.lengths.factors)
        self._classes = factors * len(WEIGHTS) + np.searchsorted(_WEIGHT_EDGES, self.lengths.weights)
        self._tabulate(float(np.mean(np.concatenate([ledger.prompts() for ledger in busy]))) if busy else 0.0)

    def of(self, ledger: Ledger) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and variance of the tokens held, at each offset, by all in flight on an engine."""
        problems = ledger.problems()
        progress = np.minimum((ledger.responses() / self._width).astype(np.int64), BUCKETS - 1)
        rows, size = self._classes[problems] * BUCKETS + progress, len(self._going_on)
        counts = np.bincount(rows, minlength=size)
        prompts = np.bincount(rows, weights=ledger.prompts() + ledger.block_tokens / 2, minlength=size)
        siblings = np.bincount(problems)
        together = float(siblings @ siblings) / max(ledger.in_flight, 1)
        inflated = 1 + LIKENESS * max(together - 1, 0.0)
        return prompts @ self._going_on + counts @ self._holding, inflated * (counts @ self._squares)

    def of_one(self, rollout: Rollout, block_tokens: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The same for one rollout more."""
        row = self._classes[rollout.problem] * BUCKETS + min(int(rollout.response / self._width), BUCKETS - 1)
        prompt = rollout.size.prompt_tokens + block_tokens / 2
        return prompt * self._going_on[row] + self._holding[row], self._squares[row]

    def _tabulate(self, typical_prompt: float) -> None:
        """Tables of (classes and progress) x offset; ``typical_prompt`` serves for the variance only."""
        self._width = max(self._horizon, 1) / BUCKETS
        now = (np.arange(BUCKETS) + 0.5) * self._width
        then = now[:, None] + np.linspace(0, 1, OFFSETS) ** 2 * self._horizon
        passed: NDArray[np.float64] = np.subtract(self.lengths.hazard(then), self.lengths.hazard(now)[:, None])
        weights = WEIGHTS[:, None, None]
        going_on = np.exp(-weights * np.log1p(FACTORS[:, None, None, None] / weights * passed)) * (then < self._horizon)
        self._going_on = going_on.reshape(-1, OFFSETS)
        self._holding = (going_on * then).reshape(-1, OFFSETS)
        self._squares = ((then + typical_prompt) ** 2 * going_on * (1 - going_on)).reshape(-1, OFFSETS)
