"""Every command is answered exactly once, wherever and whenever it comes; a pause holds, a stop ends."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.contract.commands import Command, CommandKind
from engine.contract.events import CommandApplied, CommandRejected
from engine.contract.job import JobSpec, Recipe
from engine.sink.event_log import EventLog, read_events
from engine.sink.run_folder import RunFolder
from engine.stages.commands import Inbox, StopRequested, Superseded, obey, settle


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    stages = [{"name": "sft", "kind": "sft", "steps": 4}]
    recipe = Recipe.model_validate({"name": "t", "model": {"kind": "tiny-qwen3"}, "stages": stages})
    job = JobSpec(run_id="r", created_at=0.0, digest=recipe.digest, recipe=recipe)
    folder = RunFolder.create(tmp_path / "run", job)
    with EventLog(folder, folder.next_attempt()) as opened:
        yield opened


def inbox_of(*kinds: str) -> Inbox:
    inbox = Inbox()
    for kind in kinds:
        inbox.put(Command(kind=CommandKind(kind), by="ada"))
    return inbox


def answers(log: EventLog) -> list[str]:
    told = []
    for event in read_events(log._folder):
        match event.body:
            case CommandApplied() as body:
                told.append(f"{body.command.kind} applied")
            case CommandRejected() as body:
                told.append(f"{body.command.kind} rejected: {body.reason}")
    return told


async def test_without_commands_the_run_goes_on(log: EventLog) -> None:
    await obey(Inbox(), log)
    assert answers(log) == []


@pytest.mark.parametrize(
    ("kinds", "told"),
    [
        (["checkpoint"], ["checkpoint applied"]),
        (["pause", "resume"], ["pause applied", "resume applied"]),
        (["resume"], ["resume rejected: the run is not paused"]),
        (
            ["pause", "pause", "checkpoint", "resume"],
            ["pause applied", "pause rejected: the run is paused already", "checkpoint applied", "resume applied"],
        ),
    ],
)
async def test_what_becomes_of_commands(log: EventLog, kinds: list[str], told: list[str]) -> None:
    await asyncio.wait_for(obey(inbox_of(*kinds), log), 5)
    assert answers(log) == told


async def test_a_paused_run_is_held_until_it_is_resumed(log: EventLog) -> None:
    inbox = inbox_of("pause")
    held = asyncio.ensure_future(obey(inbox, log))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not held.done()
    inbox.put(Command(kind=CommandKind.checkpoint, by="ada"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert answers(log) == ["pause applied", "checkpoint applied"]
    assert not held.done()
    inbox.put(Command(kind=CommandKind.resume, by="ada"))
    await asyncio.wait_for(held, 5)


async def test_a_paused_run_can_be_stopped(log: EventLog) -> None:
    inbox = inbox_of("pause")
    held = asyncio.ensure_future(obey(inbox, log))
    await asyncio.sleep(0)
    inbox.put(Command(kind=CommandKind.stop, by="signal SIGTERM"))
    with pytest.raises(StopRequested, match="SIGTERM"):
        await asyncio.wait_for(held, 5)
    assert answers(log) == ["pause applied", "stop applied"]


async def test_what_comes_behind_a_stop_is_answered_too(log: EventLog) -> None:
    inbox = inbox_of("stop", "checkpoint", "stop")
    with pytest.raises(StopRequested):
        await obey(inbox, log)
    settle(inbox, log, "stopped")
    assert answers(log) == ["stop applied", "checkpoint rejected: the run has stopped", "stop applied"]


@pytest.mark.parametrize("ended", ["finished", "failed"])
async def test_what_waits_at_the_end_is_rejected(log: EventLog, ended: str) -> None:
    settle(inbox_of("pause", "stop"), log, ended)
    assert answers(log) == [f"pause rejected: the run has {ended}", f"stop rejected: the run has {ended}"]


async def test_a_command_with_an_id_comes_once_however_often_it_is_sent(log: EventLog) -> None:
    inbox = Inbox()
    for _ in range(2):
        for number in (1, 2):
            inbox.put(Command(kind=CommandKind.checkpoint, by="ada", id=f"cmd_{number}"))
    await obey(inbox, log)
    inbox.put(Command(kind=CommandKind.checkpoint, by="ada", id="cmd_1"))
    await obey(inbox, log)
    assert answers(log) == ["checkpoint applied"] * 2


async def test_signals_have_no_id_and_all_of_them_count(log: EventLog) -> None:
    await obey(inbox_of("checkpoint", "checkpoint"), log)
    assert answers(log) == ["checkpoint applied"] * 2


async def forever() -> None:
    await asyncio.Event().wait()


async def test_a_stop_cancels_work_that_can_be_done_again_and_is_told(log: EventLog) -> None:
    inbox = inbox_of("pause", "stop")
    with pytest.raises(StopRequested, match="ada"):
        await inbox.unless_stopped(forever())
    settle(inbox, log, "stopped")
    assert answers(log) == ["pause rejected: the run has stopped", "stop applied"]


async def test_a_pause_does_not_cancel_it() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 5

    assert await inbox_of("pause", "checkpoint").unless_stopped(answer()) == 5


async def test_a_run_that_another_launch_took_over_is_cancelled_at_once() -> None:
    inbox, cleaned = Inbox(), []

    async def work() -> None:
        try:
            await forever()
        finally:
            cleaned.append(True)

    running = asyncio.ensure_future(inbox.unless_superseded(work()))
    await asyncio.sleep(0)
    inbox.supersede("another launch")
    with pytest.raises(Superseded, match="another launch"):
        await asyncio.wait_for(running, 5)
    assert cleaned
