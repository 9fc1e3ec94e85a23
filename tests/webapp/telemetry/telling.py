"""What an engine tells, made by hand: batches for ingest, and whole run folders written by the engine's own sinks."""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from engine.contract.delivery import Batch, ShippedTrajectory
from engine.contract.events import (
    Body,
    CheckpointSaved,
    EngineLoad,
    EvalFinished,
    Event,
    GroupFinished,
    LogLine,
    Phase,
    PhaseStarted,
    RunFinished,
    RunHeartbeat,
    RunStarted,
    SandboxLoad,
    StageFinished,
    StageStarted,
    StepFinished,
)
from engine.contract.job import JobSpec
from engine.contract.trajectory import RewardStatus, StopReason, ToolCallRecord, Trajectory, Turn
from engine.sink.event_log import EventLog
from engine.sink.run_folder import RunFolder
from engine.sink.trajectories import write_trajectories

BEGAN = 1_780_000_000.0
CASES = Path(__file__).resolve().parents[2] / "cases/platform.jsonl"


def case(number: str) -> dict[str, Any]:
    """A row of the case file."""
    rows = map(json.loads, CASES.read_text().splitlines())
    found: dict[str, Any] = next(row for row in rows if row["id"] == number)
    return found


def started(**fields: Any) -> RunStarted:
    return RunStarted(**{"run_id": "run_1", "recipe": "sample", "digest": "0" * 64, "stages": (), **fields})


def stage_started(stage: str = "rl", first_step: int = 1, steps: int = 10) -> StageStarted:
    return StageStarted(stage=stage, kind=stage, steps=steps, first_step=first_step)


def step(number: int, stage: str = "rl", **metrics: float | None) -> StepFinished:
    return StepFinished(stage=stage, step=number, metrics=metrics or {"loss": 1.0 / number})


def group(number: int = 0, of_step: int = 1, **fields: Any) -> GroupFinished:
    same = {"rollouts": 4, "left_out": 0, "right": 2, "kept": 2, "outcome": "kept", "tool_calls": 3, "tool_errors": 1}
    named = {"stage": "rl", "step": of_step, "group": f"rl/{of_step}/{number}", "problem_id": f"p{number}"}
    return GroupFinished(**{**same, **named, **fields})


class Attempt:
    """One attempt's events, numbered as they are told."""

    def __init__(self, number: int = 1) -> None:
        self.number = number
        self.events: list[Event] = []

    def tell(self, *bodies: Body, trajectories: Sequence[ShippedTrajectory] = ()) -> Batch:
        """The next events as a batch."""
        new = []
        for body in bodies:
            seq = len(self.events) + 1
            new.append(Event(attempt=self.number, seq=seq, at=BEGAN + 100 * self.number + seq, body=body))
            self.events.append(new[-1])
        return Batch(attempt=self.number, events=tuple(new), trajectories=tuple(trajectories))


def tool_call(**fields: Any) -> ToolCallRecord:
    same = {"name": "python", "arguments": {"code": "1/0"}, "status": "error", "response": "ZeroDivisionError"}
    return ToolCallRecord(**{**same, "error_type": "ZeroDivisionError", "queued_s": 0.01, "wall_s": 0.2, **fields})


def trajectory(replica: int = 0, of_step: int = 1, **fields: Any) -> Trajectory:
    """A wrong answer after one failed and one good tool call."""
    turns = (
        Turn(role="assistant", start=0, end=2, text="<tool_call>", calls=(tool_call(), tool_call(status="ok"))),
        Turn(role="tool", start=2, end=3, text="<tool_response>"),
        Turn(role="assistant", start=3, end=4, text="<answer>\\boxed{3}</answer>"),
    )
    same: dict[str, Any] = {
        "stage": "rl",
        "step": of_step,
        "group": f"rl/{of_step}/0",
        "replica": replica,
        "problem_id": "p0",
        "problem": "1 + 1?",
        "gold": "2",
        "prompt_ids": (5, 6),
        "ids": (7, 8, 9, 10),
        "sampled": (True, True, False, True),
        "logprobs": (-0.5, -1.25, 0.0, -0.1),
        "turns": turns,
        "stop_reason": StopReason.answered,
        "answer": "3",
        "verdict": "wrong",
        "reward": 0.0,
        "reward_status": RewardStatus.scored,
        "kept": True,
        "kept_reason": "drawn",
    }
    return Trajectory(**{**same, **fields})


def file_of(attempt: int, of_step: int, stage: str = "rl") -> str:
    return f"attempts/{attempt:04d}/trajectories/{stage}/step-{of_step:05d}.parquet"


def shipped(count: int, of_step: int = 1, attempt: int = 1, **fields: Any) -> list[ShippedTrajectory]:
    file = file_of(attempt, of_step)
    return [ShippedTrajectory.of(trajectory(row, of_step, **fields), file, row) for row in range(count)]


def rl_step(folder: RunFolder, log: EventLog, number: int, reward: float) -> Iterator[Body]:
    """The events of one step in the order of ``engine.stages.reinforce``, its file and its checkpoint."""
    load = SandboxLoad(stage="rl", step=number, calls=6, statuses={"ok": 4, "error": 2}, queued_s=0.1, wall_s=0.5)
    yield PhaseStarted(stage="rl", step=number, phase=Phase.sampling)
    yield load
    yield EngineLoad(stage="rl", step=number, engine="vllm-0", metrics={"running": 3.0, "cache": math.nan})
    yield from (group(place, number) for place in range(2))
    path = folder.trajectories(log.attempt, "rl", number)
    write_trajectories(path, [trajectory(row, number) for row in range(3)])
    checkpoint = folder.checkpoint(log.attempt, "rl", number)
    yield CheckpointSaved(stage="rl", step=number, path=folder.relative(checkpoint))
    yield StepFinished(
        stage="rl",
        step=number,
        metrics={"reward": reward, "tool_error_rate": 0.25, "kl": math.inf},
        trajectories=folder.relative(path),
        seconds={"sampling": 1.5, "update": 0.5},
    )


def write_run(path: Path, job: JobSpec) -> RunFolder:
    """A folder as an engine leaves it: SFT, two RL steps, killed in the third; resumed from the second; evaluated."""
    folder = RunFolder.create(path, job, recipe_toml="name = 'sample'\n")
    with EventLog(folder, folder.next_attempt()) as log:
        sft = [step(number, "sft", loss=1 / number) for number in range(1, 5)]
        first = [started(), stage_started("sft", steps=4), *sft, StageFinished(stage="sft", steps=4), stage_started()]
        for body in (*first, LogLine(message="under way")):
            log.append(body)
        for number in (1, 2, 3):
            bodies = list(rl_step(folder, log, number, reward=number / 10))
            for body in bodies if number < 3 else bodies[:-2]:
                log.append(body)
    with EventLog(folder, folder.next_attempt()) as log:
        for body in (started(resumed_from="attempts/0001/checkpoints/rl/step-00002"), stage_started("rl", 3)):
            log.append(body)
        for number in range(3, 11):
            for body in rl_step(folder, log, number, reward=number / 10):
                log.append(body)
        path = folder.trajectories(log.attempt, "eval", 1)
        write_trajectories(path, [trajectory(row, 1, stage="eval", group=f"eval/{row}") for row in range(3)])
        evaluated = {"pass@1": 0.75, "tool_error_rate": 0.5}
        for body in (
            StageFinished(stage="rl", steps=10),
            stage_started("eval", steps=8),
            EvalFinished(stage="eval", metrics=evaluated, trajectories=folder.relative(path)),
            StageFinished(stage="eval", steps=8),
            LogLine(level="warning", message="hostile <b>text</b> \x00"),
            RunHeartbeat(),
            RunFinished(seconds=12.5),
        ):
            log.append(body)
    return folder
