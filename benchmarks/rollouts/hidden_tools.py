"""Are tools hidden? A whole RL step whose tool takes 0.3 s against one whose tool answers at once.

One run of the real pipeline (vLLM, DeepSpeed, weights pushed after each step), whose tool waits in every other step.
The policy is sure of all but its answer, so every step has the same turns and tokens, and groups with contrast to learn
from. The KV cache bounds what is in flight; a rollout that waits for its tool holds none, and others take its room. A
step counts from the first rollout to the weights being served; the checkpoint after it is left out.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.rollouts.musts import Must, ratio
from benchmarks.rollouts.sure_policy import CONTEXT, WAIT, Talk, make_policy, problem
from benchmarks.rollouts.turns import MAX_RESPONSE_TOKENS
from benchmarks.rollouts.waits import SLEEP_S
from engine.contract.events import Event, StepFinished
from engine.contract.job import JobSpec, Recipe
from engine.environment import prepare_environment
from engine.rollout.tools.base import ToolContext, ToolOutcome
from engine.sink.run_folder import RunFolder
from engine.stages.commands import Inbox
from engine.stages.pipeline import run_attempt

MUST: Final = Must("a full step with 0.3 s tools / with 0 s tools", 1.05, "at most")
COUNTED: Final = ("sampling", "scoring", "downsampling", "update", "push")
TALK: Final = Talk(calls=2, thought_tokens=32, answers=("1", "2"), sure=0.98)


@dataclass(frozen=True, slots=True)
class Settings:
    """``rounds`` are pairs of steps; one pair before them does not count."""

    talk: Talk = TALK
    problems: int = 32
    group: int = 8
    rounds: int = 3
    kv_cache_mb: int = 8


class Pause:
    """The tool, shared by all rollouts of the run."""

    spec = WAIT

    def __init__(self) -> None:
        self.seconds = 0.0

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutcome:
        await asyncio.sleep(self.seconds)
        return ToolOutcome(str(arguments["turn"]))


PAUSE = Pause()
"""What the recipe names."""


def pause_s(step: int) -> float:
    """Of a step, which counts from 1. Each pair has one of each; which is first turns."""
    pair, second = divmod(step - 1, 2)
    return SLEEP_S if (pair + second) % 2 else 0.0


def recipe(settings: Settings, model: Path, problems: Path) -> Recipe:
    stage = {
        "name": "rl",
        "kind": "rl",
        "steps": 2 * (settings.rounds + 1),
        "problems": {"kind": "file", "path": str(problems)},
        "problems_per_step": settings.problems,
        "rollouts_per_problem": settings.group,
        "keep_per_problem": settings.group // 2,
        "max_response_tokens": MAX_RESPONSE_TOKENS,
        "max_turns": settings.talk.calls + 1,
        "learning_rate": 1e-7,  # so that the policy stays what it is
    }
    return Recipe.model_validate(
        {
            "name": "hidden-tools",
            "tools": [f"{__name__}:PAUSE"],
            "model": {"kind": "folder", "path": str(model), "context_tokens": CONTEXT},
            "rollout": {"kv_cache_mb": settings.kv_cache_mb},
            "stages": [stage],
        }
    )


class Steps:
    """Watches a run's events: sets the tool's pause for the step to come, keeps what a step took."""

    def __init__(self) -> None:
        self.done: list[StepFinished] = []
        PAUSE.seconds = pause_s(1)

    def __call__(self, event: Event) -> None:
        if isinstance(event.body, StepFinished):
            self.done.append(event.body)
            PAUSE.seconds = pause_s(len(self.done) + 1)


async def measure(settings: Settings | None = None) -> dict[str, Any]:
    settings = settings or Settings()
    prepare_environment()
    with tempfile.TemporaryDirectory(prefix="starloom-bench-") as folder:
        model = await asyncio.to_thread(make_policy, Path(folder) / "policy", settings.talk)
        problems = Path(folder) / "problems.jsonl"
        rows = [{"problem": problem(number), "answer": "1"} for number in range(settings.problems)]
        problems.write_text("".join(json.dumps(row) + "\n" for row in rows))
        found = recipe(settings, model, problems)
        job = JobSpec(run_id="bench", created_at=time.time(), digest=found.digest, recipe=found)
        steps = Steps()
        await run_attempt(RunFolder.create(Path(folder) / "run", job), Inbox(), [steps])
    return described(settings, steps.done)


def described(settings: Settings, done: list[StepFinished]) -> dict[str, Any]:
    """Seconds of each arm's steps, phase by phase, and the ratio within pairs; the first pair is left out."""
    arms: dict[float, list[StepFinished]] = {0.0: [], SLEEP_S: []}
    for step in done[2:]:
        arms[pause_s(step.step)].append(step)
    whole = {pause: [sum(step.seconds[name] for name in COUNTED) for step in steps] for pause, steps in arms.items()}
    found = ratio(whole[SLEEP_S], whole[0.0])
    return {
        "settings": asdict(settings) | {"pause_s": SLEEP_S, "scheduler": "growth", "engines": 1},
        "arms": {
            f"{pause:g} s tools": {"wall_s": whole[pause], "steps": [_step(step) for step in steps]}
            for pause, steps in arms.items()
        },
        **found,
        "musts": [MUST.judge(found["ratio"])],
    }


def _step(step: StepFinished) -> dict[str, Any]:
    shown = ("rollouts", "response_length", "tool_calls_per_rollout", "kept_groups", "left_out", "tokens_per_s")
    return {"seconds": step.seconds, **{name: step.metrics[name] for name in shown if name in step.metrics}}
