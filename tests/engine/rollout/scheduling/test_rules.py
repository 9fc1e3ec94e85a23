"""The four rules: how many each admits, where, and what they learn from."""

import random
from collections import Counter
from collections.abc import Callable

import pytest

from engine.contract.resources import AimdScheduler, GrowthScheduler, KvCapScheduler, Scheduling, StaticScheduler
from engine.rollout.base import EngineCapacity
from engine.rollout.scheduling.base import EngineStats, Size
from engine.rollout.scheduling.lengths import LengthModel
from engine.rollout.scheduling.scheduler import Scheduler

Make = Callable[..., Scheduler]

STATIC = StaticScheduler(kind="static")
KV_CAP = KvCapScheduler(kind="kv_cap")
AIMD = AimdScheduler(kind="aimd")
GROWTH = GrowthScheduler()
TWO = {"a": (100, 10), "b": (100, 10)}


def fill(scheduler: Scheduler, tokens: int, count: int = 300, prompt: int = 0) -> Counter[str]:
    """Submit many of a length, each of its own problem: how many each engine is given at once."""
    for number in range(count):
        scheduler.submit(Size(f"p{number}", prompt, tokens))
    return Counter(placed.engine for placed in scheduler.admit().placed)


def known(lengths: list[int]) -> LengthModel:
    model = LengthModel()
    for number, tokens in enumerate(lengths):
        model.learn(f"past {number}", tokens, cut=False)
    model.new_step()
    model.fit()
    return model


def end(scheduler: Scheduler, number: int, tokens: int) -> None:
    """One turn and over."""
    scheduler.turn_started(number, 0)
    scheduler.turn_ended(number, tokens)
    scheduler.finish(number, tokens, cut=False)


class TestKvCap:
    @pytest.mark.parametrize(("tokens", "expected"), [(160, 19), (161, 16), (1, 96), (3072, 1)])
    def test_k_is_what_the_cache_holds_at_full_length(self, scheduler: Make, tokens: int, expected: int) -> None:
        assert fill(scheduler(KV_CAP), tokens)["a"] == expected

    def test_max_running_caps_k(self, scheduler: Make) -> None:
        assert fill(scheduler(KV_CAP, max_running=5), 160)["a"] == 5

    def test_the_emptiest_engine_is_next(self, scheduler: Make) -> None:
        made = scheduler(KV_CAP, {"small": (10, 32), "large": (96, 32)})
        made.submit(Size("p", 0, 160))
        assert made.admit().placed[0].engine == "large"
        assert fill(made, 160)["small"] == 2


class TestStatic:
    def test_engines_are_given_equal_counts_whatever_they_hold(self, scheduler: Make) -> None:
        assert fill(scheduler(STATIC, {"a": (10, 10), "b": (1000, 10)}), 100, count=80) == {"a": 40, "b": 40}

    def test_each_engine_works_off_its_own_queue(self, scheduler: Make) -> None:
        """``a`` has room and ``b`` has two waiting: they wait on."""
        made = scheduler(STATIC, TWO, max_running=1)
        numbers = [made.submit(Size("p", 0, 100)) for _ in range(4)]
        assert len(made.admit().placed) == 2
        for number in numbers[0::2]:
            end(made, number, 5)
            made.admit()
        assert made.queued == 1
        assert (made.figures("a").in_flight, made.figures("b").in_flight) == (0, 1)

    def test_a_lost_engines_queue_goes_to_the_others(self, scheduler: Make) -> None:
        made = scheduler(STATIC, TWO, max_running=3)
        fill(made, 100, count=6)
        fill(made, 100, count=6)
        made.close("a")
        for number in (2, 4, 6):
            end(made, number, 5)
        assert {placed.engine for placed in made.admit().placed} == {"b"}
        assert made.queued == 3


class TestAimd:
    def test_it_starts_at_the_papers_k(self, scheduler: Make) -> None:
        assert fill(scheduler(AIMD, TWO), 100) == {"a": 10, "b": 10}

    def test_the_cap_grows_by_a_turnover_while_there_is_room(self, scheduler: Make) -> None:
        made = scheduler(AIMD, TWO)
        fill(made, 100)
        for number in range(1, 21):
            end(made, number, 5)
        assert len(made.admit().placed) == 25

    def test_a_preemption_cuts_the_cap_once_a_round(self, scheduler: Make) -> None:
        made = scheduler(AIMD, TWO)
        fill(made, 100)
        for engine in "ab":
            made.observe(engine, EngineStats(10, 0, 0.7, 3, 0))
        for number in range(1, 21):
            end(made, number, 5)
        assert len(made.admit().placed) == 16

    def test_an_engine_that_is_nearly_full_gets_nothing(self, scheduler: Make) -> None:
        made = scheduler(AIMD, TWO)
        made.submit(Size("p", 0, 100))
        made.submit(Size("p", 0, 100))
        made.admit()
        made.observe("a", EngineStats(1, 0, 0.9, 0, 0))
        assert set(fill(made, 100)) == {"b"}

    def test_the_least_loaded_engine_is_next(self, scheduler: Make) -> None:
        made = scheduler(AIMD, {"a": (300, 10), "b": (100, 10)})
        assert fill(made, 100) == {"a": 20, "b": 20}


class TestGrowth:
    @pytest.mark.parametrize(("tokens", "expected"), [(160, 19), (3072, 1)])
    def test_with_nothing_known_it_is_the_papers_rule(self, scheduler: Make, tokens: int, expected: int) -> None:
        assert fill(scheduler(GROWTH), tokens)["a"] == expected

    def test_it_is_never_stricter_than_the_papers_rule(self, scheduler: Make) -> None:
        """All known responses were as long as allowed."""
        made = scheduler(GROWTH, lengths=known([159] * 500))
        assert fill(made, 160)["a"] >= 19

    def test_known_short_responses_let_more_in(self, scheduler: Make) -> None:
        """Of 1,000 tokens allowed most use 100, so that far more than 10 fit 10,000 tokens."""
        lengths = random.Random(0).choices([50, 100, 150, 900], [30, 40, 25, 5], k=3000)
        made = scheduler(GROWTH, {"a": (1000, 10)}, lengths=known(lengths))
        assert fill(made, 1000)["a"] >= 50

    def test_a_smaller_chance_of_preemption_lets_fewer_in(self, scheduler: Make) -> None:
        lengths = known([100, 400, 800] * 500)
        counts = [
            fill(scheduler(GrowthScheduler(preemption_chance=chance), {"a": (1000, 10)}, lengths=lengths), 1000)["a"]
            for chance in (0.4, 0.1, 0.01, 0.0001)
        ]
        assert counts == sorted(counts, reverse=True)
        assert counts[0] > counts[-1]

    def test_what_is_admitted_outgrows_the_cache_no_more_often_than_asked_for(self, scheduler: Make) -> None:
        """Lengths drawn from the known ones, grown in lock step: at each moment the chance is 5 % at most."""
        source = random.Random(1)
        past = [min(int(source.lognormvariate(5.5, 0.7)), 999) for _ in range(4000)]
        rule = GrowthScheduler(preemption_chance=0.05)
        made = scheduler(rule, {"a": (2000, 10)}, max_running=10**6, lengths=known(past))
        admitted = fill(made, 1000)["a"]
        outgrown = Counter[int]()
        for _ in range(400):
            lengths = source.choices(past, k=admitted)
            outgrown.update(d for d in range(0, 1000, 50) if d * sum(length > d for length in lengths) > 20_000)
        assert max(outgrown.values(), default=0) / 400 <= 0.05 + 0.03  # what 400 draws leave to luck
        assert admitted > 2 * 20

    def test_problems_that_are_likely_long_go_first(self, scheduler: Make) -> None:
        made = scheduler(GROWTH, {"a": (100, 10)}, lengths=known([*range(100, 500)] * 5))
        for problem in ("short", "long"):
            for _ in range(4):
                made.submit(Size(problem, 0, 500))
        for _ in range(6):
            made.lengths.learn("short", 110, cut=False)
            made.lengths.learn("long", 490, cut=False)
        assert [placed.number for placed in made.admit().placed][:2] == [5, 6]

    def test_while_nothing_is_known_of_problems_each_gets_its_turn(self, scheduler: Make) -> None:
        made = scheduler(GROWTH, {"a": (30, 10)})
        numbers = {made.submit(Size(f"p{n // 4}", 0, 100)): n // 4 for n in range(12)}
        assert {numbers[placed.number] for placed in made.admit().placed} == {0, 1, 2}

    def test_a_rollout_moves_when_another_engine_holds_much_less(self, scheduler: Make) -> None:
        made = scheduler(GROWTH, TWO)
        fill(made, 100, count=20)
        for number in range(1, 21):
            made.turn_started(number, 5)
        here = {number: made._rollouts[number].ledger.name for number in range(1, 21)}  # type: ignore[union-attr]
        for number in range(1, 21):
            made.turn_ended(number, 50)
            if here[number] == "b":
                made.finish(number, 50, cut=False)
        mover = next(number for number, engine in here.items() if engine == "a")
        assert made.turn_started(mover, 60) == "b"
        assert (made.figures("a").in_flight, made.figures("b").in_flight, made.figures("b").moved) == (9, 1, 1)

    def test_in_balance_a_rollout_stays_with_its_prefix(self, scheduler: Make) -> None:
        made = scheduler(GROWTH, TWO)
        fill(made, 100, count=20)
        for _ in range(3):
            first = {number: made.turn_started(number, 20) for number in range(1, 21)}
            for number in range(1, 21):
                made.turn_ended(number, 25)
        assert {number: made.turn_started(number, 30) for number in range(1, 21)} == first


def test_the_platforms_case_of_a_long_tail(scheduler: Make, play: Callable[..., dict[str, float]]) -> None:
    """F083: 4 engines, 256 requests, a tenth of them 20 times longer: the engines are hardly ever idle."""
    lengths = [400 if random.Random(n).random() < 0.1 else 20 for n in range(256)]
    engines = {name: (8 * 408, 1) for name in "abcd"}
    took = {
        "static": play(scheduler(STATIC, engines, max_running=8), lengths, list(engines)),
        "growth": play(scheduler(GROWTH, engines), lengths, list(engines)),
    }
    idle = {kind: 1 - sum(each[name] for name in engines) / (4 * each["all"]) for kind, each in took.items()}
    assert idle["growth"] <= 0.15 < idle["static"]
    assert took["growth"]["all"] < took["static"]["all"]


def test_a_reopened_engine_has_its_new_capacity(scheduler: Make) -> None:
    made = scheduler(KV_CAP)
    made.close("a")
    made.open("a", EngineCapacity(kv_blocks=11, block_tokens=32, max_model_tokens=320))
    assert fill(made, 160)["a"] == 2


@pytest.mark.parametrize("rule", [STATIC, KV_CAP, AIMD, GROWTH], ids=lambda rule: rule.kind)
def test_max_running_must_be_positive(scheduler: Make, rule: Scheduling) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        scheduler(rule, max_running=0)
