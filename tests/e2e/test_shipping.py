"""A run as a platform launches it: no terminal, everything shipped, commands from afar, hand-overs and outages.

With the scripted engine and an honest platform in memory (``tests/engine/sink/platform_twin.py``).
"""

import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.contract.commands import Command, CommandKind
from engine.contract.delivery import ShippedTrajectory
from engine.contract.events import (
    CommandApplied,
    CommandRejected,
    EvalFinished,
    Event,
    LogLine,
    Phase,
    PhaseStarted,
    RunFinished,
    RunHeartbeat,
    RunStopped,
    StepFinished,
)
from engine.contract.job import JobSpec, Recipe
from engine.sink.event_log import read_events
from engine.sink.run_folder import RunFolder
from engine.sink.trajectories import read_trajectories
from sandbox.doors.remote import CONNECT_S
from tests.engine.sink.platform_twin import TOKEN, PlatformTwin, serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
Tools = dict[str, Any]


def recipe(folder: Path, *, rl_steps: int = 4) -> Recipe:
    model = {"kind": "tiny-qwen3", "hidden_size": 32, "layers": 1, "heads": 2, "ffn_size": 64, "vocab_size": 512}
    sft = {"name": "sft", "kind": "sft", "steps": 4, "examples": 40, "batch_size": 4, "checkpoint_every": 2}
    rl = {
        "name": "rl",
        "kind": "rl",
        "steps": rl_steps,
        "problems": {"kind": "file", "path": str(folder / "data" / "problems.jsonl")},
        "problems_per_step": 4,
        "rollouts_per_problem": 8,
        "keep_per_problem": 4,
        "max_response_tokens": 300,
        "max_logprob_gap": 1e9,
    }
    evaluation = {"name": "eval", "kind": "eval", "max_response_tokens": 160, "count": 4}
    stages = [sft, rl, evaluation]
    return Recipe.model_validate(
        {"name": "scripted", "model": model, "rollout": {"kind": "scripted"}, "stages": stages}
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a platform prepares, and no more: the job and its data."""
    path = tmp_path / "run"
    (path / "data").mkdir(parents=True)
    lines = [f'{{"problem": "What is {a}*{a + 3}?", "answer": "{a * (a + 3)}"}}' for a in range(11, 41)]
    (path / "data" / "problems.jsonl").write_text("\n".join(lines) + "\n")
    found = recipe(path)
    job = JobSpec(run_id="run-1", created_at=time.time(), digest=found.digest, recipe=found)
    (path / "job.json").write_text(job.model_dump_json())
    return path


@pytest.fixture
def tools(start: Any, until: Any, assert_gone: Any) -> Tools:
    return {"start": start, "until": until, "assert_gone": assert_gone}


@pytest.fixture
def launch(tools: Tools, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Start the engine as an agent does."""

    def begin(url: str) -> Any:
        monkeypatch.setenv("STARLOOM_PLATFORM_URL", url)
        monkeypatch.setenv("STARLOOM_RUN_TOKEN", TOKEN)
        return tools["start"]("resume", folder)

    return begin


def command(kind: str, number: int) -> Command:
    return Command(kind=CommandKind(kind), by="ada", id=f"cmd_{number}")


def answered(number: int) -> Callable[[PlatformTwin], bool]:
    def check(twin: PlatformTwin) -> bool:
        bodies = [event.body for event in twin.events]
        return any(isinstance(b, CommandApplied | CommandRejected) and b.command.id == f"cmd_{number}" for b in bodies)

    return check


def marks(stage: str, step: int, phase: Phase) -> Callable[[Event], bool]:
    def told(event: Event) -> bool:
        body = event.body
        return isinstance(body, PhaseStarted) and (body.stage, body.step, body.phase) == (stage, step, phase)

    return told


def has(check: Callable[[Event], bool]) -> Callable[[PlatformTwin], bool]:
    return lambda twin: any(check(event) for event in twin.events)


def assert_complete(folder: Path, twin: PlatformTwin) -> None:
    """The platform has the folder: every event once and in order, every trajectory as in its Parquet file."""
    opened = RunFolder.open(folder)
    assert twin.events == list(read_events(opened, lambda torn: None))
    files = [
        body.trajectories
        for event in twin.events
        if isinstance(body := event.body, StepFinished | EvalFinished) and body.trajectories
    ]
    expected = {
        (file, row): ShippedTrajectory.of(trajectory, file, row)
        for file in files
        for row, trajectory in enumerate(read_trajectories(opened.inside(file)))
    }
    assert twin.trajectories == expected
    assert twin.there_with == {file: sum(name == file for name, _ in expected) for file in files}


def assert_no_child_has_the_token(process: psutil.Process) -> None:
    children = process.children(recursive=True)
    assert children, "the sandbox at least"
    for child in children:
        assert "STARLOOM_RUN_TOKEN" not in child.environ()


def test_paused_resumed_stopped_and_finished_by_a_second_attempt(
    folder: Path, launch: Callable[[str], Any], tools: Tools
) -> None:
    twin = PlatformTwin()
    with serving(twin) as url:
        engine = launch(url)
        twin.until(has(marks("rl", 1, Phase.sampling)), 120)
        twin.command(command("resume", 0), command("pause", 1))
        twin.until(answered(1), 60)
        held = len(twin.events)
        assert_no_child_has_the_token(psutil.Process(engine.process.pid))
        twin.until(lambda t: any(isinstance(e.body, RunHeartbeat) for e in t.events[held:]), 30)
        assert {type(e.body) for e in twin.events[held:]} == {RunHeartbeat}, "held: nothing but heartbeats"
        twin.command(command("checkpoint", 2), command("pause", 3))
        twin.until(answered(3), 30)
        twin.command(command("resume", 4))
        twin.until(has(marks("rl", 2, Phase.update)), 60)
        twin.command(command("stop", 5))
        assert engine.wait(60) == 3, engine.output()
        answers = {
            body.command.id: body.type.removeprefix("command.")
            for event in twin.events
            if isinstance(body := event.body, CommandApplied | CommandRejected)
        }
        assert answers == {
            "cmd_0": "rejected",
            "cmd_1": "applied",
            "cmd_2": "applied",
            "cmd_3": "rejected",
            "cmd_4": "applied",
            "cmd_5": "applied",
        }
        assert twin.waiting == []
        assert isinstance(twin.events[-1].body, RunStopped)
        assert_complete(folder, twin)
        again = launch(url)
        assert again.wait(120) == 0, again.output()
    assert isinstance(twin.events[-1].body, RunFinished)
    assert_complete(folder, twin)
    steps = [e.body.step for e in twin.events if isinstance(e.body, StepFinished) and e.body.stage == "rl"]
    assert steps == [1, 2, 3, 4]
    assert TOKEN not in engine.output()
    assert "\x1b" not in engine.output(), "plain lines: nobody watches a terminal"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_killed_while_the_platform_is_down_the_next_attempt_sends_everything(
    folder: Path, launch: Callable[[str], Any], tools: Tools
) -> None:
    twin, port = PlatformTwin(), free_port()
    engine = launch(f"http://127.0.0.1:{port}")
    tools["until"](engine, folder, 1, marks("rl", 2, Phase.sampling))
    tools["assert_gone"](engine.kill())
    with serving(twin, port) as url:
        again = launch(url)
        assert again.wait(120) == 0, again.output()
    assert {event.attempt for event in twin.events} == {1, 2}
    assert_complete(folder, twin)


@pytest.mark.long
def test_sigterm_stops_at_the_end_of_the_step_and_what_is_undelivered_is_said(
    folder: Path, launch: Callable[[str], Any], tools: Tools
) -> None:
    twin = PlatformTwin()
    with serving(twin) as url:
        engine = launch(url)
        twin.until(has(marks("rl", 1, Phase.sampling)), 120)
    engine.process.send_signal(signal.SIGTERM)
    assert engine.wait(90) == 3, engine.output()
    assert f"python manage.py ingest {folder}" in engine.output().replace("\n", "")
    told = list(read_events(RunFolder.open(folder)))
    assert isinstance(told[-1].body, RunStopped)
    assert any(isinstance(e.body, StepFinished) and e.body.stage == "rl" for e in told)


@pytest.mark.long
def test_another_launch_takes_over_without_losing_anything(
    folder: Path, launch: Callable[[str], Any], tools: Tools
) -> None:
    """The older engine ends by itself, at once and without a last word; the newer one waits for it."""
    old, new = PlatformTwin(), PlatformTwin()
    with serving(old) as old_url, serving(new) as new_url:
        first = launch(old_url)
        old.until(has(marks("rl", 1, Phase.sampling)), 120)
        second = launch(new_url)
        old.superseded = True
        assert first.wait(60) == 4, first.output()
        assert second.wait(120) == 0, second.output()
    assert "another launch of this run has taken over" in first.output()
    last_of_first = [event for event in new.events if event.attempt == 1][-1]
    assert not isinstance(last_of_first.body, RunStopped | RunFinished)
    assert isinstance(new.events[-1].body, RunFinished)
    assert_complete(folder, new)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder of our own with a path short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="starloom-") as made:
        yield Path(made)


@contextmanager
def sandbox_node(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "sandbox", "node", "--socket", str(path)], cwd=ROOT, stdin=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


def test_a_sandbox_node_that_is_gone_for_seconds_costs_no_rollout(folder: Path, place: Path, tools: Tools) -> None:
    path = place / "node.sock"
    with sandbox_node(path) as node:
        engine = tools["start"]("resume", folder, "--sandbox", f"unix:{path}")
        tools["until"](engine, folder, 1, marks("sft", 1, Phase.update))
        node.kill()
        node.wait()
    tools["until"](engine, folder, 1, lambda e: isinstance(e.body, LogLine) and "sandbox failed" in e.body.message)
    time.sleep(CONNECT_S + 1)  # the outage itself: longer than a client of the sandbox waits by itself
    with sandbox_node(path):
        assert engine.wait(120) == 0, engine.output()
    told = list(read_events(RunFolder.open(folder)))
    left_out = [e.body.metrics["left_out"] for e in told if isinstance(e.body, StepFinished) and e.body.stage == "rl"]
    assert left_out == [0.0] * 4
