"""An RL step on a bench: a recording learner, given rollouts, and everything that came out to look at."""

import asyncio
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from engine.contract.events import Event, LogLine, StepFinished
from engine.contract.job import JobSpec, Recipe, RlStage
from engine.contract.trajectory import Trajectory
from engine.data.problem import Problem
from engine.learner.base import Sample, UpdateResult
from engine.reward import MathReward
from engine.sink.event_log import EventLog, read_events
from engine.sink.run_folder import RunFolder
from engine.sink.trajectories import read_trajectories
from engine.stages.carryover import CarryOver
from engine.stages.commands import Inbox
from engine.stages.context import LearnerThread, StageContext
from engine.stages.grading import EngineGrader
from engine.stages.progress import StageProgress
from engine.stages.reinforce import RlStep
from engine.stages.rollouts import Ask
from sandbox.contract import ExecRequest, ExecResult, ExecStatus, SandboxStatus

Answer = Callable[[Ask], Trajectory | None]
Spoil = Callable[[str], ExecStatus | Exception | None]


def recipe(*, learner: dict[str, Any] | None = None, rollout: dict[str, Any] | None = None, **fields: Any) -> Recipe:
    """One RL stage of two problems, four rollouts each, two of them kept."""
    base = {"name": "rl", "kind": "rl", "steps": 9, "max_response_tokens": 64, "problems_per_step": 2}
    stage = {**base, "rollouts_per_problem": 4, "keep_per_problem": 2, "problems": {"kind": "arithmetic"}, **fields}
    resources = {"learner": learner or {}, "rollout": rollout or {}}
    return Recipe.model_validate({"name": "t", "model": {"kind": "tiny-qwen3"}, "stages": [stage], **resources})


class Written:
    """Files that are there at once."""

    def wait(self) -> None:
        """There is nothing to wait for."""


class RecordingLearner:
    """Keeps what it is given to learn from; agrees with the sampler but for ``gap``, skips the updates of ``skips``."""

    def __init__(self, gap: float) -> None:
        self.gap = gap
        self.skips: set[int] = set()
        self.parts: list[list[Sample]] = []
        self.normalisers: list[float | None] = []
        self.asked: list[str] = []

    def rl_update(self, batch: Sequence[Sample], *, lr_scale: float, normaliser: float | None = None) -> UpdateResult:
        self.parts.append(list(batch))
        self.normalisers.append(normaliser)
        skipped = len(self.parts) in self.skips
        figures = {"loss": math.nan if skipped else 0.5, "skipped": float(skipped), "lr": lr_scale, "tokens": 10.0}
        gap = math.nan if skipped else self.gap
        return UpdateResult({**figures, "logprob_gap_max": gap, "logprob_gap_mean": gap / 100})

    def logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        self.asked.append("policy")
        return [[logprob + self.gap for logprob in sample.logprobs] for sample in samples]

    def reference_logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        self.asked.append("reference")
        return [[-3.0] * len(sample.ids) for sample in samples]

    def save(self, folder: Path, *, model_folder: Path | None = None) -> Written:
        for each in (folder, model_folder):
            if each is not None:
                each.mkdir()
        return Written()

    @property
    def samples(self) -> list[Sample]:
        """All that was learned from."""
        return [sample for part in self.parts for sample in part]


class Sampled:
    """Stands for the rollout side: answers every ask from a function, and remembers what was published."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[list[Ask]] = []
        self.published: list[int] = []

    async def sample(self, asks: Sequence[Ask], stage: RlStage) -> list[Trajectory]:
        self.asked.append(list(asks))
        return [found for ask in asks if (found := self.answer(ask)) is not None]

    async def publish(self, learner: object, version: int) -> None:
        self.published.append(version)

    async def metrics(self) -> dict[str, dict[str, float]]:
        return {}


class IdleSandbox:
    """Says how it is, and is asked for nothing else."""

    async def status(self) -> SandboxStatus:
        return SandboxStatus(nodes=(), queued_interactive=1, queued_training=2)


class PlainSandbox:
    """Runs programs in processes of their own; ``spoil`` says, by what a program reads, which are to fail and how."""

    def __init__(self, spoil: Spoil = lambda stdin: None) -> None:
        self.spoil = spoil
        self.requests: list[ExecRequest] = []

    async def execute(self, request: ExecRequest) -> ExecResult:
        self.requests.append(request)
        fault = self.spoil(request.stdin)
        if isinstance(fault, Exception):
            raise fault
        stdout = "" if fault else await self._run(request)
        fields = {"exit_code": 0, "wall_s": 0.1, "queued_s": 0.0, "error": None, "detail": "as planned"}
        return ExecResult(id=request.id, status=fault or ExecStatus.OK, stdout=stdout, stderr="", **fields)

    async def _run(self, request: ExecRequest) -> str:
        pipe = asyncio.subprocess.PIPE
        program = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", "-c", request.code, stdin=pipe, stdout=pipe
        )
        stdout, _ = await program.communicate(request.stdin.encode())
        return stdout.decode()


class Pool:
    """Endless different problems in one order."""

    def of_step(self, step: int, cursor: int) -> Iterator[Problem]:
        return (Problem(f"{place}+{place}?", "4") for place in itertools.count(cursor))


class Bench:
    """Runs steps, and looks at everything that came out."""

    def __init__(self, path: Path, found: Recipe, answer: Answer, gap: float) -> None:
        job = JobSpec(run_id="r", created_at=0.0, digest=found.digest, recipe=found)
        self.folder = RunFolder.create(path / "run", job)
        (self.folder.model / "tokenizer.json").write_text("{}")
        self.learner, self.rollouts, self.carried = RecordingLearner(gap), Sampled(answer), CarryOver()
        parts: Any = {"renderer": SimpleNamespace(), "sandbox": IdleSandbox(), "rollouts": self.rollouts}
        self.context = StageContext(
            recipe=found,
            folder=self.folder,
            attempt=1,
            log=EventLog(self.folder, self.folder.next_attempt()),
            learner_thread=LearnerThread(),
            inbox=Inbox(),
            policy=self.folder.model,
            held_out=frozenset(),
            grade=EngineGrader(MathReward()),
            **parts,
        )
        (stage,) = found.stages
        assert isinstance(stage, RlStage)
        self.stage = stage

    async def step(self, number: int = 1) -> StepFinished:
        """One step, durable."""
        progress = StageProgress(self.context, self.stage)
        try:
            await RlStep(self.context, self.stage, self.learner, number, self.carried).run(Pool(), progress)
        finally:
            await progress.close()
        return [e.body for e in self.events() if isinstance(e.body, StepFinished)][-1]

    def events(self) -> list[Event]:
        return list(read_events(self.folder))

    def warnings(self) -> list[str]:
        return [e.body.message for e in self.events() if isinstance(e.body, LogLine) and e.body.level == "warning"]

    def trajectories(self, body: StepFinished) -> list[Trajectory]:
        return read_trajectories(self.folder.inside(body.trajectories or ""))

    def lines(self, path: str) -> list[Any]:
        """The JSON lines of a file of the first attempt."""
        return [json.loads(line) for line in (self.folder.attempt(1) / path).read_text().splitlines()]
