"""Any interleaving of what can happen, for every rule, against the plainest model: where each rollout is."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.contract.resources import AimdScheduler, GrowthScheduler, KvCapScheduler, StaticScheduler
from engine.rollout.base import EngineCapacity
from engine.rollout.scheduling.base import EngineStats, Size
from engine.rollout.scheduling.lengths import LengthModel
from engine.rollout.scheduling.registry import make_scheduler

CAPACITIES = {"a": EngineCapacity(21, 16, 320), "b": EngineCapacity(11, 32, 320), "c": EngineCapacity(41, 8, 320)}
RULES = [
    StaticScheduler(kind="static"),
    KvCapScheduler(kind="kv_cap"),
    AimdScheduler(kind="aimd"),
    GrowthScheduler(),
]
MAX_RUNNING = 6


class Interleaving(RuleBasedStateMachine):
    """``home``: number -> engine of those in flight; ``tokens``: number -> prompt and response at its last boundary."""

    kind: Any

    @initialize(known=st.lists(st.integers(1, 150), max_size=40))
    def start(self, known: list[int]) -> None:
        lengths = LengthModel()
        for number, tokens in enumerate(known):
            lengths.learn(f"past {number}", tokens, cut=False)
        self.scheduler = make_scheduler(self.kind, max_running=MAX_RUNNING, lengths=lengths)
        self.size: dict[int, Size] = {}
        self.waiting: set[int] = set()
        self.home: dict[int, str] = {}
        self.tokens: dict[int, int] = {}
        self.sampling: set[int] = set()
        self.opened: set[str] = set()
        for engine in ("a", "b"):
            self.open(engine)

    @rule(engine=st.sampled_from("abc"))
    def open(self, engine: str) -> None:
        self.scheduler.open(engine, CAPACITIES[engine])
        self.opened.add(engine)

    @precondition(lambda self: self.opened)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        engine = data.draw(st.sampled_from(sorted(self.opened)))
        self.scheduler.close(engine)
        self.opened.discard(engine)

    @rule(
        problem=st.sampled_from("pqr"), prompt=st.integers(1, 20), longest=st.integers(30, 330), count=st.integers(1, 5)
    )
    def submit(self, problem: str, prompt: int, longest: int, count: int) -> None:
        for _ in range(count):
            size = Size(problem, prompt, longest)
            number = self.scheduler.submit(size)
            self.size[number], self.tokens[number] = size, prompt
            self.waiting.add(number)

    @rule()
    def admit(self) -> None:
        admitted = self.scheduler.admit()
        for placed in admitted.placed:
            assert placed.engine in self.opened
            self.waiting.remove(placed.number)
            self.home[placed.number] = placed.engine
        for number, _ in admitted.refused:
            assert self.opened
            assert self.size[number].max_tokens > 320
            self.waiting.remove(number)

    @precondition(lambda self: set(self.home) - self.sampling)
    @rule(data=st.data())
    def turn_started(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(set(self.home) - self.sampling)))
        engine = self.scheduler.turn_started(number, self.tokens[number])
        assert engine == self.home[number] or {engine, self.home[number]} <= self.opened
        self.home[number] = engine
        self.sampling.add(number)

    @precondition(lambda self: self.sampling)
    @rule(data=st.data(), made=st.integers(0, 60))
    def turn_ended(self, data: st.DataObject, made: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.sampling)))
        self.tokens[number] = min(self.tokens[number] + made, self.size[number].max_tokens)
        self.scheduler.turn_ended(number, self.tokens[number])
        self.sampling.discard(number)

    @precondition(lambda self: self.home)
    @rule(data=st.data(), how=st.sampled_from(["finish", "cut", "withdraw", "put_back"]))
    def leave(self, data: st.DataObject, how: str) -> None:
        number = data.draw(st.sampled_from(sorted(self.home)))
        response = self.tokens[number] - self.size[number].prompt_tokens
        del self.home[number]
        self.sampling.discard(number)
        if how == "withdraw":
            self.scheduler.withdraw(number, response)
        elif how == "put_back":
            self.scheduler.put_back(number, response)
            self.waiting.add(number)
        else:
            self.scheduler.finish(number, response, cut=how == "cut")

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up_waiting(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.waiting)))
        self.scheduler.withdraw(number)
        self.waiting.discard(number)

    @precondition(lambda self: self.opened)
    @rule(
        data=st.data(),
        usage=st.floats(0, 1),
        preemptions=st.integers(0, 3),
        made=st.integers(0, 400),
        busy=st.integers(0, 6),
    )
    def observe(self, data: st.DataObject, usage: float, preemptions: int, made: int, busy: int) -> None:
        engine = data.draw(st.sampled_from(sorted(self.opened)))
        self.scheduler.observe(engine, EngineStats(busy, 0, usage, preemptions, made))

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        assert self.scheduler.queued == len(self.waiting)
        assert self.scheduler.in_flight == len(self.home)
        there = Counter(self.home.values())
        for engine, ledger in self.scheduler._ledgers.items():
            mine = [number for number, home in self.home.items() if home == engine]
            assert ledger.in_flight == there[engine] == len(ledger.rollouts)
            assert ledger.sampling == sum(number in self.sampling for number in mine)
            assert ledger.idle_tokens == sum(self.tokens[number] for number in mine if number not in self.sampling)
            assert ledger.held_tokens >= sum(self.tokens[number] for number in mine if number in self.sampling)
            assert (ledger.reserved_blocks == 0) == (not mine)
            assert min(ledger.reserved_blocks, ledger.held_tokens, ledger.in_tools, ledger.unbegun) >= 0
            assert sorted(rollout.slot for rollout in ledger.rollouts) == list(range(len(mine)))

    def teardown(self) -> None:
        """With engines open and rollouts ending, everybody gets through."""
        if not hasattr(self, "scheduler"):
            return
        self.open("a")
        for _ in range(len(self.waiting) + len(self.home) + 1):
            for number in list(self.home):
                if number not in self.sampling:
                    self.scheduler.turn_started(number, self.tokens[number])
                self.scheduler.turn_ended(number, self.tokens[number] + 1)
                self.scheduler.finish(number, self.tokens[number] + 1 - self.size[number].prompt_tokens, cut=False)
            self.home.clear()
            self.sampling.clear()
            self.admit()
        assert not self.waiting
        assert not self.home
        assert (self.scheduler.queued, self.scheduler.in_flight) == (0, 0)
        assert all(ledger.reserved_blocks == ledger.held_tokens == 0 for ledger in self.scheduler._ledgers.values())


@pytest.mark.parametrize("kind", RULES, ids=lambda kind: kind.kind)
def test_nothing_is_lost_or_counted_twice(kind: Any) -> None:
    machine = type(f"Interleaving_{kind.kind}", (Interleaving,), {"kind": kind})
    case = machine.TestCase
    case.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
    case("runTest").runTest()
