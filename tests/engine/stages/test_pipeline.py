"""An attempt from its first word to its last, with stages that do nothing: how it ends, and what is told of it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.contract.commands import Command, CommandKind
from engine.contract.events import CommandApplied, EvalFinished, LogLine
from engine.contract.job import JobSpec, Provenance, Recipe
from engine.contract.stages import RlStage
from engine.data.protocol import TOOL_NAME
from engine.data.render import Renderer
from engine.data.tokenizer import save_tokenizer, train_tokenizer
from engine.reward.program import grader_program
from engine.rollout import patience
from engine.sink.event_log import EventLog, read_events
from engine.sink.platform_client import Address, PlatformClient
from engine.sink.run_folder import RunFolder
from engine.sink.shipper import Pace, Shipper
from engine.sink.trajectories import read_trajectories
from engine.stages import pipeline
from engine.stages.commands import Inbox, StopRequested, Superseded, obey
from engine.stages.context import StageContext
from engine.stages.pipeline import Outcome, run_attempt, warn_of_differences
from engine.stages.progress import StageProgress
from sandbox.places import TOKEN_VARIABLE
from tests.engine.sink.platform_twin import TOKEN, PlatformTwin, serving
from tests.engine.stages.bench import Bench, PlainSandbox

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


@pytest.mark.parametrize("token", [None, "slx_secret"])
async def test_a_sandbox_elsewhere_gets_the_token_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, folder: RunFolder, token: str | None
) -> None:
    asked: list[tuple[str, str | None]] = []

    @asynccontextmanager
    async def sandbox_at(url: str, token: str | None) -> AsyncIterator[object]:
        asked.append((url, token))
        yield object()

    monkeypatch.setattr(patience, "sandbox_at", sandbox_at)
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    if token:
        monkeypatch.setenv(TOKEN_VARIABLE, token)
    async with patience.open_sandbox("http://127.0.0.1:1", slots=1):
        assert asked == [("http://127.0.0.1:1", token)]


@pytest.mark.e2e
async def test_the_recipes_tools_and_grader_are_those_of_its_rollouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole evaluation by the scripted policy, on a sandbox of plain processes."""
    sandbox = PlainSandbox()

    @asynccontextmanager
    async def sandbox_at(url: str, token: str | None) -> AsyncIterator[PlainSandbox]:
        yield sandbox

    monkeypatch.setattr(patience, "sandbox_at", sandbox_at)
    problems = tmp_path / "problems.jsonl"
    problems.write_text('{"problem": "What is 17*23?", "answer": "391"}\n')
    stage = {"name": "e", "kind": "eval", "samples": 8, "greedy": False, "max_response_tokens": 1024}
    recipe = Recipe.model_validate(
        {
            "name": "own tool",
            "model": {"kind": "tiny-qwen3", "context_tokens": 4096},
            "tools": ["python", "docs.examples.own_tool:SequenceTool"],
            "rollout": {"kind": "scripted"},
            "scoring": {"where": "sandbox"},
            "stages": [{**stage, "problems": {"kind": "file", "path": str(problems)}}],
        }
    )
    job = JobSpec(run_id="run-1", created_at=0.0, digest=recipe.digest, recipe=recipe)
    folder = RunFolder.create(tmp_path / "run", job)
    save_tokenizer(train_tokenizer([], 300), folder.model)
    for name in ("config.json", "model.safetensors"):  # a model that a scripted policy has no use for
        (folder.model / name).write_text("{}")
    assert await run_attempt(folder, Inbox(), sandbox="unix:/any") is Outcome.finished
    (body,) = [event.body for event in read_events(folder) if isinstance(event.body, EvalFinished)]
    made = read_trajectories(folder.inside(body.trajectories or ""))
    prompt = Renderer(folder.model / "tokenizer.json").decode(made[0].prompt_ids)
    assert '"name": "look_up_sequence"' in prompt
    assert TOOL_NAME in prompt
    assert {(t.answer, t.reward) for t in made} == {("391", 1.0), ("392", 0.0)}
    assert sum(request.code == grader_program() for request in sandbox.requests) == 1
