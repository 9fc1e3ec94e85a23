"""A step's rollout batches: what is asked, and how rejected groups are replaced (dynamic sampling)."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from engine.contract.events import PhaseStarted, SandboxLoad
from engine.contract.trajectory import RewardStatus, Trajectory
from engine.data.problem import Problem
from engine.stages.rounds import Rounds
from engine.stages.sampling import Ask
from engine.stages.stopwatch import Stopwatch
from tests.engine.stages.bench import Bench, Pool

MakeBench = Callable[..., Bench]
CASES = Path(__file__).resolve().parents[2] / "cases" / "grpo.jsonl"


def case(name: str) -> Any:
    return next(row for row in map(json.loads, CASES.read_text().splitlines()) if row["id"] == name)


def place(ask: Ask) -> int:
    return int(ask.group.rsplit("/", 1)[1])


def mixed(ask: Ask) -> bool:
    return ask.replica % 2 == 0


def solved(*places: int) -> Callable[[Ask], bool]:
    """Groups that come out all right; the others have contrast."""
    return lambda ask: place(ask) in places or mixed(ask)


def rounds(found: Bench) -> Rounds:
    return Rounds(found.context, found.stage, Stopwatch(found.context, "rl", 7))


def asked(found: Bench, problems: Iterator[Problem]) -> list[Ask]:
    return [ask for draw in rounds(found).draw(problems, 0, 2) for ask in draw.asks(found.stage, 0, 7)]


def test_what_a_step_asks_is_a_function_of_its_name(bench: MakeBench) -> None:
    found = bench(mixed)
    asks, again = (asked(found, Pool().of_step(7, 0)) for _ in range(2))
    assert asks == again
    assert len({ask.u for ask in asks}) == len(asks) == 8


def test_c011_a_problem_drawn_twice_makes_two_groups(bench: MakeBench) -> None:
    asks = asked(bench(mixed), iter([Problem("2+2?", "4")] * 2))
    assert len({ask.problem.id for ask in asks}) == 1
    assert len({ask.group for ask in asks}) == case("C011")["expected"]["groups"]


async def test_without_refill_rejected_groups_are_missing(bench: MakeBench) -> None:
    found = bench(solved(0))
    body = await found.step()
    assert len(found.rollouts.asked) == 1
    assert (body.metrics["kept_groups"], body.metrics["refill_rounds"], body.metrics["refilled_groups"]) == (1, 0, 0)


async def test_rejected_groups_are_replaced_by_new_problems_and_stay_on_record(bench: MakeBench) -> None:
    found = bench(solved(0, 2), refill=3)
    body = await found.step()
    first, second, third = [sorted({place(ask) for ask in asks}) for asks in found.rollouts.asked]
    assert (first, second, third) == ([0, 1], [2], [3]), "only as many as are missing"
    figures = {name: body.metrics[name] for name in ("kept_groups", "all_right", "refill_rounds", "refilled_groups")}
    assert figures == {"kept_groups": 2, "all_right": 2, "refill_rounds": 2, "refilled_groups": 2}
    assert {t.group for t in found.trajectories(body)} == {f"rl/1/{number}" for number in range(4)}
    assert len(found.lines("selections/rl/step-00001.jsonl")) == 4
    assert {ask.problem.text for asks in found.rollouts.asked for ask in asks} == {f"{i}+{i}?" for i in range(4)}


async def test_c075_a_refill_asks_for_the_missing_groups_only(bench: MakeBench) -> None:
    """50 of 64 groups passed: 14 new problems at most, not a whole batch."""
    row = case("C075")["input"]
    found = bench(lambda ask: place(ask) >= row["passed"] or mixed(ask), problems_per_step=row["need"], refill=1)
    await found.step()
    second = {place(ask) for ask in found.rollouts.asked[1]}
    assert len(second) == case("C075")["expected"]["new_requests_max"]


async def test_c071_data_without_any_contrast_end_the_refill_not_the_run(bench: MakeBench) -> None:
    found = bench(lambda _: False, refill=case("C071")["input"]["max_gen_batches"] - 1)
    body = await found.step()
    assert len(found.rollouts.asked) == case("C071")["input"]["max_gen_batches"]
    assert (body.metrics["empty"], body.metrics["all_wrong"]) == (1, 20)


async def test_a_group_that_was_lost_whole_is_replaced_too(bench: MakeBench) -> None:
    found = bench(lambda ask: None if place(ask) == 0 else mixed(ask), refill=1)
    body = await found.step()
    assert (body.metrics["kept_groups"], body.metrics["left_out"]) == (2, 4)


async def test_the_phases_of_each_round_are_told_and_the_load_once(bench: MakeBench) -> None:
    found = bench(solved(0), refill=1)
    body = await found.step()
    phases = [str(e.body.phase) for e in found.events() if isinstance(e.body, PhaseStarted)]
    assert phases == [*["sampling", "scoring", "downsampling"] * 2, "update", "push", "checkpoint"]
    (load,) = [e.body for e in found.events() if isinstance(e.body, SandboxLoad)]
    assert load.calls == len(found.trajectories(body))


async def test_the_next_step_draws_behind_the_problems_that_a_refill_took(bench: MakeBench) -> None:
    found = bench(solved(0), refill=1)
    await found.step()
    assert found.carried.cursor == 3
    await found.step(2)
    assert min(int(ask.problem.text.split("+")[0]) for ask in found.rollouts.asked[2]) == 3


async def test_a_step_done_again_asks_for_the_same(bench: MakeBench) -> None:
    found = bench(solved(0), refill=1)
    for _ in range(2):
        await rounds(found).gather(Pool(), cursor=4)
    assert len(found.rollouts.asked) == 4
    assert found.rollouts.asked[:2] == found.rollouts.asked[2:]


async def test_a_rollout_that_we_could_not_grade_is_left_out_like_one_that_we_spoiled(bench: MakeBench) -> None:
    found = bench(mixed)
    grade = found.context.grade

    async def all_but_the_first(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        first, *others = await grade(trajectories)
        return [first.model_copy(update={"reward": None, "reward_status": RewardStatus.unscored}), *others]

    found.context.grade = all_but_the_first
    body = await found.step()
    assert body.metrics["left_out"] == 1
    assert len(found.trajectories(body)) == 7
    assert {t.reward_status for t in found.trajectories(body)} == {RewardStatus.scored}
