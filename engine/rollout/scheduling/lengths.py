"""How long responses get: their survival, learned in this run, and how a problem differs from the others.

The chance that a response which has come to b goes on past it is estimated as Kaplan and Meier do (J. Amer. Statist.
Assoc. 53, 1958): in each bucket of lengths those that ended there against those that came so far. Rollouts that were
cut, carried over or are still growing count as far as they got. Without them the short ones, which end first, would
make every response look short.

A problem has a factor on the hazard that its siblings share (frailty; Clayton, Biometrika 65, 1978). Before anything
is known of it the factor is gamma distributed around 1 with weight k = PRIOR. Over all problems responses then survive
as S(b) = (1 + L(b) / k) ** -k, where L is the cumulated hazard at factor 1; with S from above this gives L. Once D
siblings have ended, and all together should have ended E times, the factor is gamma distributed around
(k + D) / (k + E) with weight k + D: above 1 the problem's responses are short, below 1 long, and siblings that still
grow make it fall. Leaves out engines and KV (``forecast.py``).
"""

from collections.abc import Mapping
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

BUCKETS: Final = 128
"""Buckets of equal width; it doubles when a longer response is seen."""

MEMORY: Final = 0.7
"""What a step's lengths still weigh in the next: lengths grow slowly in training."""

DOUBT: Final = 1.0
"""Responses without an end that are added to those at risk: where little was seen, the worst is assumed."""

PRIOR: Final = 2.0
"""Siblings' ends that outweigh the assumption that a problem is like any other."""

MOST_PROBLEMS: Final = 8192
"""Problems remembered in a step. A server never starts a step: it forgets all when there are more."""


class LengthModel:
    """Of one run; survives its steps. Lengths are response tokens."""

    def __init__(self) -> None:
        self._width = 1
        self._ended = np.zeros(BUCKETS)
        self._stopped = np.zeros(BUCKETS)
        self._hazard = np.zeros(BUCKETS + 1)
        self._indices: dict[str, int] = {}
        self._ends = np.zeros(64)
        self._expected = np.zeros(64)
        self.factors: NDArray[np.float64] = np.ones(64)
        """Each problem's expected factor, by index, at the last ``fit``."""
        self.weights: NDArray[np.float64] = np.full(64, PRIOR)
        """How sure that is: k + D."""

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> Self:
        """The model that ``as_dict`` described. Raises ``ValueError`` if it is none."""
        model = cls()
        ended, stopped = np.array(saved["ended"], dtype=float), np.array(saved["stopped"], dtype=float)
        if ended.shape != (BUCKETS,) or stopped.shape != (BUCKETS,) or int(saved["width"]) < 1:
            raise ValueError(f"lengths want width >= 1 and {BUCKETS} numbers in `ended` and `stopped`")
        model._width, model._ended, model._stopped = int(saved["width"]), ended, stopped
        model.fit()
        return model

    def as_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint. Problems are left out: they are known within a step only."""
        return {"width": self._width, "ended": self._ended.tolist(), "stopped": self._stopped.tolist()}

    def new_step(self) -> None:
        """Other problems, and a policy that has changed: the past weighs less."""
        self._ended *= MEMORY
        self._stopped *= MEMORY
        self._forget_problems()

    def index(self, problem: str) -> int:
        """The problem's place in ``factors``."""
        known = self._indices.get(problem)
        if known is not None:
            return known
        if len(self._indices) == MOST_PROBLEMS:
            self._forget_problems()
        index = self._indices[problem] = len(self._indices)
        if index == len(self._ends):
            self._ends = np.concatenate((self._ends, np.zeros(index)))
            self._expected = np.concatenate((self._expected, np.zeros(index)))
            self.factors = np.concatenate((self.factors, np.ones(index)))
            self.weights = np.concatenate((self.weights, np.full(index, PRIOR)))
        return index

    def learn(self, problem: str, tokens: int, *, cut: bool) -> None:
        """A response ended by itself, or was ``cut`` and would have been longer."""
        index, bucket = self.index(problem), self._bucket(tokens)
        (self._stopped if cut else self._ended)[bucket] += 1
        self._ends[index] += not cut
        self._expected[index] += self._at(tokens)

    def fit(self, growing: NDArray[np.float64] | None = None, problems: NDArray[np.int64] | None = None) -> None:
        """Estimate anew, with responses that are ``growing`` (tokens so far) and the ``problems`` that they are of."""
        if growing is None or problems is None or not len(growing):
            self._hazard = self._estimate(np.zeros(BUCKETS))
            expected = self._expected
        else:
            self._bucket(int(growing.max()))
            self._hazard = self._estimate(np.bincount((growing / self._width).astype(np.int64), minlength=BUCKETS))
            expected = self._expected + np.bincount(
                problems, weights=self.hazard(growing), minlength=len(self._expected)
            )
        self.weights = PRIOR + self._ends
        self.factors = self.weights / (PRIOR + expected)

    def hazard(self, tokens: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Cumulated hazard at factor 1 up to ``tokens``."""
        found: NDArray[np.float64] = np.interp(tokens, np.arange(BUCKETS + 1) * self._width, self._hazard)
        return found

    def _estimate(self, growing: NDArray[Any]) -> NDArray[np.float64]:
        open_ended = self._stopped + growing
        leaving = self._ended + open_ended
        came_so_far = np.cumsum(leaving[::-1])[::-1]
        at_risk = came_so_far - open_ended / 2 + DOUBT
        survived = np.cumprod(1 - self._ended / at_risk)
        return np.concatenate(([0.0], PRIOR * (survived ** (-1 / PRIOR) - 1)))

    def _at(self, tokens: int) -> float:
        where = min(tokens / self._width, BUCKETS)
        below = min(int(where), BUCKETS - 1)
        low = self._hazard[below]
        return float(low + (self._hazard[below + 1] - low) * (where - below))

    def _bucket(self, tokens: int) -> int:
        while tokens >= BUCKETS * self._width:
            self._widen()
        return tokens // self._width

    def _widen(self) -> None:
        half = BUCKETS // 2
        for counts in (self._ended, self._stopped):
            counts[:half] = counts.reshape(half, 2).sum(axis=1)
            counts[half:] = 0
        self._hazard[: half + 1] = self._hazard[::2]
        self._hazard[half + 1 :] = self._hazard[half]
        self._width *= 2

    def _forget_problems(self) -> None:
        self._indices.clear()
        self._ends[:] = 0
        self._expected[:] = 0
        self.factors = np.ones(len(self._ends))
        self.weights = np.full(len(self._ends), PRIOR)
