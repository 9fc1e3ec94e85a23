"""A finished step happens exactly once and is told in order, wherever the engine is killed, however slow a disk is."""

import asyncio
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.contract.commands import Command, CommandKind
from engine.contract.events import CheckpointSaved, CommandApplied, LogLine, StepFinished, fold_steps
from engine.contract.job import JobSpec, Recipe
from engine.contract.stages import SftStage
from engine.sink.disk import SinkFull
from engine.sink.event_log import EventLog, read_events
from engine.sink.run_folder import RunFolder
from engine.stages import commit
from engine.stages.commands import Inbox, StopRequested
from engine.stages.context import LearnerThread, StageContext
from engine.stages.progress import StageProgress
from tests.engine.stages.text_learner import TextLearner

FULL = OSError(28, "No space left on device")


def recipe(**fields: object) -> Recipe:
    stage = {"name": "sft", "kind": "sft", "steps": 4, "checkpoint_every": 1, **fields}
    return Recipe.model_validate({"name": "test", "model": {"kind": "tiny-qwen3"}, "stages": [stage]})


class Attempt:
    """One engine's life in a run folder; ``life`` is a metric of its steps, so that it is seen whose step is told."""

    def __init__(self, folder: RunFolder, **fields: object) -> None:
        log = EventLog(folder, folder.next_attempt())
        parts: dict[str, Any] = {name: SimpleNamespace() for name in ("renderer", "sandbox", "grade", "rollouts")}
        found = recipe(**fields)
        self.context = StageContext(
            recipe=found,
            folder=folder,
            attempt=log.attempt,
            log=log,
            learner_thread=LearnerThread(),
            inbox=Inbox(),
            policy=folder.model,
            held_out=frozenset(),
            **parts,
        )
        stage = found.stages[0]
        assert isinstance(stage, SftStage)
        self.progress = StageProgress(self.context, stage)
        self.learner = TextLearner()

    async def finish(self, step: int) -> None:
        self.learner.text = f"after step {step}"
        metrics = {"loss": 1.0 / step, "life": float(self.context.attempt)}
        done = StepFinished(stage="sft", step=step, metrics=metrics)
        await self.progress.finish_step(self.learner, done, version=step, pending={"seen": step})

    async def finish_all(self) -> None:
        """What a stage does: recover, the steps that are left, its end."""
        self.progress.recover()
        for step in range(self.progress.next_step, 5):
            await self.finish(step)
        await self.progress.final()

    def command(self, kind: str, number: int = 1) -> None:
        self.context.inbox.put(Command(kind=CommandKind(kind), by="ada", id=f"cmd_{number}"))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    found = recipe()
    job = JobSpec(run_id="r", created_at=0.0, digest=found.digest, recipe=found)
    return RunFolder.create(tmp_path / "run", job)


Begin = Callable[..., Attempt]


@pytest.fixture
async def attempt(folder: RunFolder) -> AsyncIterator[Begin]:
    """Begin another attempt on the same folder, as after a kill."""
    begun: list[Attempt] = []

    def begin(**fields: object) -> Attempt:
        begun.append(Attempt(folder, **fields))
        return begun[-1]

    yield begin
    for each in begun:
        each.learner.close()
        await each.progress.close()
        each.context.learner_thread.close()


def told(folder: RunFolder) -> list[int]:
    return [e.body.step for e in read_events(folder) if isinstance(e.body, StepFinished)]


def steps(folder: RunFolder) -> list[int]:
    return [checkpoint.step for checkpoint in commit.all_of(folder, "sft")]


# --- going on ---


async def test_the_next_attempt_goes_on_after_the_last_checkpoint(attempt: Begin, folder: RunFolder) -> None:
    first = attempt()
    assert (first.progress.next_step, first.progress.pending) == (1, {})
    for step in (1, 2):
        await first.finish(step)
    await first.progress.close()
    again = attempt()
    again.progress.recover()
    assert (again.progress.next_step, again.progress.pending) == (3, {"seen": 2})
    assert again.progress.checkpoint is not None
    assert again.progress.checkpoint.version == 2
    assert told(folder) == [1, 2]


async def test_a_learner_is_opened_with_what_the_last_checkpoint_holds(attempt: Begin) -> None:
    first = attempt()
    await first.finish(1)
    await first.progress.close()
    again = attempt()
    assert await again.progress.open_learner(lambda: again.learner) is again.learner
    assert again.learner.text == "after step 1"


async def test_steps_between_checkpoints_are_done_again_and_the_later_attempt_stands(
    attempt: Begin, folder: RunFolder
) -> None:
    first = attempt(checkpoint_every=2)
    for step in (1, 2, 3):
        await first.finish(step)
    await first.progress.close()
    assert told(folder) == [1, 2, 3]
    await attempt(checkpoint_every=2).finish_all()
    lives = {step: body.metrics["life"] for (_, step), body in fold_steps(read_events(folder)).items()}
    assert lives == {1: 1.0, 2: 1.0, 3: 2.0, 4: 2.0}


async def test_the_last_step_is_always_durable(attempt: Begin) -> None:
    progress = (last := attempt(checkpoint_every=100)).progress
    await last.finish(4)
    assert progress.checkpoint is not None
    assert (await progress.final()).step == 4


async def test_a_stage_that_stopped_early_has_no_final_checkpoint(attempt: Begin) -> None:
    early = attempt()
    await early.finish(1)
    with pytest.raises(RuntimeError, match="without a checkpoint of its last step 4"):
        await early.progress.final()


# --- behind the next step's back ---


async def test_the_next_step_does_not_wait_for_the_disk_but_is_told_after_it(attempt: Begin, folder: RunFolder) -> None:
    slow = attempt(checkpoint_every=2)
    await slow.finish(1)
    slow.learner.gate.clear()
    await slow.finish(2)
    await slow.finish(3)
    assert told(folder) == [1]
    assert steps(folder) == []
    slow.learner.gate.set()
    await slow.progress.close()
    assert told(folder) == [1, 2, 3]
    assert steps(folder) == [2]


async def test_a_step_is_told_once_its_checkpoint_is_durable_not_a_step_later(
    attempt: Begin, folder: RunFolder
) -> None:
    first = attempt(checkpoint_every=1)
    durable = asyncio.Event()
    loop = asyncio.get_running_loop()
    first.context.log.subscribe(lambda _: loop.call_soon_threadsafe(durable.set))
    await first.finish(1)
    await asyncio.wait_for(durable.wait(), 5)
    assert (steps(folder), told(folder)) == ([1], [1])


async def test_one_checkpoint_is_written_at_a_time(attempt: Begin, folder: RunFolder) -> None:
    slow = attempt()
    slow.learner.gate.clear()
    await slow.finish(1)
    second = asyncio.ensure_future(slow.finish(2))
    await asyncio.sleep(0)
    assert not second.done()
    slow.learner.gate.set()
    await second
    await slow.progress.close()
    assert told(folder) == [1, 2]
    assert (commit.all_of(folder, "sft")[0].learner / "state").read_text() == "after step 1"


async def test_what_a_write_raised_comes_out_at_the_next_step(attempt: Begin, folder: RunFolder) -> None:
    full = attempt()
    await full.finish(1)
    await full.progress.close()
    full.learner.error = FULL
    await full.finish(2)
    with pytest.raises(SinkFull, match=r"checkpoints/sft: the disk is full"):
        await full.finish(3)
    assert told(folder) == [1]
    assert attempt().progress.next_step == 2
    parent = folder.checkpoint(1, "sft", 0).parent
    assert [path.name for path in parent.iterdir()] == ["step-00001"]


async def test_what_a_write_raised_comes_out_at_a_step_without_a_checkpoint_too(attempt: Begin) -> None:
    full = attempt(checkpoint_every=2)
    full.learner.error = FULL
    await full.finish(2)
    await asyncio.wait([full.progress._in_flight])  # type: ignore[list-item]
    with pytest.raises(SinkFull):
        await full.finish(3)


async def test_what_the_last_write_raised_comes_out_before_the_stage_ends(attempt: Begin) -> None:
    full = attempt()
    full.learner.error = FULL
    with pytest.raises(SinkFull):
        await full.finish(4)


async def test_a_stage_that_fails_waits_for_its_checkpoint_and_tells_it(attempt: Begin, folder: RunFolder) -> None:
    failing = attempt()
    failing.learner.gate.clear()
    await failing.finish(1)
    closing = asyncio.ensure_future(failing.progress.close())
    await asyncio.sleep(0)
    assert not closing.done()
    failing.learner.gate.set()
    await closing
    assert told(folder) == [1]


async def test_a_stage_that_fails_while_its_disk_is_full_says_so_and_keeps_its_own_reason(
    attempt: Begin, folder: RunFolder
) -> None:
    failing = attempt()
    failing.learner.error = FULL
    await failing.finish(1)
    await failing.progress.close()
    lines = [e.body for e in read_events(folder) if isinstance(e.body, LogLine)]
    assert [line.level for line in lines] == ["warning"]
    assert "its last checkpoint was not written" in lines[0].message


async def test_an_interrupted_wait_still_leaves_the_checkpoint_to_be_finished(
    attempt: Begin, folder: RunFolder
) -> None:
    interrupted = attempt()
    interrupted.learner.gate.clear()
    await interrupted.finish(1)
    waiting = asyncio.ensure_future(interrupted.finish(2))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    interrupted.learner.gate.set()
    await interrupted.progress.close()
    assert (steps(folder), told(folder)) == ([1], [1])


# --- commands ---


async def test_a_stop_makes_the_step_durable_first_and_tells_it_once(attempt: Begin, folder: RunFolder) -> None:
    stopped = attempt(checkpoint_every=100)
    stopped.command("stop")
    with pytest.raises(StopRequested, match="ada"):
        await stopped.finish(1)
    assert told(folder) == [1]
    assert attempt().progress.next_step == 2


async def test_a_stop_that_comes_during_a_write_waits_for_it_and_for_its_own_step(
    attempt: Begin, folder: RunFolder
) -> None:
    stopped = attempt(checkpoint_every=2)
    stopped.learner.gate.clear()
    await stopped.finish(2)
    stopped.command("stop")
    step = asyncio.ensure_future(stopped.finish(3))
    await asyncio.sleep(0)
    assert not step.done()
    stopped.learner.gate.set()
    with pytest.raises(StopRequested):
        await step
    assert told(folder) == [2, 3]
    assert attempt().progress.next_step == 4


async def test_a_pause_makes_the_step_durable_and_holds_the_run_there(attempt: Begin, folder: RunFolder) -> None:
    paused = attempt(checkpoint_every=100)
    applied = asyncio.Event()
    paused.context.log.subscribe(lambda event: applied.set() if isinstance(event.body, CommandApplied) else None)
    paused.command("pause", 1)
    step = asyncio.ensure_future(paused.finish(1))
    await asyncio.wait_for(applied.wait(), 5)
    assert told(folder) == [1]
    assert attempt().progress.next_step == 2, "killed in the pause, nothing is lost"
    assert not step.done()
    paused.command("resume", 2)
    await asyncio.wait_for(step, 5)
    told_of = [e.body.command.id for e in read_events(folder) if isinstance(e.body, CommandApplied)]
    assert told_of == ["cmd_1", "cmd_2"]


async def test_a_command_that_comes_while_nothing_is_durable_waits_for_the_next_step(
    attempt: Begin, folder: RunFolder
) -> None:
    first = attempt(checkpoint_every=100)
    await first.finish(1)
    first.command("checkpoint")
    assert attempt().progress.next_step == 1
    await first.finish(2)
    assert attempt().progress.next_step == 3


# --- what is kept ---


async def test_old_checkpoints_are_removed_while_the_stage_runs(attempt: Begin, folder: RunFolder) -> None:
    running = attempt(checkpoints_kept=2)
    for step in (1, 2, 3):
        await running.finish(step)
    await running.progress.close()
    assert steps(folder) == [2, 3]
    assert sum(isinstance(e.body, CheckpointSaved) for e in read_events(folder)) == 3


async def test_the_checkpoint_gone_on_from_is_kept_until_the_stage_ends(attempt: Begin, folder: RunFolder) -> None:
    first = attempt()
    await first.finish(1)
    await first.progress.close()
    again = attempt(checkpoints_kept=1)
    for step in (2, 3):
        await again.finish(step)
    await again.progress.close()
    assert steps(folder) == [1, 3]
    await again.finish(4)
    await again.progress.final()
    assert steps(folder) == [4]


async def test_of_a_finished_stage_the_last_the_best_and_the_pinned_stay(attempt: Begin, folder: RunFolder) -> None:
    done = attempt(checkpoints_kept=4, best_by="loss")
    for step in (1, 2, 3, 4):
        await done.finish(step)
    (folder.checkpoint(1, "sft", 3) / commit.PINNED).touch()
    await done.progress.final()
    assert steps(folder) == [1, 3, 4]


# --- killed anywhere ---


class Photographer:
    """Copies the run folder before and after everything that changes what a killed engine would leave behind."""

    def __init__(self, folder: RunFolder, album: Path) -> None:
        self.folder = folder
        self.album = album
        self.pictures: list[Path] = []
        self._still = threading.RLock()
        self._last: object = None

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Every rename, every event, every file that is removed is a moment to be killed at."""
        patch.setattr(os, "replace", self.around(os.replace))
        patch.setattr(EventLog, "append", self.around(EventLog.append))
        remove = shutil.rmtree

        def one_by_one(path: Path, **options: Any) -> None:
            for file in sorted(each for each in path.rglob("*") if each.is_file()):
                file.unlink()
                self.take()
            remove(path, **options)

        patch.setattr(shutil, "rmtree", self.around(one_by_one))

    def around(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def photographed(*arguments: Any, **options: Any) -> Any:
            with self._still:
                self.take()
                result = change(*arguments, **options)
                self.take()
                return result

        return photographed

    def take(self) -> None:
        """A picture, unless nothing has changed since the last one."""
        files = {path: path.is_file() and path.read_bytes() for path in self.folder.path.rglob("*")}
        if files != self._last:
            self._last = files
            picture = self.album / f"{len(self.pictures):03d}"
            shutil.copytree(self.folder.path, picture)
            self.pictures.append(picture)


@pytest.mark.parametrize("every", [1, 2])
async def test_killed_at_any_moment_each_step_happens_exactly_once(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # nobody pulls the plug here: it only takes time
    photographer = Photographer(folder, tmp_path / "album")
    with pytest.MonkeyPatch.context() as patch:
        photographer.watch(patch)
        first = Attempt(folder, checkpoint_every=every, checkpoints_kept=1)
        await first.finish_all()
        first.learner.close()
    assert len(photographer.pictures) > 10
    for picture in photographer.pictures:
        await assert_goes_on(RunFolder(picture), every)


async def assert_goes_on(folder: RunFolder, every: int) -> None:
    again = Attempt(folder, checkpoint_every=every, checkpoints_kept=1)
    again.progress.recover()
    for checkpoint in commit.all_of(folder, "sft"):
        assert (checkpoint.learner / "state").read_text() == f"after step {checkpoint.step}"
        assert (checkpoint.model / "model.safetensors").is_file()
    durable = again.progress.next_step - 1
    assert [step for step in told(folder) if step <= durable] == list(range(1, durable + 1))
    await again.finish_all()
    again.learner.close()
    lives = {step: body.metrics["life"] for (_, step), body in fold_steps(read_events(folder)).items()}
    assert lives == {step: 1.0 if step <= durable else 2.0 for step in (1, 2, 3, 4)}
    assert steps(folder) == [4]
    assert list(folder.path.rglob(".*")) == []


async def test_killed_after_the_last_rename_only_the_events_are_left_to_do(
    attempt: Begin, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = attempt()
    monkeypatch.setattr(killed.progress, "_bodies", lambda _: ())
    for step in (1, 2, 3, 4):
        await killed.finish(step)
    assert told(folder) == []
    again = attempt()
    again.progress.recover()
    assert (again.progress.next_step, told(folder)) == (5, [4])
    assert (await again.progress.final()).step == 4
