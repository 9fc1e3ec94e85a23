"""An attempt from its first word to its last, with stages that do nothing: how it ends, and what is told of it."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.contract.commands import Command, CommandKind
from engine.contract.events import CommandApplied
from engine.contract.job import JobSpec, Recipe
from engine.sink.event_log import EventLog, read_events
from engine.sink.platform_client import Address, PlatformClient
from engine.sink.run_folder import RunFolder
from engine.sink.shipper import Pace, Shipper
from engine.stages import pipeline
from engine.stages.commands import Inbox, Superseded, obey
from engine.stages.pipeline import Outcome, run_attempt
from tests.engine.sink.platform_twin import TOKEN, PlatformTwin, serving

Work = Callable[[EventLog, Inbox], "asyncio.Future[None]"]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    stages = [{"name": "sft", "kind": "sft", "steps": 4}]
    recipe = Recipe.model_validate({"name": "t", "model": {"kind": "tiny-qwen3"}, "stages": stages})
    job = JobSpec(run_id="run-1", created_at=0.0, digest=recipe.digest, recipe=recipe)
    return RunFolder.create(tmp_path / "run", job)


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> Callable[[Work], None]:
    """Let an attempt consist of this work."""

    def be(work: Work) -> None:
        async def all_stages(folder: RunFolder, log: EventLog, inbox: Inbox, sandbox: str | None) -> None:
            await work(log, inbox)

        monkeypatch.setattr(pipeline, "all_stages", all_stages)

    return be


def told(folder: RunFolder) -> list[str]:
    return [event.body.type for event in read_events(folder)]


def put(inbox: Inbox, kind: str, number: int = 1) -> None:
    inbox.put(Command(kind=CommandKind(kind), by="ada", id=f"cmd_{number}"))


async def test_what_waits_at_the_end_is_answered_before_the_last_word(folder: RunFolder, stages: Callable) -> None:
    async def work(log: EventLog, inbox: Inbox) -> None:
        put(inbox, "pause")

    stages(work)
    assert await run_attempt(folder, Inbox()) is Outcome.finished
    assert told(folder) == ["run.started", "command.rejected", "run.finished"]


async def test_a_stop_in_what_can_be_done_again_is_told_as_applied(folder: RunFolder, stages: Callable) -> None:
    async def work(log: EventLog, inbox: Inbox) -> None:
        put(inbox, "stop")
        await inbox.unless_stopped(asyncio.Event().wait())

    stages(work)
    assert await run_attempt(folder, Inbox()) is Outcome.stopped
    assert told(folder) == ["run.started", "command.applied", "run.stopped"]


async def test_interrupted_a_stop_is_told_as_applied_too(folder: RunFolder, stages: Callable) -> None:
    async def work(log: EventLog, inbox: Inbox) -> None:
        put(inbox, "stop")
        running.cancel()
        await asyncio.Event().wait()

    stages(work)
    running = asyncio.ensure_future(run_attempt(folder, Inbox()))
    with pytest.raises(asyncio.CancelledError):
        await running
    assert told(folder) == ["run.started", "command.applied", "run.stopped"]


async def test_a_failure_rejects_what_waits(folder: RunFolder, stages: Callable) -> None:
    async def work(log: EventLog, inbox: Inbox) -> None:
        put(inbox, "checkpoint")
        raise ValueError("no")

    stages(work)
    with pytest.raises(ValueError, match="no"):
        await run_attempt(folder, Inbox())
    assert told(folder) == ["run.started", "command.rejected", "run.failed"]


def shipper_to(twin: PlatformTwin, folder: RunFolder) -> Shipper:
    pace = Pace(least_gap_s=0.001, heartbeat_s=0.01, first_pause_s=0.001, longest_pause_s=0.01, flush_s=5)
    return Shipper(folder, PlatformClient(Address(twin.url, TOKEN), "run-1"), pace=pace)


async def test_commands_of_the_platform_come_into_the_inbox_once(folder: RunFolder, stages: Callable) -> None:
    async def work(log: EventLog, inbox: Inbox) -> None:
        await inbox.arrival()
        await obey(inbox, log)

    stages(work)
    twin = PlatformTwin()
    twin.command(*(Command(kind=CommandKind(kind), by="ada", id=kind) for kind in ("pause", "checkpoint", "resume")))
    with serving(twin):
        shipper = shipper_to(twin, folder)
        assert await run_attempt(folder, Inbox(), shipper=shipper) is Outcome.finished
    assert shipper.delivered
    assert twin.events == list(read_events(folder))
    applied = [event.body.command.id for event in twin.events if isinstance(event.body, CommandApplied)]
    assert applied == ["pause", "checkpoint", "resume"]


async def test_superseded_it_ends_at_once_and_without_a_last_word(folder: RunFolder, stages: Callable) -> None:
    async def work(log: EventLog, inbox: Inbox) -> None:
        twin.superseded = True
        await asyncio.Event().wait()

    stages(work)
    twin = PlatformTwin()
    with serving(twin), pytest.raises(Superseded, match="another launch"):
        await asyncio.wait_for(run_attempt(folder, Inbox(), shipper=shipper_to(twin, folder)), 10)
    assert told(folder) == ["run.started"]


async def test_a_platform_that_hangs_is_left_when_the_wait_is_cancelled(folder: RunFolder, stages: Callable) -> None:
    async def work(log: EventLog, inbox: Inbox) -> None:
        pass

    stages(work)
    twin = PlatformTwin()
    twin.fault, twin.lateness = lambda number, batch: "late", 300.0
    with serving(twin):
        running = asyncio.ensure_future(run_attempt(folder, Inbox(), shipper=shipper_to(twin, folder)))
        await asyncio.to_thread(twin.until, lambda t: t.requests)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(60):  # far less than the platform takes
                await running
    assert told(folder)[-1] in ("run.finished", "run.stopped")
