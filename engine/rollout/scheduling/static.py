"""The usual way, for comparison: every rollout is bound to an engine before the batch begins, in equal counts.

Each engine works off its own queue, at most ``max_running`` at a time, and helps nobody when it is done. Only when an
engine is lost do the others get what it had. KV cache is not looked at: an engine that takes too many preempts.
"""

from collections import deque
from collections.abc import Sequence

from engine.rollout.scheduling.forecast import Forecast
from engine.rollout.scheduling.ledger import Ledger, Rollout
from engine.rollout.scheduling.sticky import Sticky
from engine.rollout.scheduling.waiting import Waiting


class Static(Sticky):
    """Equal counts."""

    def __init__(self, max_running: int) -> None:
        super().__init__(max_running)
        self._bound = Bound()
        self.waiting: Waiting = self._bound

    def engines_changed(self, engines: Sequence[Ledger]) -> None:
        self._bound.engines_changed(engines)

    def place(self, rollout: Rollout, engines: Sequence[Ledger], forecast: Forecast) -> Ledger | None:
        name = self._bound.engine_of(rollout)
        bound = [one for one in engines if one.name == name] or engines  # it may be too small for this rollout
        return next((one for one in bound if one.in_flight < self.max_running), None)


class Bound:
    """One queue for each open engine. Without any, all wait in a queue of nobody."""

    def __init__(self) -> None:
        self._engines: Sequence[Ledger] = ()
        self._queues: dict[str, deque[Rollout]] = {}
        self._nobodys: deque[Rollout] = deque()
        self._engine: dict[int, str] = {}
        self._turn = 0

    def engines_changed(self, engines: Sequence[Ledger]) -> None:
        """Rollouts of an engine that is gone are dealt out to the others."""
        names = [engine.name for engine in engines]
        homeless = [*self._nobodys, *(r for name, queue in self._queues.items() if name not in names for r in queue)]
        self._engines = engines
        self._queues = {name: self._queues.get(name, deque()) for name in names}
        self._nobodys.clear()
        for rollout in homeless:
            self.add(rollout)

    def engine_of(self, rollout: Rollout) -> str:
        return self._engine[rollout.number]

    def add(self, rollout: Rollout) -> None:
        self._next_queue(rollout).append(rollout)

    def put_back(self, rollout: Rollout) -> None:
        self._next_queue(rollout).appendleft(rollout)

    def heads(self) -> Sequence[Rollout]:
        return [queue[0] for queue in self._queues.values() if queue]

    def take(self, rollout: Rollout) -> None:
        self._queues[self._engine.pop(rollout.number)].popleft()

    def drop(self, rollout: Rollout) -> None:
        name = self._engine.pop(rollout.number, None)
        (self._nobodys if name is None else self._queues[name]).remove(rollout)

    def _next_queue(self, rollout: Rollout) -> deque[Rollout]:
        """Of engines in turn, as many for each; one that is too small for it is passed over while others are not."""
        self._engine.pop(rollout.number, None)
        if not self._engines:
            return self._nobodys
        able = [one for one in self._engines if one.capacity_tokens >= rollout.size.max_tokens] or self._engines
        name = able[self._turn % len(able)].name
        self._turn += 1
        self._engine[rollout.number] = name
        return self._queues[name]
