"""By utilisation, after prime-rl's concurrency control: the cap grows by a factor a turnover, a preemption cuts it.

One cap on all rollouts in flight. It starts at what the engines' KV caches hold at the greatest length, grows by
``grow`` each time as many rollouts as the cap have finished while KV use is under ``low``, and is cut to ``cut`` of
itself when an engine has preempted. An engine over ``high`` is given nothing. The least loaded engine gets the next.
What is missing of prime-rl's rule: it cancels the youngest rollouts over 0.9 KV use and does them again later; here
an engine preempts by itself.
"""

from collections.abc import Sequence

from engine.rollout.scheduling.base import EngineStats
from engine.rollout.scheduling.forecast import Forecast
from engine.rollout.scheduling.ledger import Ledger, Rollout
from engine.rollout.scheduling.sticky import Sticky


class Aimd(Sticky):
    """More while there is room, fewer after a preemption."""

    def __init__(self, max_running: int, *, grow: float, cut: float, low: float, high: float) -> None:
        super().__init__(max_running)
        self._grow, self._cut, self._low, self._high = grow, cut, low, high
        self._factor = 1.0
        self._longest = 1
        self._at_worst = 0
        self._finished = 0
        self._usage: dict[str, float] = {}
        self._preemptions: dict[str, int] = {}
        self._deaf_to: set[str] = set()
        self._engines: Sequence[Ledger] = ()

    @property
    def cap(self) -> int:
        """Most rollouts in flight over all engines; at least one each."""
        return max(len(self._engines), int(self._factor * self._at_worst))

    def engines_changed(self, engines: Sequence[Ledger]) -> None:
        names = {one.name for one in engines}
        fresh = names - {one.name for one in self._engines}
        self._engines = engines
        self._count_worst()
        self._usage = {name: use for name, use in self._usage.items() if name in names - fresh}
        self._preemptions = {name: count for name, count in self._preemptions.items() if name in names - fresh}

    def place(self, rollout: Rollout, engines: Sequence[Ledger], forecast: Forecast) -> Ledger | None:
        if rollout.size.max_tokens > self._longest:
            self._longest = rollout.size.max_tokens
            self._count_worst()
        if sum(one.in_flight for one in engines) >= self.cap:
            return None
        fitting = [one for one in engines if one.in_flight < self.max_running and self._is_free(one)]
        return min(fitting, key=lambda one: (one.in_flight, one.taken_tokens), default=None)

    def freed(self, ledger: Ledger, rollout: Rollout, *, finished: bool) -> None:
        self._finished += finished
        if self._finished >= self.cap:
            self._finished = 0
            if max(self._usage.values(), default=0.0) < self._low:
                self._factor *= self._grow

    def observe(self, ledger: Ledger, stats: EngineStats) -> None:
        self._usage[ledger.name] = stats.kv_usage
        before = self._preemptions.get(ledger.name, 0)
        self._preemptions[ledger.name] = stats.preemptions
        if ledger.name in self._deaf_to:
            self._deaf_to.discard(ledger.name)
        elif stats.preemptions > before:
            self._factor *= self._cut
            self._finished = 0
            self._deaf_to = {one.name for one in self._engines} - {ledger.name}  # one cut a round of observations

    def _count_worst(self) -> None:
        """How many of the greatest length the engines hold."""
        self._at_worst = sum(one.usable_blocks // one.blocks_for(self._longest) for one in self._engines)

    def _is_free(self, ledger: Ledger) -> bool:
        return not ledger.in_flight or self._usage.get(ledger.name, 0.0) <= self._high
