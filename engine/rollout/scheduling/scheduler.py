"""The books of a pool: who waits, who has a place where, and what every change means for them.

Pure bookkeeping: no clock, no task, no engine; a simulation and live engines drive the very same object. The rule
(``AdmissionPolicy``) says who is next and where there is room, the scheduler keeps everything in step:

* A place counts from the moment it is given, and is given back once: by ``finish``, ``withdraw`` or ``put_back``.
* Turns of a rollout go to one engine, where their prefix is; unless the rule moves it between two turns.
* A closed engine gets nothing. Whoever is there keeps its place until it is taken out.
* What can fit no open engine, ever, is refused when it is next, never left to wait.
* Nothing is decided again before something has changed, so that ``admit`` costs nothing when nothing did.
"""

from collections.abc import Sequence
from typing import Final

from engine.rollout.base import EngineCapacity
from engine.rollout.scheduling.base import (
    Admitted,
    EngineFigures,
    EngineStats,
    NeverFits,
    Placement,
    Size,
)
from engine.rollout.scheduling.forecast import Forecast
from engine.rollout.scheduling.ledger import Ledger, Rollout
from engine.rollout.scheduling.lengths import LengthModel
from engine.rollout.scheduling.policy import AdmissionPolicy

NOTHING: Final = Admitted()


class Scheduler:
    """One for each pool. Numbers that are not known raise ``KeyError``, calls out of order ``ValueError``."""

    def __init__(self, policy: AdmissionPolicy, lengths: LengthModel) -> None:
        self._policy = policy
        self._forecast = Forecast(lengths)
        self._ledgers: dict[str, Ledger] = {}
        self._open: Sequence[Ledger] = ()
        self._smallest = 0
        self._rollouts: dict[int, Rollout] = {}
        self._next = 0
        self._changed = False
        self.queued = 0
        self.in_flight = 0

    @property
    def lengths(self) -> LengthModel:
        """What is known of lengths; may be replaced while nothing waits or is in flight."""
        return self._forecast.lengths

    @lengths.setter
    def lengths(self, lengths: LengthModel) -> None:
        if self._rollouts:
            raise ValueError(f"lengths cannot be replaced under {len(self._rollouts)} rollouts")
        self._forecast.replace(lengths)

    def open(self, engine: str, capacity: EngineCapacity) -> None:
        """From now on ``engine`` may be given rollouts; also after it was closed, then with new capacity, empty."""
        if engine not in self._ledgers:
            self._ledgers[engine] = Ledger(engine)
        self._ledgers[engine].open(capacity)
        self._engines_changed()

    def close(self, engine: str) -> None:
        """No new rollouts for ``engine``."""
        self._ledgers[engine].is_open = False
        self._engines_changed()

    def observe(self, engine: str, stats: EngineStats) -> None:
        """What an engine says of itself, about once a second."""
        ledger = self._ledgers[engine]
        ledger.observe(stats)
        self._policy.observe(ledger, stats)
        self._changed = True

    def submit(self, size: Size) -> int:
        """One rollout more, which waits. Returns its number."""
        self._next += 1
        rollout = self._rollouts[self._next] = Rollout.of(self._next, size, self.lengths.index(size.problem))
        self._forecast.expect(rollout.problem, size.max_tokens - size.prompt_tokens)
        self._policy.waiting.add(rollout)
        self.queued += 1
        self._changed = True
        return self._next

    def admit(self) -> Admitted:
        """All that may start now, and all that never can."""
        if not self._changed or not self.queued or not self._open:
            return NOTHING
        self._changed = False
        self._policy.prepare(self._open, self._forecast)
        placed: list[Placement] = []
        refused: list[tuple[int, NeverFits]] = []
        while self._decide(placed, refused):
            pass
        return Admitted(tuple(placed), tuple(refused))

    def turn_started(self, number: int, context_tokens: int) -> str:
        """A turn begins with so many prompt and response tokens. Returns the engine that it must go to."""
        rollout = self._rollouts[number]
        ledger = self._placed(rollout)
        if rollout.sampling:
            raise ValueError(f"rollout {number} samples already on {ledger.name}")
        if ledger.is_open and rollout.begun:
            ledger = self._settle(rollout, ledger)
        ledger.begin(rollout, context_tokens)
        return ledger.name

    def turn_ended(self, number: int, context_tokens: int) -> None:
        """It waits for a tool now, or ends."""
        rollout = self._rollouts[number]
        if not rollout.sampling:
            raise ValueError(f"rollout {number} does not sample")
        self._placed(rollout).end(rollout, context_tokens)

    def finish(self, number: int, response_tokens: int, *, cut: bool) -> None:
        """It ended; ``cut``: at its greatest length, by itself it would have been longer."""
        rollout = self._rollouts[number]
        self._release(rollout, finished=True)
        self._forget(rollout, response_tokens, cut=cut)

    def withdraw(self, number: int, response_tokens: int = 0) -> None:
        """It was cancelled, left out or carried over, waiting or in flight. At least so long it would have been."""
        rollout = self._rollouts[number]
        if rollout.ledger is None:
            self._policy.waiting.drop(rollout)
            self.queued -= 1
            self._changed = True
        else:
            self._release(rollout, finished=False)
        self._forget(rollout, response_tokens, cut=True)

    def put_back(self, number: int, response_tokens: int) -> None:
        """Its engine failed it: it waits before all others, with what it has."""
        rollout = self._rollouts[number]
        self._release(rollout, finished=False)
        rollout.context = rollout.size.prompt_tokens + response_tokens
        self._policy.waiting.put_back(rollout)
        self.queued += 1

    def figures(self, engine: str) -> EngineFigures:
        """What is known of an engine at this moment."""
        ledger = self._ledgers[engine]
        self._forecast.refresh(self._ledgers.values())
        return EngineFigures(
            in_flight=ledger.in_flight,
            in_tools=ledger.in_tools,
            held_tokens=ledger.held_tokens,
            expected_tokens=int(self._forecast.of(ledger)[0].max()),
            capacity_tokens=ledger.capacity_tokens,
            moved=ledger.moved,
        )

    def _engines_changed(self) -> None:
        self._open = tuple(ledger for ledger in self._ledgers.values() if ledger.is_open)
        self._smallest = min((ledger.capacity_tokens for ledger in self._open), default=0)
        self._policy.engines_changed(self._open)
        self._changed = True

    def _decide(self, placed: list[Placement], refused: list[tuple[int, NeverFits]]) -> bool:
        """Decide about whoever is next; False if nothing came of it."""
        decided = False
        for rollout in self._policy.waiting.heads():
            able = self._able(rollout)
            ledger = self._policy.place(rollout, able, self._forecast) if able else None
            if able and ledger is None:
                continue
            decided = True
            self._policy.waiting.take(rollout)
            self.queued -= 1
            if ledger is None:
                refused.append((rollout.number, self._never_fits(rollout)))
                del self._rollouts[rollout.number]
            else:
                ledger.place(rollout)
                self.in_flight += 1
                placed.append(Placement(rollout.number, ledger.name))
        return decided

    def _able(self, rollout: Rollout) -> Sequence[Ledger]:
        """The open engines that could hold it, were they empty."""
        if rollout.size.max_tokens <= self._smallest:
            return self._open
        return [ledger for ledger in self._open if rollout.size.max_tokens <= ledger.capacity_tokens]

    def _never_fits(self, rollout: Rollout) -> NeverFits:
        held = ", ".join(f"{ledger.name}: {ledger.capacity_tokens}" for ledger in self._open)
        return NeverFits(
            f"a rollout of {rollout.size.max_tokens} tokens fits no engine's KV cache (tokens: {held}); "
            "raise kv_cache_mb"
        )

    def _settle(self, rollout: Rollout, ledger: Ledger) -> Ledger:
        """Where the next turn goes; it changes its place if that is another engine."""
        better = self._policy.stay_or_move(rollout, self._open)
        if better is not ledger:
            ledger.release(rollout)
            better.place(rollout)
            better.moved += 1
        return better

    def _placed(self, rollout: Rollout) -> Ledger:
        if rollout.ledger is None:
            raise ValueError(f"rollout {rollout.number} has no place")
        return rollout.ledger

    def _release(self, rollout: Rollout, *, finished: bool) -> None:
        ledger = self._placed(rollout)
        ledger.release(rollout)
        self.in_flight -= 1
        self._policy.freed(ledger, rollout, finished=finished)
        self._changed = True

    def _forget(self, rollout: Rollout, response_tokens: int, *, cut: bool) -> None:
        del self._rollouts[rollout.number]
        if response_tokens:
            self._forecast.learn(rollout.size.problem, response_tokens, cut=cut)
