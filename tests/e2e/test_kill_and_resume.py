"""Killed (-9) from outside in every phase and resumed, a run ends as if nothing had happened, and leaves no process.

With the scripted engine to the bit: the figures, trained ids and weights of a run that nobody killed. With vLLM
(``make test-long``), which samples anew, every step once and the same problems in the same order.
"""

import itertools
import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.contract.events import Event, Phase, RunFinished, RunStopped, StepFinished, fold_steps
from engine.contract.job import load_recipe
from engine.contract.stages import RlStage
from engine.stages.problems import GeneratedPool, held_out_texts
from tests.e2e.traces import Trace, trace
from tests.stack import SCRIPTED_MODEL, SCRIPTED_RECIPE

pytestmark = [pytest.mark.e2e]

Until = Callable[..., Event]
AssertGone = Callable[[list[psutil.Process]], None]
Events = Callable[[Path], list[Event]]
Tools = dict[str, Any]
Wait = Callable[[Any, Path], None]

LOOK_S = 0.0005
"""Some phases of a small run take milliseconds, and the kill has to strike within them."""

FILE_PROBLEMS = 'problems = { kind = "file", path = "problems.jsonl" }'
RECIPE = SCRIPTED_RECIPE.replace("steps = RL_STEPS", f"steps = 4\n{FILE_PROBLEMS}")

# Programs have a minute: one that a busy machine cuts off would answer something else, and no two runs would be equal.
CALM = "[sandbox.limits]\nwall_s = 60\ncpu_s = 60\n"

# Muon in SFT; in RL two updates a step, groups replaced, a reference: all that a resumed step has to find again.
FULL_RECIPE = SCRIPTED_RECIPE.replace(
    "steps = RL_STEPS", f"steps = 4\nupdates_per_step = 2\nrefill = 1\nkl_beta = 0.01\n{FILE_PROBLEMS}"
).replace("rollouts_per_problem = 8\nkeep_per_problem = 4", "rollouts_per_problem = 4\nkeep_per_problem = 2")
FULL_RECIPE += CALM

TWO_RANKS_RECIPE = f"""{SCRIPTED_MODEL}
[learner]
ranks = 2
zero_stage = 2
{CALM}
[[stages]]
name = "rl"
kind = "rl"
steps = 3
problems_per_step = 4
rollouts_per_problem = 8
keep_per_problem = 4
max_response_tokens = 300
max_logprob_gap = 1e9
{FILE_PROBLEMS}
"""


def marks(stage: str, step: int, phase: Phase) -> Wait:
    """Wait until an attempt tells this phase, at this step or a later one."""

    def wait(process: Any, attempt: Path) -> None:
        for body in told_by(process, attempt / "events.jsonl"):
            if (body.get("stage"), body.get("phase")) == (stage, phase) and body["step"] >= step:
                return
        raise AssertionError(f"{attempt.name} never told {phase} of {stage}; output:\n{process.output()}")

    return wait


def is_written(stage: str) -> Wait:
    """Wait until an attempt has begun to write a checkpoint: it is filled under another name first."""

    def wait(process: Any, attempt: Path) -> None:
        parent = attempt / "checkpoints" / stage
        while process.process.poll() is None:
            if parent.is_dir() and any(name.endswith(".tmp") for name in os.listdir(parent)):
                return
            time.sleep(LOOK_S)
        raise AssertionError(f"{attempt.name} wrote no checkpoint; output:\n{process.output()}")

    return wait


def told_by(process: Any, log: Path) -> Iterator[dict[str, Any]]:
    """The bodies of an attempt's events as they are told, until its process has ended."""
    rest, position, alive = b"", 0, True
    while alive:
        alive = process.process.poll() is None
        if log.exists():
            with log.open("rb") as file:
                file.seek(position)
                rest += file.read()
                position = file.tell()
            *lines, rest = rest.split(b"\n")
            yield from (json.loads(line)["body"] for line in lines)
        time.sleep(LOOK_S)


# Two runs side by side, each killed in turn: a start takes seconds, most of them imports.
BEFORE_THE_UPDATE = [
    marks("sft", 1, Phase.preparing),
    marks("sft", 1, Phase.update),
    marks("rl", 2, Phase.sampling),
    marks("rl", 2, Phase.scoring),
    marks("rl", 2, Phase.downsampling),
]
FROM_THE_UPDATE_ON = [
    marks("rl", 2, Phase.update),
    marks("rl", 2, Phase.push),
    marks("rl", 2, Phase.checkpoint),
    is_written("rl"),
    marks("eval", 1, Phase.sampling),
]
IN_EACH_PHASE = [BEFORE_THE_UPDATE, FROM_THE_UPDATE_ON]
# A stage without a checkpoint, a step half trained, a checkpoint half written: what is left behind differs.
A_FEW = [marks("sft", 1, Phase.update), marks("rl", 2, Phase.update), is_written("rl")]


@pytest.fixture
def write_recipe(tmp_path: Path) -> Callable[[str], Path]:
    """A recipe file with its problem file beside it."""

    def write(text: str) -> Path:
        lines = [f'{{"problem": "What is {a}*{a + 3}?", "answer": "{a * (a + 3)}"}}' for a in range(11, 41)]
        (tmp_path / "problems.jsonl").write_text("\n".join(lines) + "\n")
        path = tmp_path / "scripted.toml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def recipe(write_recipe: Callable[[str], Path]) -> Path:
    return write_recipe(RECIPE)


@pytest.fixture
def tools(start: Any, until: Until, assert_gone: AssertGone) -> Tools:
    return {"start": start, "until": until, "assert_gone": assert_gone}


def kill_at_each(kills: list[Wait], recipe: Path, folder: Path, tools: Tools) -> None:
    """Kill one attempt after the other where it was waited for, then let the last one finish."""
    process = tools["start"]("run", recipe, "--out", folder)
    for attempt, wait in enumerate(kills, start=1):
        wait(process, folder / "attempts" / f"{attempt:04d}")
        tools["assert_gone"](process.kill())
        process = tools["start"]("resume", folder)
    assert process.wait(300) == 0, process.output()


def killed_and_left_alone(
    chains: list[list[Wait]], recipe: Path, folder: Path, tools: Tools
) -> tuple[list[Trace], Trace]:
    """The same recipe several times side by side: one run for each chain of kills, and one that is left alone."""
    alone = tools["start"]("run", recipe, "--out", folder / "alone")
    killed = [folder / f"killed-{number}" for number in range(len(chains))]
    with ThreadPoolExecutor(len(chains)) as threads:
        for _ in threads.map(lambda kills, path: kill_at_each(kills, recipe, path, tools), chains, killed):
            pass
    assert alone.wait(300) == 0, alone.output()
    return [trace(path) for path in killed], trace(folder / "alone")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "chains", [pytest.param([A_FEW], id="a few"), pytest.param(IN_EACH_PHASE, id="each", marks=pytest.mark.long)]
)
def test_killed_in_its_phases_a_run_is_equal_to_the_bit_to_one_left_alone(
    chains: list[list[Wait]], write_recipe: Callable[[str], Path], tmp_path: Path, tools: Tools, events: Events
) -> None:
    traces, alone = killed_and_left_alone(chains, write_recipe(FULL_RECIPE), tmp_path, tools)
    for number, killed in enumerate(traces):
        assert killed.steps == alone.steps
        assert killed.rollouts == alone.rollouts
        assert killed.weights == alone.weights
        assert killed.evaluations == alone.evaluations
        assert_every_step_once(events(tmp_path / f"killed-{number}"))
    rl = [figures for (stage, _), figures in alone.steps.items() if stage == "rl"]
    assert any(figures["refilled_groups"] for figures in rl), "or the recipe would not try what it is for"
    assert all(figures["grad_norm"] for figures in rl)


def assert_every_step_once(told: list[Event]) -> None:
    assert isinstance(told[-1].body, RunFinished)
    assert sorted(fold_steps(told)) == [("rl", step) for step in range(1, 5)] + [("sft", step) for step in range(1, 7)]
    rl = Counter(e.body.step for e in told if isinstance(e.body, StepFinished) and e.body.stage == "rl")
    assert set(rl.values()) == {1}, "with a checkpoint at every step no step is even told twice"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_learner_ranks_killed_with_the_engine_go_on_to_the_bit(
    write_recipe: Callable[[str], Path], tmp_path: Path, tools: Tools
) -> None:
    kills = [marks("rl", 2, Phase.update), is_written("rl")]
    (killed,), alone = killed_and_left_alone([kills], write_recipe(TWO_RANKS_RECIPE), tmp_path, tools)
    assert killed == alone


@pytest.mark.timeout(300)
def test_ctrl_c_keeps_the_step_and_leaves_nothing(recipe: Path, tmp_path: Path, tools: Tools, events: Events) -> None:
    folder = tmp_path / "run"
    process = tools["start"]("run", recipe, "--out", folder)
    marks("rl", 2, Phase.sampling)(process, folder / "attempts" / "0001")
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
    recipe: Path, tmp_path: Path, tools: Tools, events: Events
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
def test_a_second_engine_on_the_same_folder_is_refused(recipe: Path, tmp_path: Path, tools: Tools) -> None:
    folder = tmp_path / "run"
    first = tools["start"]("run", recipe, "--out", folder)
    tools["until"](first, folder, 1, lambda event: True)
    second = tools["start"]("resume", folder)
    assert second.wait(60) == 2
    assert f"pid {first.process.pid}" in second.output()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_smoke_with_vllm_killed_once_in_each_phase(tmp_path: Path, tools: Tools, events: Events) -> None:
    folder = tmp_path / "run"
    recipe = Path(__file__).resolve().parents[2] / "engine" / "recipes" / "smoke.toml"
    kills = [*BEFORE_THE_UPDATE, *FROM_THE_UPDATE_ON[:-1], marks("eval-rl", 1, Phase.sampling)]
    kill_at_each(kills, recipe, folder, tools)
    told = events(folder)
    expected = [("rl", step) for step in range(1, 13)] + [("sft", step) for step in range(1, 151)]
    assert sorted(fold_steps(told)) == expected
    rl = Counter(e.body.step for e in told if isinstance(e.body, StepFinished) and e.body.stage == "rl")
    assert set(rl.values()) == {1}
    assert_data_in_order(trace(folder), recipe)


def assert_data_in_order(found: Trace, path: Path) -> None:
    """Each step's groups are of the problems that the step's place in the recipe gives, in that order."""
    recipe = load_recipe(path)
    (stage,) = [stage for stage in recipe.stages if isinstance(stage, RlStage)]
    pool = GeneratedPool(stage.problems, held_out_texts(recipe), seed=recipe.seed, stage=stage.name)
    for (name, step), rollouts in found.rollouts.items():
        problems = itertools.islice(pool.of_step(step, 0), stage.problems_per_step)
        expected = {f"{name}/{step}/{place}": problem.id for place, problem in enumerate(problems)}
        assert {group: problem_id for group, _, problem_id, *_ in rollouts} == expected
