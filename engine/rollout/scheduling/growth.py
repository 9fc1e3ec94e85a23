"""Admit by expected growth: the KV cache that those in flight will come to need, with a bounded chance to outgrow it.

The paper reserves for every rollout the greatest length, which few reach; engines stay half empty. Here a rollout is
admitted while, at every number d of tokens to come,

    mean(d) + z * std(d) <= KV cache of the engine,    z = the normal quantile of 1 - preemption_chance,

for all in flight and the new one (``forecast.py``). A sum of many lengths is nearly normal and surer than one length;
of few it is not, and z * std keeps more free. The chance holds for each d alone, if lengths are as they were. Whoever
fits by the paper's rule is admitted anyway, and while nothing is known of lengths nobody else does.

* Order: likely-long problems first, as their siblings tell, since a long one that begins last makes the step's tail.
* Placement: where most room is expected to be left.
* A rollout moves between two turns to an engine that holds so much less that both are better off afterwards; its
  prefix is computed again there.

Engines that were found full are looked at again when what was given back since is worth it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.rollout.scheduling.forecast import OFFSETS, Forecast
from engine.rollout.scheduling.kv_cap import fits_at_worst, free_blocks
from engine.rollout.scheduling.ledger import Ledger, Rollout
from engine.rollout.scheduling.sticky import Sticky
from engine.rollout.scheduling.waiting import LongFirst, Waiting

GRAIN: Final = 1 / 64
"""Share of an engine's KV cache that must come free before a full engine is looked at again."""

MOVE_SHARE: Final = 0.05
"""A rollout moves where, with it, less is held than here without it, by this share of what is held here."""


@dataclass(slots=True)
class _Outlook:
    """What an engine's rollouts were expected to hold when it was last looked at, and what was admitted since."""

    mean: NDArray[np.float64] = field(default_factory=lambda: np.zeros(OFFSETS))
    variance: NDArray[np.float64] = field(default_factory=lambda: np.zeros(OFFSETS))
    room: float = 0.0
    freed: int = 0
    stale: bool = True


class Growth(Sticky):
    """Expected growth within what is there."""

    def __init__(self, max_running: int, *, preemption_chance: float) -> None:
        super().__init__(max_running)
        self._z = NormalDist().inv_cdf(1 - preemption_chance)
        self._lanes = LongFirst()
        self.waiting: Waiting = self._lanes
        self._outlooks: dict[str, _Outlook] = {}
        self._all_full = False
        self._edition = -1

    def engines_changed(self, engines: Sequence[Ledger]) -> None:
        self._outlooks = {one.name: _Outlook() for one in engines}
        self._all_full = False

    def prepare(self, engines: Sequence[Ledger], forecast: Forecast) -> None:
        forecast.refresh(engines)
        if forecast.edition != self._edition:
            self._edition, self._all_full = forecast.edition, False
            self._order(forecast)
            for outlook in self._outlooks.values():
                outlook.stale = True

    def place(self, rollout: Rollout, engines: Sequence[Ledger], forecast: Forecast) -> Ledger | None:
        free = [one for one in engines if one.in_flight < self.max_running]
        if not self._all_full and free:
            self._look(engines, forecast)
            roomiest = max(free, key=lambda one: self._outlooks[one.name].room)
            if self._count(rollout, roomiest, forecast, limited=True):
                return roomiest
        safe = max(free, key=free_blocks, default=None)
        if safe and fits_at_worst(rollout, safe):
            self._count(rollout, safe, forecast, limited=False)
            return safe
        self._all_full = True
        return None

    def freed(self, ledger: Ledger, rollout: Rollout, *, finished: bool) -> None:
        if not ledger.is_open:
            return
        outlook = self._outlooks[ledger.name]
        outlook.freed += rollout.context
        if outlook.freed >= GRAIN * ledger.capacity_tokens:
            outlook.stale, self._all_full = True, False

    def stay_or_move(self, rollout: Rollout, engines: Sequence[Ledger]) -> Ledger:
        there = rollout.ledger
        assert there is not None
        most = there.taken_tokens * (1 - MOVE_SHARE) - 2 * rollout.context  # beyond that both are better off
        for one in engines:
            taken = one.taken_tokens
            if taken < most:
                there, most = one, taken
        return there

    def _look(self, engines: Sequence[Ledger], forecast: Forecast) -> None:
        """Bring outlooks up to date where more is known or much came free."""
        for one in engines:
            outlook = self._outlooks[one.name]
            if outlook.stale:
                outlook.mean, outlook.variance = forecast.of(one)
                outlook.room = one.capacity_tokens - self._peak(outlook.mean, outlook.variance)
                outlook.freed, outlook.stale = 0, False

    def _order(self, forecast: Forecast) -> None:
        """Those that wait: a problem twice as likely to go on ranks one before."""
        problems = np.fromiter(self._lanes.problems, dtype=np.int64)
        self._lanes.rank(np.log2(forecast.lengths.factors[problems]).round().astype(int).tolist())

    def _count(self, rollout: Rollout, ledger: Ledger, forecast: Forecast, *, limited: bool) -> bool:
        """Count one more in an engine's outlook; not if ``limited`` and its room is too small."""
        outlook = self._outlooks[ledger.name]
        more, more_variance = forecast.of_one(rollout, ledger.block_tokens)
        mean, variance = outlook.mean + more, outlook.variance + more_variance
        room = ledger.capacity_tokens - self._peak(mean, variance)
        if limited and room < 0:
            return False
        outlook.mean, outlook.variance, outlook.room = mean, variance, room
        return True

    def _peak(self, mean: NDArray[np.float64], variance: NDArray[np.float64]) -> float:
        return float((mean + self._z * np.sqrt(variance)).max())
