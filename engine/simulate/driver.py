"""One batch of rollouts through the scheduler that runs use, in virtual time.

The driver is to the scheduler what the pool is in a run: it submits, starts what is admitted, says when turns start and
end, and passes on what engines say of themselves once a second. Leaves out engines (``engine_model.py``), what the
rollouts do (``workload.py``) and judging outcomes (``compare.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

from engine.rollout.scheduling.base import Placement
from engine.rollout.scheduling.scheduler import Scheduler
from engine.simulate.engine_model import NEVER, Counters, EngineModel, Request, SimulatedEngine
from engine.simulate.workload import SimulatedRollout

OBSERVE_S = 1.0
"""Simulated seconds between what engines say of themselves."""

_DEATH, _RETURN, _TOOL, _OBSERVE = range(4)
"""Kinds of events, in the order in which those of one moment are handled; engines' steps go before."""


@dataclass(frozen=True, slots=True)
class Death:
    """Engine number ``engine`` loses everything at ``at_s`` and is back ``down_s`` later, if ever."""

    engine: int
    at_s: float
    down_s: float | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """An engine at a moment, for timelines."""

    at_s: float
    engine: int
    in_flight: int
    """Rollouts that the scheduler has there."""
    running: int
    kv_usage: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a batch. Seconds and tokens."""

    makespan_s: float
    finish_s: tuple[float, ...]
    """When each engine's last rollout ended."""
    useful_tokens: int
    """Sampled tokens that the rollouts ended with."""
    engines: tuple[Counters, ...]
    waits_s: tuple[float, ...]
    """Of every turn: in an engine's queue, before it ran; ascending."""
    moved: int
    """Turns that ran on another engine than the rollout's turn before."""
    timeline: tuple[Moment, ...] = ()

    @property
    def counters(self) -> Counters:
        """Sums over engines."""
        return Counters(**{name: sum(getattr(each, name) for each in self.engines) for name in Counters.__slots__})

    @property
    def useful_tokens_per_s(self) -> float:
        return self.useful_tokens / self.makespan_s

    @property
    def recomputed_share(self) -> float:
        return self.counters.recomputed / max(self.counters.generated, 1)

    @property
    def reprefilled_share(self) -> float:
        return self.counters.reprefilled / max(self.counters.generated, 1)

    @property
    def finish_spread(self) -> float:
        """Between the first and the last engine to end, as a share of the makespan."""
        return (max(self.finish_s) - min(self.finish_s)) / self.makespan_s

    @property
    def p95_wait_s(self) -> float:
        return self.waits_s[int(0.95 * (len(self.waits_s) - 1))]


class TooSlow(Exception):
    """The batch was not over at the time limit."""


class Stuck(Exception):
    """Rollouts wait that the scheduler will never admit."""


def simulate(
    workload: Sequence[SimulatedRollout],
    scheduler: Scheduler,
    engines: Sequence[EngineModel],
    *,
    barrier: bool = False,
    deaths: Sequence[Death] = (),
    timeline: bool = False,
    limit_s: float | None = None,
) -> Outcome:
    """Run the whole batch, submitted at 0 s, through ``scheduler``, which must be new: engines are opened here.

    With ``barrier`` the turns on an engine wait for one another and for the slowest of their tools. Raises ``TooSlow``
    when more than ``limit_s`` simulated seconds are needed, ``Stuck`` when engines are idle and rollouts wait (all are
    dead, for example), and ``NeverFits`` for a rollout that fits no engine.
    """
    if barrier and deaths:
        raise ValueError("deaths are not modelled together with a barrier")
    batch = _Batch(workload, scheduler, engines, barrier, timeline)
    batch.start(deaths)
    batch.run(limit_s)
    return batch.outcome()


@dataclass(slots=True)
class _Barrier:
    """Turns that wait on one engine until those before them, and their tools, are through."""

    under_way: int = 0
    held: list[Request] = field(default_factory=list)


class _Batch:
    """State of one simulation. Rollouts and engines are numbers here, by their place in what was given."""

    def __init__(
        self,
        workload: Sequence[SimulatedRollout],
        scheduler: Scheduler,
        engines: Sequence[EngineModel],
        barrier: bool,
        timeline: bool,
    ) -> None:
        self._workload: Final = workload
        self._scheduler: Final = scheduler
        self._engines: Final = [SimulatedEngine(model) for model in engines]
        self._names: Final = [f"engine-{number}" for number in range(len(engines))]
        self._numbers: Final = {name: number for number, name in enumerate(self._names)}
        self._dead: Final[set[int]] = set()
        self._barriers: Final = [_Barrier() for _ in engines] if barrier else []
        self._keep_timeline: Final = timeline
        self._timeline: Final[list[Moment]] = []
        self._next_s: Final = [NEVER] * len(engines)
        """When something happens on each engine."""
        self._events: Final[list[tuple[float, int, int]]] = []
        """All other moments to come."""
        self._rollouts: Final[dict[int, int]] = {}
        """The scheduler's number -> ours."""
        count = len(workload)
        self._tickets: Final = [0] * count
        self._turn: Final = [0] * count
        self._context: Final = [rollout.size.prompt_tokens for rollout in workload]
        self._home: Final = [-1] * count
        self._finish_s: Final = [0.0] * len(engines)
        self._left = count
        self._moved = 0
        self._now_s = 0.0

    def start(self, deaths: Sequence[Death]) -> None:
        for name, engine in zip(self._names, self._engines, strict=True):
            self._scheduler.open(name, engine.model.capacity())
        for rollout, script in enumerate(self._workload):
            ticket = self._tickets[rollout] = self._scheduler.submit(script.size)
            self._rollouts[ticket] = rollout
        for death in deaths:
            heappush(self._events, (death.at_s, _DEATH, death.engine))
            if death.down_s is not None:
                heappush(self._events, (death.at_s + death.down_s, _RETURN, death.engine))
        self._admit()
        self._release()
        heappush(self._events, (OBSERVE_S, _OBSERVE, 0))

    def run(self, limit_s: float | None) -> None:
        handlers = {_DEATH: self._die, _RETURN: self._come_back, _TOOL: self._send, _OBSERVE: self._observe}
        events, next_s, last_s = self._events, self._next_s, NEVER if limit_s is None else limit_s
        while self._left:
            step_s = min(next_s)
            if step_s <= events[0][0]:
                self._now_s = step_s
                self._step(next_s.index(step_s))
            else:
                self._now_s, kind, subject = heappop(events)
                handlers[kind](subject)
            if self._now_s > last_s:
                raise TooSlow(f"{self._left} of {len(self._workload)} rollouts are left after {limit_s:g} s")
            if self._barriers:
                self._release()

    def outcome(self) -> Outcome:
        return Outcome(
            makespan_s=self._now_s,
            finish_s=tuple(self._finish_s),
            useful_tokens=sum(sum(rollout.sampled) for rollout in self._workload),
            engines=tuple(engine.counters for engine in self._engines),
            waits_s=tuple(sorted(wait for engine in self._engines for wait in engine.waits_s)),
            moved=self._moved,
            timeline=tuple(self._timeline),
        )

    def _admit(self) -> None:
        admitted = self._scheduler.admit()
        for _, error in admitted.refused:
            raise error
        for placement in admitted.placed:
            self._begin(placement)

    def _begin(self, placement: Placement) -> None:
        rollout = self._rollouts[placement.number]
        self._home[rollout] = self._numbers[placement.engine]
        self._send(rollout)

    def _send(self, rollout: int) -> None:
        """The rollout's next turn may start: to the engine that the scheduler names."""
        home = self._home[rollout]
        if home in self._dead:
            self._put_back(rollout)
            self._admit()
            return
        turn, context = self._turn[rollout], self._context[rollout]
        script = self._workload[rollout]
        engine = self._numbers[self._scheduler.turn_started(self._tickets[rollout], context)]
        if engine != home:
            self._home[rollout] = engine
            self._moved += 1
        fresh = script.answered[turn - 1] if turn else context
        request = Request(rollout, context, fresh, script.sampled[turn], self._now_s)
        if self._barriers:
            self._barriers[home].under_way -= 1 if turn else 0
            self._barriers[engine].held.append(request)
        else:
            self._arrive(engine, request)

    def _arrive(self, number: int, request: Request) -> None:
        engine = self._engines[number]
        engine.arrive(request, self._now_s)
        self._next_s[number] = engine.next_s

    def _step(self, number: int) -> None:
        """The moment that an engine planned for: turns end there, or others join."""
        engine = self._engines[number]
        left = self._left
        for rollout in engine.step():
            self._end_turn(number, rollout)
        if self._left != left:
            self._admit()
        engine.plan()
        self._next_s[number] = engine.next_s

    def _end_turn(self, number: int, rollout: int) -> None:
        script, turn = self._workload[rollout], self._turn[rollout]
        context = self._context[rollout] = self._context[rollout] + script.sampled[turn]
        self._scheduler.turn_ended(self._tickets[rollout], context)
        if turn == len(script.tool_s):
            self._finish(number, rollout)
            return
        self._turn[rollout] = turn + 1
        self._context[rollout] = context + script.answered[turn]
        heappush(self._events, (self._now_s + script.tool_s[turn], _TOOL, rollout))

    def _finish(self, number: int, rollout: int) -> None:
        size, context = self._workload[rollout].size, self._context[rollout]
        self._scheduler.finish(self._tickets[rollout], context - size.prompt_tokens, cut=context >= size.max_tokens)
        self._finish_s[number] = self._now_s
        self._left -= 1
        if self._barriers:
            self._barriers[number].under_way -= 1

    def _release(self) -> None:
        """Let the next turns of an engine begin when all before them are through."""
        for number, barrier in enumerate(self._barriers):
            if barrier.held and not barrier.under_way:
                barrier.under_way = len(barrier.held)
                for request in barrier.held:
                    self._arrive(number, request)
                barrier.held = []

    def _observe(self, _: int) -> None:
        for number, (name, engine) in enumerate(zip(self._names, self._engines, strict=True)):
            if number in self._dead:
                continue
            stats = engine.stats()
            self._scheduler.observe(name, stats)
            if self._keep_timeline:
                in_flight = self._scheduler.figures(name).in_flight
                self._timeline.append(Moment(self._now_s, number, in_flight, stats.running, stats.kv_usage))
        self._admit()
        if not self._events and min(self._next_s) == NEVER:
            raise Stuck(f"nothing runs after {self._now_s:g} s, and {self._left} rollouts are not admitted")
        heappush(self._events, (self._now_s + OBSERVE_S, _OBSERVE, 0))

    def _die(self, number: int) -> None:
        """All KV of the engine is lost. Its turns are sampled again elsewhere; rollouts in tools follow when due."""
        self._dead.add(number)
        self._scheduler.close(self._names[number])
        for rollout in self._engines[number].fail(self._now_s):
            self._put_back(rollout)
        self._next_s[number] = NEVER
        self._admit()

    def _put_back(self, rollout: int) -> None:
        self._home[rollout] = -1
        response = self._context[rollout] - self._workload[rollout].size.prompt_tokens
        self._scheduler.put_back(self._tickets[rollout], response)

    def _come_back(self, number: int) -> None:
        self._dead.discard(number)
        self._scheduler.open(self._names[number], self._engines[number].model.capacity())
        self._admit()
