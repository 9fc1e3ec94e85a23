"""Updates that were skipped for a loss that is not finite: kept, counted in a row, and the run paused over too many."""

import asyncio
import json
from collections.abc import Callable

import pytest

from engine.contract.commands import Command, CommandKind
from engine.contract.events import CommandApplied, StepFinished
from engine.learner.base import Sample
from engine.stages import commit
from engine.stages.carryover import CarryOver
from engine.stages.sampling import Ask
from engine.stages.skips import DoneUpdate, count_skips, watch_skips
from tests.engine.stages.bench import Bench

MakeBench = Callable[..., Bench]
GOOD, BAD = DoneUpdate([], {"skipped": 0.0}), DoneUpdate([], {"skipped": 1.0})


def mixed(ask: Ask) -> bool:
    return ask.replica % 2 == 0


async def test_the_batch_of_a_skipped_update_is_kept_with_the_reason(bench: MakeBench) -> None:
    found = bench(mixed, updates_per_step=2)
    found.learner.skips = {2}
    body = await found.step()
    (kept,) = found.lines("skipped/rl-step-00001.json")
    assert kept["reason"] == "loss is nan, logprob_gap_max is nan, logprob_gap_mean is nan"
    assert kept["trajectories"] == body.trajectories
    (update,) = kept["updates"]
    assert update["metrics"]["loss"] is None
    assert [sample["ids"] for sample in update["samples"]] == [list(s.ids) for s in found.learner.parts[1]]
    assert {sample["advantage"] for sample in update["samples"]} == {s.advantage for s in found.learner.parts[1]}
    assert found.warnings() == [
        f"rl, step 1: 1 of 2 updates skipped, {kept['reason']}; kept in attempts/0001/skipped/rl-step-00001.json"
    ]
    assert body.metrics["skipped"] == 1
    assert body.non_finite["loss"] == "nan"
    assert found.rollouts.published == [1], "the other update changed the weights"


async def test_a_step_whose_updates_were_all_skipped_pushes_nothing(bench: MakeBench) -> None:
    found = bench(mixed)
    found.learner.skips = {1}
    body = await found.step()
    assert (found.rollouts.published, found.context.version, body.metrics["empty"]) == ([], 0, 0)


async def test_after_too_many_in_a_row_the_run_pauses_with_the_reason_and_resume_counts_anew(bench: MakeBench) -> None:
    found = bench(mixed, skips_to_pause=2)
    found.learner.skips = {1, 2, 3}
    await found.step(1)
    running = asyncio.ensure_future(found.step(2))
    await until_applied(found, CommandKind.pause)
    assert not running.done(), "the run is held"
    stored = commit.latest(found.folder, "rl")
    assert stored is not None
    assert (stored.step, stored.pending["skips"]) == (2, 0), "durable first; another attempt counts anew"
    found.context.inbox.put(Command(kind=CommandKind.resume, by="ada"))
    await running
    await found.step(3)
    assert found.carried.skips == 1
    pause, _ = [e.body.command for e in found.events() if isinstance(e.body, CommandApplied)]
    assert pause.by == "engine: 2 updates in a row were skipped, up to step 2 of rl"
    assert any("the run pauses" in line for line in found.warnings())


async def until_applied(found: Bench, kind: CommandKind) -> None:
    told = asyncio.Event()

    def look(event: object) -> None:
        body = getattr(event, "body", None)
        if isinstance(body, CommandApplied) and body.command.kind is kind:
            told.set()

    found.context.log.subscribe(look)
    await asyncio.wait_for(told.wait(), 30)


async def test_the_count_survives_a_new_attempt(bench: MakeBench) -> None:
    found = bench(mixed)
    found.learner.skips = {1}
    await found.step()
    stored = commit.latest(found.folder, "rl")
    assert stored is not None
    assert CarryOver.of(stored.pending).skips == 1
    assert [e.body.step for e in found.events() if isinstance(e.body, StepFinished)] == [1]


@pytest.mark.parametrize(
    ("before", "updates", "reached", "after"),
    [
        (0, [BAD, BAD], False, 2),
        (2, [BAD], True, 0),
        (2, [GOOD, BAD], False, 1),
        (1, [BAD, BAD, GOOD], True, 0),
        (2, [], False, 2),
    ],
)
def test_skips_are_counted_in_a_row_over_steps(
    before: int, updates: list[DoneUpdate], reached: bool, after: int
) -> None:
    carried = CarryOver(skips=before)
    assert count_skips(carried, updates, 3) is reached
    assert carried.skips == after


async def test_an_sft_batch_is_kept_without_trajectories(bench: MakeBench) -> None:
    found = bench(mixed)
    update = DoneUpdate([Sample([1, 2], [False, True])], {"skipped": 1.0, "grad_norm": float("inf")})
    await watch_skips(found.context, found.stage, 4, CarryOver(), [update])
    kept = json.loads((found.folder.attempt(1) / "skipped" / "rl-step-00004.json").read_text())
    assert (kept["trajectories"], kept["reason"]) == (None, "grad_norm is inf")
    assert kept["updates"][0]["samples"] == [{"ids": [1, 2], "trained": [False, True], "advantage": 0.0}]
