"""Those who wait for a place, in the order of a rule. Leaves out the rules and the places."""

from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Protocol

from engine.rollout.scheduling.ledger import Rollout


class Waiting(Protocol):
    """Rollouts without a place."""

    def add(self, rollout: Rollout) -> None:
        """It waits behind the others."""

    def put_back(self, rollout: Rollout) -> None:
        """It waits before the others: it had a place and lost it."""

    def heads(self) -> Sequence[Rollout]:
        """Those who are next: one, or one for each engine when they are bound."""
        ...

    def take(self, rollout: Rollout) -> None:
        """A head got a place, or can never have one."""

    def drop(self, rollout: Rollout) -> None:
        """One that waits, wherever, waits no more."""


class InOrder:
    """First in, first out, for all engines."""

    def __init__(self) -> None:
        self._queue: deque[Rollout] = deque()

    def add(self, rollout: Rollout) -> None:
        self._queue.append(rollout)

    def put_back(self, rollout: Rollout) -> None:
        self._queue.appendleft(rollout)

    def heads(self) -> Sequence[Rollout]:
        return (self._queue[0],) if self._queue else ()

    def take(self, rollout: Rollout) -> None:
        self._queue.popleft()

    def drop(self, rollout: Rollout) -> None:
        self._queue.remove(rollout)


class LongFirst:
    """Those put back, then the problems that are likely the longest, breadth first among equals.

    ``rank`` says how long the problems likely are, the longest the least; those never ranked have rank 0. Breadth: of
    two problems of a rank the one goes first of which fewer were begun, so that of each something is soon known.
    """

    def __init__(self) -> None:
        self._first = InOrder()
        self._lanes: dict[int, deque[Rollout]] = {}
        self._begun: dict[int, int] = {}
        self._ranks: dict[int, int] = {}
        self._order: list[tuple[int, int, int]] = []
        self._stale = False

    @property
    def problems(self) -> Iterable[int]:
        """Those of which something waits."""
        return self._lanes.keys()

    def add(self, rollout: Rollout) -> None:
        lane = self._lanes.get(rollout.problem)
        if lane is None:
            lane = self._lanes[rollout.problem] = deque()
            self._stale = True
        lane.append(rollout)

    def put_back(self, rollout: Rollout) -> None:
        self._first.put_back(rollout)

    def rank(self, ranks: Iterable[int]) -> None:
        """The ranks of ``problems``, in their order."""
        self._ranks = dict(zip(self._lanes, ranks, strict=True))
        self._stale = True

    def heads(self) -> Sequence[Rollout]:
        first = self._first.heads()
        if first or not self._lanes:
            return first
        if self._stale:
            self._sort()
        return (self._lanes[self._order[0][2]][0],)

    def take(self, rollout: Rollout) -> None:
        if self._first.heads():
            self._first.take(rollout)
            return
        problem = rollout.problem
        self._begun[problem] = self._begun.get(problem, 0) + 1
        self._lanes[problem].popleft()
        if self._lanes[problem]:
            heapreplace(self._order, self._key(problem))
        else:
            heappop(self._order)
            self._close(problem)

    def drop(self, rollout: Rollout) -> None:
        lane = self._lanes.get(rollout.problem)
        if lane is None or rollout not in lane:
            self._first.drop(rollout)
            return
        lane.remove(rollout)
        if not lane:
            self._close(rollout.problem)
            self._stale = True

    def _sort(self) -> None:
        self._order = [self._key(problem) for problem in self._lanes]
        heapify(self._order)
        self._stale = False

    def _key(self, problem: int) -> tuple[int, int, int]:
        return self._ranks.get(problem, 0), self._begun.get(problem, 0), problem

    def _close(self, problem: int) -> None:
        del self._lanes[problem]
        self._begun.pop(problem, None)
        self._ranks.pop(problem, None)
