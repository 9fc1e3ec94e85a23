"""A finished step happens exactly once, wherever the engine is killed between its writes."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.contract.commands import Command, CommandKind
from engine.contract.events import CheckpointSaved, CommandApplied, StepFinished, fold_steps
from engine.contract.job import JobSpec, Recipe
from engine.sink.event_log import EventLog, read_events
from engine.sink.run_folder import RunFolder
from engine.stages import commit
from engine.stages.commands import Inbox, StopRequested
from engine.stages.context import LearnerThread, StageContext
from engine.stages.progress import StageProgress

RECIPE = Recipe.model_validate(
    {
        "name": "test",
        "model": {"kind": "tiny-qwen3"},
        "stages": [{"name": "sft", "kind": "sft", "steps": 4}],
    }
)


class TextLearner:
    """Stands in for a learner where only its files matter."""

    def export(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "model.safetensors").write_text("weights")

    def save(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "optimizer").write_text("moments")


Open = Callable[[], tuple[StageContext, StageProgress]]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    job = JobSpec(run_id="r", created_at=0.0, digest=RECIPE.digest, recipe=RECIPE)
    return RunFolder.create(tmp_path / "run", job)


@pytest.fixture
def attempt(folder: RunFolder) -> Open:
    """Begin another attempt on the same folder, as after a kill."""

    def begin() -> tuple[StageContext, StageProgress]:
        log = EventLog(folder, folder.next_attempt())
        parts: dict[str, Any] = {name: SimpleNamespace() for name in ("renderer", "executor", "rollouts")}
        context = StageContext(
            recipe=RECIPE,
            folder=folder,
            attempt=log.attempt,
            log=log,
            learner_thread=LearnerThread(),
            inbox=Inbox(),
            policy=folder.model,
            held_out=frozenset(),
            **parts,
        )
        return context, StageProgress(context, "sft", steps=4)

    return begin


async def finish(progress: StageProgress, step: int, every: int = 1) -> None:
    done = StepFinished(stage="sft", step=step, metrics={"loss": 1.0 / step})
    await progress.finish_step(TextLearner(), done, version=step, every=every)


def told(folder: RunFolder) -> list[int]:
    return [e.body.step for e in read_events(folder) if isinstance(e.body, StepFinished)]


async def test_the_next_attempt_goes_on_after_the_last_checkpoint(attempt: Open, folder: RunFolder) -> None:
    _, progress = attempt()
    await finish(progress, 1)
    await finish(progress, 2)
    _, again = attempt()
    again.recover()
    assert again.next_step == 3
    assert again.checkpoint is not None
    assert again.checkpoint.version == 2
    assert told(folder) == [1, 2]


async def test_killed_between_checkpoint_and_event_the_event_is_written_by_the_next_attempt(
    attempt: Open, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, progress = attempt()
    await finish(progress, 1)

    def killed(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(progress, "_tell", killed)
    with pytest.raises(KeyboardInterrupt):
        await finish(progress, 2)
    assert told(folder) == [1]
    _, again = attempt()
    again.recover()
    assert told(folder) == [1, 2]
    assert again.next_step == 3


async def test_killed_within_a_checkpoint_the_one_before_stays_good(
    attempt: Open, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, progress = attempt()
    await finish(progress, 1)

    def full(_: object, path: Path) -> None:
        path.mkdir()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TextLearner, "save", full)
    with pytest.raises(OSError, match="No space left"):
        await finish(progress, 2)
    _, again = attempt()
    assert again.next_step == 2
    assert told(folder) == [1]


async def test_steps_between_checkpoints_are_done_again_and_the_later_attempt_stands(
    attempt: Open, folder: RunFolder
) -> None:
    _, progress = attempt()
    for step in (1, 2, 3):
        await finish(progress, step, every=2)
    _, again = attempt()
    assert again.next_step == 3
    await finish(again, 3, every=2)
    await finish(again, 4, every=2)
    steps = fold_steps(read_events(folder))
    assert sorted(step for _, step in steps) == [1, 2, 3, 4]


async def test_the_last_step_is_always_durable(attempt: Open) -> None:
    _, progress = attempt()
    await finish(progress, 4, every=100)
    assert progress.final().step == 4


async def test_a_stop_makes_the_step_durable_first_and_tells_it_once(attempt: Open, folder: RunFolder) -> None:
    context, progress = attempt()
    context.inbox.put(Command(kind=CommandKind.stop, by="test"))
    with pytest.raises(StopRequested, match="test"):
        await finish(progress, 1, every=100)
    assert told(folder) == [1]
    assert attempt()[1].next_step == 2


async def test_old_checkpoints_are_removed(attempt: Open, folder: RunFolder) -> None:
    _, progress = attempt()
    for step in (1, 2, 3):
        await finish(progress, step)
    assert [c.step for c in commit.all_of(folder, "sft")] == [2, 3]
    assert sum(isinstance(e.body, CheckpointSaved) for e in read_events(folder)) == 3


async def test_a_pause_makes_the_step_durable_and_holds_the_run_there(attempt: Open, folder: RunFolder) -> None:
    context, progress = attempt()
    applied = asyncio.Event()
    context.log.subscribe(lambda event: applied.set() if isinstance(event.body, CommandApplied) else None)
    context.inbox.put(Command(kind=CommandKind.pause, by="ada", id="cmd_1"))
    step = asyncio.ensure_future(finish(progress, 1, every=100))
    await asyncio.wait_for(applied.wait(), 5)
    assert told(folder) == [1]
    assert attempt()[1].next_step == 2, "killed in the pause, nothing is lost"
    assert not step.done()
    context.inbox.put(Command(kind=CommandKind.resume, by="ada", id="cmd_2"))
    await asyncio.wait_for(step, 5)
    told_of = [e.body.command.id for e in read_events(folder) if isinstance(e.body, CommandApplied)]
    assert told_of == ["cmd_1", "cmd_2"]


async def test_a_command_that_comes_while_nothing_is_durable_waits_for_the_next_step(
    attempt: Open, folder: RunFolder
) -> None:
    context, progress = attempt()
    await finish(progress, 1, every=100)
    context.inbox.put(Command(kind=CommandKind.checkpoint, by="ada"))
    assert attempt()[1].next_step == 1
    await finish(progress, 2, every=100)
    assert attempt()[1].next_step == 3
