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
from engine.contract.job import JobSpec, Recipe
from engine.contract.stages import RlStage
from engine.contract.trajectory import Trajectory
from engine.data.problem import Problem
from engine.learner.base import Sample, UpdateResult
from engine.reward import MathReward
from engine.rollout.base import FinishReason, GenerateRequest, Generation
from engine.rollout.pool import Failed
from engine.rollout.scheduling.base import Size
from engine.rollout.scheduling.lengths import LengthModel
from engine.sink.event_log import EventLog, read_events
from engine.sink.run_folder import RunFolder
from engine.sink.trajectories import read_trajectories
from engine.stages.carryover import CarryOver
from engine.stages.commands import Inbox
from engine.stages.context import LearnerThread, StageContext
from engine.stages.grading import EngineGrader
from engine.stages.progress import StageProgress
from engine.stages.reinforce import RlStep
from engine.stages.sampling import Ask
from sandbox.contract import ExecRequest, ExecResult, ExecStatus, SandboxStatus

Answer = Callable[[Ask], Trajectory | None]
END = 256
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


class GivenRollouts:
    """Stands for the rollout side: answers every ask from a function, by the weights that were published last."""

    def __init__(self, found: Recipe, answer: Answer) -> None:
        self.recipe = found
        self.renderer = SimpleNamespace(prompt=lambda text: [1, 2])
        self.sandbox, self.tools = IdleSandbox(), ()
        self.answer = answer
        self.lengths = LengthModel()
        self.asked: list[list[Ask]] = []
        self.published: list[int] = []

    async def ready(self) -> "GivenRollouts":
        return self

    async def run(self, asks: Sequence[Ask], one: object, *, size: Callable[[Ask], Size]) -> list[Trajectory | Failed]:
        """As a pool's."""
        self.asked.append(list(asks))
        assert all(size(ask).prompt_tokens == 2 for ask in asks)
        version = {name: (self.published or [0])[-1] for name in ("first_version", "last_version")}
        answers = [self.answer(ask) for ask in asks]
        return [Failed("as given") if found is None else found.model_copy(update=version) for found in answers]

    async def publish(self, learner: object, version: int) -> None:
        self.published.append(version)

    async def load(self) -> dict[str, dict[str, float]]:
        return {}


class PacedPlace:
    """A place on an engine that needs a turn of the event loop for each token; ``length`` is that of the filler."""

    def __init__(self, rollouts: "PacedRollouts") -> None:
        self.rollouts = rollouts
        self.left = False

    def leave(self) -> None:
        self.left = True

    async def generate(self, request: GenerateRequest) -> Generation:
        """Filler, then the answer: a right one of even replicas. Log-probabilities tell the version."""
        self.rollouts.heat.append(request.temperature)
        version = (self.rollouts.published or [0])[-1]
        problem = bytes(request.prompt_ids[: len(request.prompt_ids) - request.turn_tokens]).decode()
        filler = "x" * self.rollouts.length(problem, request.replica)
        turn = [*f"{filler}<answer>\\boxed{{{4 + request.replica % 2}}}</answer>".encode(), END]
        ids = turn[request.turn_tokens :][: request.max_tokens]
        self.rollouts.running += 1
        try:
            for _ in ids:
                await asyncio.sleep(0)
        finally:
            self.rollouts.running -= 1
        finish = FinishReason.stop if ids[-1] == END else FinishReason.length
        return Generation(ids, [logprob_of(version)] * len(ids), finish, version)


def logprob_of(version: int) -> float:
    """Of every token that ``version`` samples."""
    return -0.1 * (version + 1)


class PacedRollouts(GivenRollouts):
    """Rollouts that are really taken, all at once."""

    def __init__(self, found: Recipe, length: Callable[[str, int], int]) -> None:
        super().__init__(found, lambda ask: None)
        self.length = length
        self.renderer = SimpleNamespace(
            prompt=lambda text: list(text.encode()), decode=lambda ids: bytes(ids).decode(), end_id=END
        )
        self.places: list[PacedPlace] = []
        self.sizes: list[Size] = []
        self.heat: list[float] = []
        self.running = 0

    async def run(self, asks: Sequence[Ask], one: Any, *, size: Callable[[Ask], Size]) -> list[Any]:
        self.asked.append(list(asks))
        self.sizes = [size(ask) for ask in asks]
        self.places = [PacedPlace(self) for _ in asks]
        return await asyncio.gather(*(one(ask, place) for ask, place in zip(asks, self.places, strict=True)))


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
        self.learner, self.rollouts, self.carried = RecordingLearner(gap), GivenRollouts(found, answer), CarryOver()
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

    def take(self, length: Callable[[str, int], int]) -> PacedRollouts:
        """Have rollouts really taken, each as long as ``length`` of problem and replica says."""
        self.rollouts = self.context.rollouts = PacedRollouts(self.context.recipe, length)  # type: ignore[assignment]
        return self.rollouts

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
