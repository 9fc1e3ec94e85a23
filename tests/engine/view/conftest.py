"""A synthetic run for the views: a made-up but plausible SFT, RL, evaluation run, written through the real
sinks.

Leaves out any model: numbers follow simple curves with seeded noise.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engine.contract.events import (
    Body,
    CheckpointSaved,
    EvalFinished,
    Event,
    LogLine,
    RunFinished,
    RunStarted,
    StageFinished,
    StagePlan,
    StageStarted,
    StepFinished,
)
from engine.contract.job import JobSpec, Recipe
from engine.contract.trajectory import RewardStatus, StopReason, ToolCallRecord, Trajectory, Turn
from engine.sink.event_log import EventLog
from engine.sink.run_folder import RunFolder
from engine.sink.trajectories import write_trajectories

_TOOL = "execute_python_code_with_standard_io"


@dataclass
class SyntheticRun:
    """Writes one run folder, stage by stage."""

    path: Path
    problem: str = "Ann bakes 12 trays of 24 rolls and gives away 60.\nThe rest goes to 4 shops. Each gets?"
    spoken: str = "I compute the rolls first, then split them."
    seed: int = 7
    folder: RunFolder = field(init=False)
    log: EventLog = field(init=False)
    dice: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.folder = RunFolder.create(self.path, job(), 'name = "laptop"\n# a synthetic run\n')
        self.log = EventLog(self.folder, self.folder.next_attempt())

    def emit(self, *bodies: Body) -> list[Event]:
        return [self.log.append(body) for body in bodies]

    def start(self, resumed_from: str | None = None) -> None:
        stages = [("eval-0", "eval", 128), ("sft", "sft", 120), ("eval-1", "eval", 128)]
        stages += [("rl-1", "rl", 24), ("rl-2", "rl", 16), ("eval-2", "eval", 128)]
        self.emit(
            RunStarted(
                run_id="run-20261104-1",
                recipe="laptop",
                digest="9f2c" * 16,
                stages=tuple(StagePlan(name=n, kind=k, steps=s) for n, k, s in stages),
                resumed_from=resumed_from,
                notes=("The SFT data of this recipe plants the tool errors that RL is seen to remove.",),
            )
        )

    def new_attempt(self, resumed_from: str) -> None:
        self.log.close()
        self.log = EventLog(self.folder, self.folder.next_attempt())
        self.start(resumed_from)

    def sft(self, steps: int = 120) -> None:
        self.emit(StageStarted(stage="sft", kind="sft", steps=steps, first_step=1))
        for step in range(1, steps + 1):
            metrics = {
                "loss": 0.25 + 5.2 * math.exp(-step / 18) + self.dice.gauss(0, 0.03),
                "grad_norm": 1.0 + 2 * math.exp(-step / 30),
                "tokens": 4200.0,
                "tokens_per_s": self.dice.gauss(5200, 200),
                "lr": 4e-3,
            }
            self.emit(StepFinished(stage="sft", step=step, metrics=metrics, seconds={"update": 0.8}))
        self.emit(StageFinished(stage="sft", steps=steps))

    def rl(self, stage: str, first: int, last: int, planned: int, done_before: int = 0) -> None:
        self.emit(StageStarted(stage=stage, kind="rl", steps=planned, first_step=first))
        for step in range(first, last + 1):
            progress = (done_before + step) / 40
            path = self.folder.trajectories(self.log.attempt, stage, step)
            write_trajectories(path, self.trajectories(stage, step, progress))
            self.emit(
                StepFinished(
                    stage=stage,
                    step=step,
                    metrics=self._rl_metrics(step, progress),
                    trajectories=self.folder.relative(path),
                    seconds={
                        "sampling": self.dice.gauss(9, 1),
                        "scoring": 0.4,
                        "update": self.dice.gauss(4, 0.4),
                        "checkpoint": 0.5,
                        "push": 0.7,
                    },
                ),
                CheckpointSaved(stage=stage, step=step, path=f"attempts/0001/checkpoints/{stage}/step-{step:05d}"),
            )
        if last == planned:
            self.emit(StageFinished(stage=stage, steps=planned))

    def _rl_metrics(self, step: int, progress: float) -> dict[str, float | None]:
        noise = self.dice.gauss
        errors = 0.42 * math.exp(-2.2 * progress) + 0.03
        right = round(2 + 3 * progress)
        return {
            "reward": min(0.98, 0.38 + 0.5 * progress + noise(0, 0.03)),
            "tool_error_rate": max(0.0, errors + noise(0, 0.015)),
            "tool_error_rate_right": max(0.0, 0.8 * errors + noise(0, 0.015)),
            "tool_calls": 230.0,
            "response_tokens": 96 - 18 * progress + noise(0, 2),
            "truncated_share": max(0.0, 0.12 * (1 - progress) + noise(0, 0.01)),
            "answered_share": 0.86 + 0.12 * progress,
            "kept_groups": 12.0 - right - 1,
            "all_right": float(right),
            "all_wrong": float(step % 2),
            "roc_emptied": float(1 - step % 2),
            "left_out": 0.0,
            "loss": noise(0, 0.02),
            "grad_norm": math.nan if step == 5 else 0.4,
            "clip_frac": 0.0,
            "entropy": math.nan if step == 9 else 0.9 * math.exp(-progress) + noise(0, 0.02),
            "logprob_gap_max": abs(noise(6e-6, 2e-6)) + 1e-7,
            "tokens_per_s": noise(1500, 90),
            "lr": 5e-4,
        }

    def evaluate(self, stage: str, sampled: float, errors: float) -> None:
        metrics = {
            "pass@1": sampled,
            "pass@1_stderr": math.sqrt(sampled * (1 - sampled) / 128),
            "pass@1_greedy": min(1.0, sampled + 0.07),
            "tool_error_rate": errors,
            "tool_error_rate_greedy": errors * 0.7,
            "response_tokens": 92.0,
            "response_tokens_greedy": 88.0,
            "truncated_share": 0.03,
            "problems": 128.0,
            "samples": 1.0,
        }
        self.emit(
            StageStarted(stage=stage, kind="eval", steps=128, first_step=1),
            EvalFinished(stage=stage, metrics=metrics),
            StageFinished(stage=stage, steps=128),
        )

    def trajectories(self, stage: str, step: int, progress: float, count: int = 16) -> list[Trajectory]:
        return [self.trajectory(stage, step, number, progress) for number in range(count)]

    def trajectory(self, stage: str, step: int, number: int, progress: float) -> Trajectory:
        right = self.dice.random() < 0.4 + 0.5 * progress
        failed = self.dice.random() < 0.45 * math.exp(-2 * progress) + 0.05
        cut = not right and self.dice.random() < 0.3
        turns = self._turns(right=right, failed=failed, cut=cut)
        size = turns[-1].end
        mask = [True] * size
        for turn in turns:
            if turn.role == "tool":
                mask[turn.start : turn.end] = [False] * (turn.end - turn.start)
        kept = self.dice.random() < 0.5
        penalty = 0.5 if failed else 0.0
        return Trajectory(
            stage=stage,
            step=step,
            group=f"{stage}-{step}-{number // 16}",
            replica=number % 16,
            problem_id=f"arith-{step}-{number // 16}",
            problem=self.problem,
            gold="57",
            prompt_ids=tuple(range(74)),
            ids=tuple(self.dice.randrange(1024) for _ in range(size)),
            sampled=tuple(mask),
            logprobs=tuple(-self.dice.expovariate(2) if sampled else 0.0 for sampled in mask),
            turns=tuple(turns),
            stop_reason=StopReason.length if cut else StopReason.answered,
            first_version=step - 1,
            last_version=step - 1,
            answer=None if cut else ("57" if right else "288"),
            verdict=None if cut else ("right" if right else "wrong"),
            reward=1.0 if right else 0.0,
            reward_status=RewardStatus.scored,
            u=self.dice.random() or 1.0,
            penalty=penalty if right else None,
            advantage=0.93 if right and kept else (-1.07 if kept else None),
            kept=kept,
            kept_reason=_reason(right=right, kept=kept, penalty=penalty),
            seconds=self.dice.uniform(2, 6),
        )

    def _turns(self, *, right: bool, failed: bool, cut: bool) -> list[Turn]:
        code = "rolls = 12 * 24 - 60\nprint(rolls // 4)" if right else "rolls = 12 * 24\nprint(rolls)"
        turns: list[Turn] = []
        if failed:
            turns += _exchange(
                0, self.spoken, code.replace("rolls //", "rols //").replace("(rolls)", "(rols)"), "error"
            )
        turns += _exchange(turns[-1].end if turns else 0, "Now the program.", code, "ok", "57\n" if right else "288\n")
        answer = "288 / 288 / 288 / " * 6 if cut else f"<answer>\\boxed{{{57 if right else 288}}}</answer>"
        start = turns[-1].end
        return [*turns, Turn(role="assistant", start=start, end=start + 14, text=answer)]

    def whole(self) -> "SyntheticRun":
        """A run with a resumed attempt, from nothing to finished."""
        self.start()
        self.evaluate("eval-0", 0.0, 0.0)
        self.sft()
        self.evaluate("eval-1", 0.41, 0.37)
        self.rl("rl-1", 1, 15, 24)
        self.emit(LogLine(level="warning", message="rollout engine 0 died, 3 rollouts are done again"))
        self.new_attempt("attempts/0001/checkpoints/rl-1/step-00012")
        self.rl("rl-1", 13, 24, 24)
        self.rl("rl-2", 1, 16, 16, done_before=24)
        self.evaluate("eval-2", 0.83, 0.06)
        self.emit(RunFinished(seconds=745.0))
        self.log.close()
        return self


def _reason(*, right: bool, kept: bool, penalty: float) -> str:
    if not right:
        return "wrong: drawn uniformly" if kept else "wrong: not drawn, quota 3 of 7"
    drawn = f"right: penalty {penalty}, inclusion probability 0.{62 if penalty == 0 else 18}"
    return f"{drawn}, {'drawn' if kept else 'not drawn'}"


def _exchange(start: int, words: str, code: str, status: str, response: str = "") -> list[Turn]:
    error = "NameError" if status == "error" else None
    text = response or "Traceback (most recent call last):\n  line 2\nNameError: name 'rols' is not defined\n"
    call = ToolCallRecord(
        name=_TOOL,
        arguments={"code": code, "input": ""},
        status=status,
        response=text,
        error_type=error,
        wall_s=0.03,
    )
    escaped = code.replace("\n", "\\n")
    block = f'<tool_call>\n{{"name": "{_TOOL}", "arguments": {{"code": "{escaped}", "input": ""}}}}\n</tool_call>'
    return [
        Turn(
            role="assistant",
            start=start,
            end=start + 41,
            text=f"<reason>{words}</reason>\n{block}",
            calls=(call,),
        ),
        Turn(role="tool", start=start + 41, end=start + 58, text=f"<tool_response>\n{text}</tool_response>"),
    ]


def job() -> JobSpec:
    recipe = Recipe.model_validate(
        {
            "name": "laptop",
            "model": {"kind": "tiny-qwen3"},
            "stages": [{"kind": "rl", "name": "rl-1", "steps": 3, "max_response_tokens": 160}],
        }
    )
    return JobSpec(run_id="run-20261104-1", created_at=1.0, digest=recipe.digest, recipe=recipe)


@pytest.fixture(scope="session")
def synthetic_run() -> type[SyntheticRun]:
    return SyntheticRun


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., SyntheticRun]:
    """Make the folder of a run in which nothing has happened yet."""
    return lambda **changes: SyntheticRun(tmp_path / "run", **changes)
