"""A rollout engine in virtual time: continuous batching by vLLM's rules, with a linear model of how long a step takes.

* Whoever runs decodes one token a step, all in lock step. A step of ``B`` requests that hold ``KV`` tokens takes
  ``a + b B + c KV`` seconds; tokens prefilled in it add their own time.
* Requests that arrive join at the next step, in order, while the KV cache has room for what they hold; the first that
  finds none makes those behind it wait.
* A running request that finds no room preempts the one that joined last, which waits at the head of the queue and is
  computed again.
* KV of turns that have ended, and of preempted ones, stays until room is needed and goes least recently used first. So
  a turn after a tool call may have to be prefilled again: counted apart from what preemption made compute again.

Between two moments at which something happens the time of many steps is one formula, so the cost is by event, not by
token. Leaves out prompts shared between rollouts, chunks of a long prefill (its time is added to one step) and blocks
one by one: a request holds its tokens and half a block.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil, inf, sqrt
from typing import NamedTuple

from engine.rollout.base import EngineCapacity
from engine.rollout.scheduling.base import EngineStats

NEVER = inf

_BITS = 24
_MASK = (1 << _BITS) - 1
"""Low bits of a heap entry: the rollout's number; above them the step at which its turn ends."""

_ROUNDING = 1e-9
"""Of a count of steps: what floats are off when a request arrives just as a step ends."""


@dataclass(frozen=True, slots=True)
class EngineModel:
    """What an engine can do. Seconds, tokens, tokens a second."""

    kv_tokens: int
    step_s: float = 6e-3
    step_per_request_s: float = 6.7e-6
    step_per_kv_token_s: float = 6.5e-9
    prefill_tokens_per_s: float = 200_000.0
    max_running: int = 1 << 20
    """Most requests that run at a time; vLLM's max_num_seqs."""
    block_tokens: int = 16
    max_model_tokens: int = 1 << 20

    def capacity(self) -> EngineCapacity:
        """What the engine tells the scheduler of itself; block 0 is vLLM's null block."""
        blocks = self.kv_tokens // self.block_tokens + 1
        return EngineCapacity(blocks, self.block_tokens, self.max_model_tokens)


@dataclass(slots=True)
class Counters:
    """Tokens and events of an engine since its start."""

    generated: int = 0
    steps: int = 0
    kv_read: int = 0
    """KV tokens held, summed over steps."""
    prefilled: int = 0
    """All that was prefilled, first times and again."""
    recomputed: int = 0
    """Prefilled again because of preemption."""
    reprefilled: int = 0
    """Prefilled again because the KV cache was evicted in a tool call, or lies on another engine."""
    preemptions: int = 0


class Request(NamedTuple):
    """A turn in an engine's queue. It holds ``context`` tokens once it runs; ``fresh`` of them are new to any cache."""

    rollout: int
    context: int
    fresh: int
    left: int
    """Tokens still to sample."""
    asked_s: float
    preempted: bool = False


class SimulatedEngine:
    """One engine's state. The driver calls ``arrive`` at any time, and at ``next_s`` first ``step``, then ``plan``."""

    def __init__(self, model: EngineModel) -> None:
        self.model = model
        self.counters = Counters()
        self.waits_s: list[float] = []
        """Seconds that each turn stood in this engine's queue before it ran."""
        self.next_s = NEVER
        """When something happens next if nothing arrives."""
        self._half_block = model.block_tokens // 2
        self._room = model.kv_tokens
        self._now_s = 0.0
        self._steps = 0
        self._horizon = 0
        """Steps until ``next_s``."""
        self._first_s = 0.0
        """What the first of them takes, without prefill."""
        self._growth_s = 0.0
        """How much longer each takes than the one before."""
        self._prefill_s = 0.0
        self._offset = 0
        """With ``_steps`` for each that runs: what those that run hold."""
        self._queue: deque[Request] = deque()
        self._running: dict[int, int] = {}
        """Rollout -> end of its turn, as in ``_ends``; in the order of joining."""
        self._goals: dict[int, int] = {}
        """Rollout that runs -> what it holds at the end of its turn."""
        self._ends: list[int] = []
        self._cached: OrderedDict[int, int] = OrderedDict()
        """Rollout -> KV of its that nobody needs now, least recently used first."""
        self._cached_tokens = 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def live_tokens(self) -> int:
        """KV that running requests hold."""
        return self._offset + len(self._running) * self._steps

    def stats(self) -> EngineStats:
        """What the engine says of itself: as of the last step that anything happened in."""
        usage = self.live_tokens / self._room
        return EngineStats(
            len(self._running), len(self._queue), usage, self.counters.preemptions, self.counters.generated
        )

    def arrive(self, request: Request, now_s: float) -> None:
        """A turn for the queue: the first step that ends at or after ``now_s`` becomes the next moment."""
        self._queue.append(request)
        if self._running:
            self.look(now_s)
        else:
            self._now_s = self.next_s = now_s

    def look(self, now_s: float) -> None:
        """Make the first step that ends at or after ``now_s`` the next moment, if nothing happens before."""
        steps = self._steps_until(now_s)
        if steps < self._horizon:
            self._horizon = steps
            self.next_s = self._time_of(steps)

    def step(self) -> list[int]:
        """Go on to ``next_s``; rollouts whose turn has ended there, in order of their end."""
        self._now_s, self.next_s = self.next_s, NEVER
        if self._horizon:
            self._go_on(self._horizon)
        ends, running, limit = self._ends, self._running, (self._steps + 1) << _BITS
        finished = []
        while ends and ends[0] < limit:
            end = heappop(ends)
            if running.get(end & _MASK) == end:
                finished.append(end & _MASK)
        for rollout in finished:
            self._leave(rollout)
        return finished

    def plan(self) -> None:
        """After ``step`` and the arrivals of that moment: let requests in, make room, find the next moment."""
        if self._queue:
            self._let_in()
        while (running := len(self._running)) and self._room < (held := self._offset + running * self._steps) + running:
            self._preempt()
        if not running:
            return
        model = self.model
        self._first_s = model.step_s + model.step_per_request_s * running + model.step_per_kv_token_s * held
        self._growth_s = model.step_per_kv_token_s * running
        self._horizon = min((self._next_end() >> _BITS) - self._steps, (self._room - held) // running)
        self.next_s = self._time_of(self._horizon)

    def fail(self, now_s: float) -> list[int]:
        """Lose all KV and requests; rollouts whose turns were here, those in the queue last."""
        if self._running:
            self._go_on(max(0, min(self._steps_until(now_s), self._horizon) - 1))  # a step under way is lost too
        lost = [*self._running, *(request.rollout for request in self._queue)]
        for part in (self._running, self._goals, self._ends, self._queue, self._cached):
            part.clear()
        self._cached_tokens = self._offset = self._horizon = 0
        self._prefill_s = 0.0
        self.next_s = NEVER
        return lost

    def _go_on(self, steps: int) -> None:
        counters, running = self.counters, len(self._running)
        counters.steps += steps
        counters.generated += steps * running
        counters.kv_read += steps * (self._offset + running * self._steps) + running * steps * (steps - 1) // 2
        self._steps += steps
        self._horizon = 0
        self._prefill_s = 0.0

    def _time_of(self, steps: int) -> float:
        """When that many more steps are done."""
        if not steps:
            return self._now_s
        return self._now_s + self._prefill_s + steps * (self._first_s + self._growth_s * (steps - 1) / 2)

    def _steps_until(self, now_s: float) -> int:
        """Fewest steps that last until ``now_s``: the root of a quadratic, as each takes longer than the one before."""
        decoding_s = now_s - self._now_s - self._prefill_s
        if decoding_s <= 0:
            return int(now_s > self._now_s)
        growth_s = self._growth_s
        linear_s = self._first_s - growth_s / 2
        steps = 2 * decoding_s / (linear_s + sqrt(linear_s * linear_s + 2 * growth_s * decoding_s))
        return ceil(steps - _ROUNDING) or 1

    def _next_end(self) -> int:
        ends, running = self._ends, self._running
        while running.get(ends[0] & _MASK) != ends[0]:
            heappop(ends)  # of a turn that was preempted
        return ends[0]

    def _let_in(self) -> None:
        queue, most = self._queue, self.model.max_running
        while queue and (running := len(self._running)) < most:
            held = queue[0].context + self._half_block
            if self._offset + running * self._steps + held + running + 1 > self._room:
                if not running:
                    raise ValueError(f"a turn that holds {held} tokens never fits an engine of {self._room}")
                return
            self._join(queue.popleft(), held)

    def _join(self, request: Request, held: int) -> None:
        rollout, steps = request.rollout, self._steps
        self._count(request, request.context - self._hit(rollout))
        self._offset += held - steps
        end = (steps + request.left) << _BITS | rollout
        self._running[rollout] = end
        self._goals[rollout] = held + request.left
        heappush(self._ends, end)

    def _hit(self, rollout: int) -> int:
        """Tokens that need no prefill; they are not cached any more but held."""
        if rollout not in self._cached:
            return 0
        self._evict()
        hit = self._cached.pop(rollout, 0)
        self._cached_tokens -= hit
        return max(0, hit - self._half_block)

    def _count(self, request: Request, prefill: int) -> None:
        counters = self.counters
        counters.prefilled += prefill
        self._prefill_s += prefill / self.model.prefill_tokens_per_s
        if request.preempted:
            counters.recomputed += prefill
        else:
            counters.reprefilled += prefill - request.fresh
            self.waits_s.append(self._now_s - request.asked_s)

    def _leave(self, rollout: int) -> int:
        """Take a running turn out, at its end or before; its KV stays as long as nobody needs the room."""
        end = self._running.pop(rollout) >> _BITS
        held = self._goals.pop(rollout) - end + self._steps
        self._offset -= held - self._steps
        stale = self._cached.pop(rollout, 0)
        self._cached[rollout] = held
        self._cached_tokens += held - stale
        return held

    def _preempt(self) -> None:
        """The last to join waits at the head of the queue."""
        if len(self._running) == 1:
            raise ValueError(f"a turn outgrows an engine of {self._room} tokens")
        rollout = next(reversed(self._running))
        left = (self._running[rollout] >> _BITS) - self._steps
        held = self._leave(rollout)
        self.counters.preemptions += 1
        self._queue.appendleft(Request(rollout, held - self._half_block, 0, left, self._now_s, preempted=True))

    def _evict(self) -> None:
        """Drop cached KV, least recently used first, until all fits.

        Only who comes back looks at it, and what is held and cached together never shrinks but then: so once before
        each of them is enough.
        """
        excess = self._cached_tokens + self._offset + len(self._running) * self._steps - self._room
        cached = self._cached
        while excess > 0 and cached:
            oldest = next(iter(cached))
            tokens = cached[oldest]
            if tokens > excess:
                cached[oldest] = tokens - excess  # from its end: the beginning stays of use
                self._cached_tokens -= excess
                return
            del cached[oldest]
            self._cached_tokens -= tokens
            excess -= tokens
