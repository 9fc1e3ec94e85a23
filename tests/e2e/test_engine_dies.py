"""A vLLM server killed in the middle of a step: the step completes, nothing is scored wrong, the run tells it."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.contract.events import Event, LogLine, Phase, PhaseStarted, StepFinished

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]

SMOKE = Path(__file__).resolve().parents[2] / "engine" / "recipes" / "smoke.toml"


def servers(process: psutil.Process) -> list[psutil.Process]:
    """What `pkill -9 -f vllm.entrypoints` would find: the server and its guard. Engine core and worker are orphaned."""
    return [p for p in process.children(recursive=True) if "vllm.entrypoints.openai.api_server" in p.cmdline()]


def sampling_of_step_three(event: Event) -> bool:
    body = event.body
    return isinstance(body, PhaseStarted) and (body.stage, body.step, body.phase) == ("rl", 3, Phase.sampling)


def test_the_run_goes_on(
    tmp_path: Path, start: Any, until: Callable[..., Event], events: Callable[[Path], list[Event]], assert_gone: Any
) -> None:
    folder = tmp_path / "run"
    process = start("run", SMOKE, "--out", folder)
    until(process, folder, 1, sampling_of_step_three, timeout=400)
    family = psutil.Process(process.process.pid)
    everyone = family.children(recursive=True)
    for server in servers(family):
        os.kill(server.pid, signal.SIGKILL)
    assert process.wait(600) == 0, process.output()
    told = events(folder)
    steps = {e.body.step: e.body for e in told if isinstance(e.body, StepFinished) and e.body.stage == "rl"}
    assert sorted(steps) == list(range(1, 13))
    assert steps[3].metrics["left_out"] == 0, "every rollout was done again"
    assert all((body.metrics["logprob_gap_max"] or 1) <= 1e-4 for body in steps.values())
    assert any("vllm-0 is lost" in e.body.message for e in told if isinstance(e.body, LogLine))
    assert_gone(everyone)
