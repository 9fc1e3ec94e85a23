"""An attempt from its first word to its last, with stages that do nothing: how it ends, and what is told of it."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.contract.commands import Command, CommandKind
from engine.contract.events import CommandApplied, LogLine
from engine.contract.job import JobSpec, Provenance, Recipe, RlStage
from engine.sink.event_log import EventLog, read_events
from engine.sink.platform_client import Address, PlatformClient
from engine.sink.run_folder import RunFolder
from engine.sink.shipper import Pace, Shipper
from engine.stages import pipeline
from engine.stages.commands import Inbox, StopRequested, Superseded, obey
from engine.stages.context import StageContext
from engine.stages.pipeline import Outcome, run_attempt, warn_of_differences
from engine.stages.progress import StageProgress
from tests.engine.sink.platform_twin import TOKEN, PlatformTwin, serving
from tests.engine.stages.bench import Bench

Work = Callable[[EventLog, Inbox], "asyncio.Future[None]"]


def make_folder(path: Path, provenance: Provenance | None = None) -> RunFolder:
    stages = [{"name": "sft", "kind": "sft", "steps": 4}]
    recipe = Recipe.model_validate({"name": "t", "model": {"kind": "tiny-qwen3"}, "stages": stages})
    job = JobSpec(run_id="run-1", created_at=0.0, digest=recipe.digest, recipe=recipe, provenance=provenance)
    return RunFolder.create(path, job)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return make_folder(tmp_path / "run")


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


@pytest.mark.parametrize(("attempt", "warned"), [(1, False), (2, True)])
def test_a_resumed_run_says_what_is_no_longer_as_it_was(tmp_path: Path, attempt: int, warned: bool) -> None:
    folder = make_folder(tmp_path / "run", Provenance(code="other", lock="other"))
    logs = [EventLog(folder, folder.next_attempt()) for _ in range(attempt)]
    warn_of_differences(folder, logs[-1])
    lines = [e.body.message for e in read_events(folder) if isinstance(e.body, LogLine)]
    assert bool(lines) is warned
    assert all(line.startswith("not as when the run was made: ") for line in lines)


async def test_a_stage_gone_on_with_starts_where_it_started_and_counts_versions_on(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference of a KL term, and the weights below adapters, are those of before the stage's own checkpoints."""
    found = bench(lambda ask: ask.replica % 2 == 0)
    start = found.context.policy
    await found.step(1)
    found.context.version = 0
    seen: list[object] = []

    async def train(context: StageContext, stage: RlStage, progress: StageProgress) -> None:
        seen.extend([context.policy, context.version, progress.next_step])
        raise StopRequested("ada")

    monkeypatch.setattr(pipeline, "train", train)
    with pytest.raises(StopRequested):
        await pipeline.run_trained(found.context, found.stage)
    assert seen == [start, 1, 2]


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
