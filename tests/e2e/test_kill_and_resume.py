"""Killed (-9) from outside in every phase and resumed, a run ends with every step once and leaves no process.

With the scripted engine here; with vLLM on the smoke recipe in ``make test-long``.
"""

import os
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.contract.events import Event, Phase, PhaseStarted, RunFinished, RunStopped, StepFinished, fold_steps
from tests.stack import SCRIPTED_RECIPE

pytestmark = [pytest.mark.e2e]

Until = Callable[..., Event]
AssertGone = Callable[[list[psutil.Process]], None]
Events = Callable[[Path], list[Event]]

RECIPE = SCRIPTED_RECIPE.replace("steps = RL_STEPS", 'steps = 4\nproblems = { kind = "file", path = "problems.jsonl" }')

KILLS = [("sft", 1, Phase.preparing), ("sft", 1, Phase.update)]
RL_PHASES = (Phase.sampling, Phase.scoring, Phase.downsampling, Phase.update, Phase.push, Phase.checkpoint)
KILLS += [("rl", 2, phase) for phase in RL_PHASES]
KILLS += [("eval", 1, Phase.sampling)]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    lines = [f'{{"problem": "What is {a}*{a + 3}?", "answer": "{a * (a + 3)}"}}' for a in range(11, 41)]
    (tmp_path / "problems.jsonl").write_text("\n".join(lines) + "\n")
    path = tmp_path / "scripted.toml"
    path.write_text(RECIPE)
    return path


def marks(stage: str, step: int, phase: Phase) -> Callable[[Event], bool]:
    def told(event: Event) -> bool:
        body = event.body
        return isinstance(body, PhaseStarted) and (body.stage, body.phase) == (stage, phase) and body.step >= step

    return told


def kill_in_each(kills: list[tuple[str, int, Phase]], recipe: Path, folder: Path, tools: dict[str, Any]) -> None:
    """Kill one attempt after the other at its marker, then let the last one finish."""
    process = tools["start"]("run", recipe, "--out", folder)
    for attempt, kill in enumerate(kills, start=1):
        tools["until"](process, folder, attempt, marks(*kill), timeout=400)
        tools["assert_gone"](process.kill())
        process = tools["start"]("resume", folder)
    assert process.wait(300) == 0, process.output()


@pytest.fixture
def tools(start: Any, until: Until, assert_gone: AssertGone) -> dict[str, Any]:
    return {"start": start, "until": until, "assert_gone": assert_gone}


@pytest.mark.timeout(600)
def test_killed_once_in_each_phase_every_step_is_there_once(
    recipe: Path, tmp_path: Path, tools: dict[str, Any], events: Events
) -> None:
    folder = tmp_path / "run"
    kill_in_each(KILLS, recipe, folder, tools)
    told = events(folder)
    assert isinstance(told[-1].body, RunFinished)
    assert sorted(fold_steps(told)) == [("rl", step) for step in range(1, 5)] + [("sft", s) for s in range(1, 7)]
    rl = Counter(e.body.step for e in told if isinstance(e.body, StepFinished) and e.body.stage == "rl")
    assert rl == {1: 1, 2: 1, 3: 1, 4: 1}, "with a checkpoint at every step no step is even told twice"


@pytest.mark.timeout(300)
def test_ctrl_c_keeps_the_step_and_leaves_nothing(
    recipe: Path, tmp_path: Path, tools: dict[str, Any], events: Events
) -> None:
    folder = tmp_path / "run"
    process = tools["start"]("run", recipe, "--out", folder)
    tools["until"](process, folder, 1, marks("rl", 2, Phase.sampling))
    family = psutil.Process(process.process.pid).children(recursive=True)
    process.interrupt()
    assert process.wait(60) == 3, process.output()
    assert "go on with: python -m engine resume" in process.output()
    tools["assert_gone"](family)
    assert isinstance(events(folder)[-1].body, RunStopped)
    done = {step for stage, step in fold_steps(events(folder)) if stage == "rl"}
    again = tools["start"]("resume", folder)
    assert again.wait(120) == 0, again.output()
    told = [e.body.step for e in events(folder) if isinstance(e.body, StepFinished) and e.body.stage == "rl"]
    assert told == [1, 2, 3, 4]
    assert {1, 2} <= done


@pytest.mark.timeout(300)
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system takes root")
def test_a_full_disk_is_named_and_the_run_goes_on_after_room_is_made(
    recipe: Path, tmp_path: Path, tools: dict[str, Any], events: Events
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount(disk, "size=1m")
    try:
        process = tools["start"]("run", recipe, "--out", disk / "run")
        assert process.wait(120) == 1
        assert "the disk is full" in process.output()
        finished = set(fold_steps(events(disk / "run")))
        mount(disk, "remount,size=50m")
        again = tools["start"]("resume", disk / "run")
        assert again.wait(120) == 0, again.output()
        told = fold_steps(events(disk / "run"))
        assert finished
        assert finished <= set(told)
        assert len(told) == 10
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def mount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)


@pytest.mark.timeout(120)
def test_a_second_engine_on_the_same_folder_is_refused(recipe: Path, tmp_path: Path, tools: dict[str, Any]) -> None:
    folder = tmp_path / "run"
    first = tools["start"]("run", recipe, "--out", folder)
    tools["until"](first, folder, 1, lambda event: True)
    second = tools["start"]("resume", folder)
    assert second.wait(60) == 2
    assert f"pid {first.process.pid}" in second.output()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_smoke_with_vllm_killed_once_in_each_phase(tmp_path: Path, tools: dict[str, Any], events: Events) -> None:
    folder = tmp_path / "run"
    recipe = Path(__file__).resolve().parents[2] / "engine" / "recipes" / "smoke.toml"
    kill_in_each([*KILLS[:-1], ("eval-rl", 1, Phase.sampling)], recipe, folder, tools)
    told = events(folder)
    expected = [("rl", step) for step in range(1, 13)] + [("sft", step) for step in range(1, 151)]
    assert sorted(fold_steps(told)) == expected
    rl = Counter(e.body.step for e in told if isinstance(e.body, StepFinished) and e.body.stage == "rl")
    assert set(rl.values()) == {1}
