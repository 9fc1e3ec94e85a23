"""Where rewards are computed, as the recipe says: on a thread of the engine, or in the sandbox.

In the sandbox many answers are graded by one call. A call that fails, for whatever reason, is taken apart, so that an
answer on which the grader hangs cannot take the others with it; an answer that cannot be graded alone stays
``unscored`` and is left out like a rollout that we spoiled: our failure is never a wrong answer. Leaves out what a
right answer is: ``engine.reward``.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Protocol

from engine.contract.resources import ScoringResources
from engine.contract.trajectory import RewardStatus, Trajectory
from engine.reward import MathReward, Reward, Score
from engine.reward.program import Answer, NotScores, as_stdin, grader_program, read_scores
from engine.rollout.tools.base import Sandbox
from engine.stages.scoring import is_cut, scored, with_score
from sandbox.contract import ExecRequest, ExecStatus, Limits, SandboxUnavailable

BATCH_CHARS = 1 << 20
"""Most characters of sampled text in one call: with escapes they stay under what a sandbox takes."""

_OUTPUT_BYTES = 8 << 20

_log = logging.getLogger(__name__)


class Grader(Protocol):
    """Scores finished rollouts."""

    async def __call__(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """The same rollouts in the same order, each with its reward, or ``unscored``. Raises when none has one."""
        ...


class EngineGrader:
    """Grades on a thread of the engine."""

    def __init__(self, reward: Reward) -> None:
        self._reward = reward

    async def __call__(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """See ``Grader``."""
        return await asyncio.to_thread(lambda: [scored(each, self._reward) for each in trajectories])


class SandboxGrader:
    """Grades in the sandbox."""

    def __init__(self, reward: MathReward, sandbox: Sandbox, scoring: ScoringResources) -> None:
        self._rule = reward.rule
        self._sandbox = sandbox
        self._batch = scoring.batch
        self._limits = Limits(wall_s=scoring.wall_s, cpu_s=scoring.wall_s, output_bytes=_OUTPUT_BYTES)

    async def __call__(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """See ``Grader``."""
        answers = [Answer(each.gold, each.sampled_text, is_cut(each)) for each in trajectories]
        parts = await asyncio.gather(*(self._scores(part) for part in batches(answers, self._batch)))
        scores = [score for part in parts for score in part]
        if trajectories and not any(scores):
            raise SandboxUnavailable(f"the sandbox graded none of {len(scores)} answers")
        return [_with(each, score) for each, score in zip(trajectories, scores, strict=True)]

    async def _scores(self, answers: Sequence[Answer]) -> list[Score | None]:
        """Of all answers by one call; of each by its own where that call failed."""
        fault = await self._grade(answers)
        if isinstance(fault, list):
            return list(fault)
        if len(answers) == 1:
            _log.warning("an answer could not be graded and is left out: %s", fault)
            return [None]
        _log.info("%d answers are graded one by one: %s", len(answers), fault)
        alone = await asyncio.gather(*(self._scores([answer]) for answer in answers))
        return [score for part in alone for score in part]

    async def _grade(self, answers: Sequence[Answer]) -> list[Score] | str:
        """The scores, or what went wrong."""
        stdin = as_stdin(answers, self._rule)
        try:
            result = await self._sandbox.execute(ExecRequest(code=grader_program(), stdin=stdin, limits=self._limits))
            if result.status is not ExecStatus.OK:
                return f"{result.status}: {result.detail or result.stderr[-200:]}"
            return read_scores(result.stdout, len(answers))
        except (SandboxUnavailable, NotScores) as error:
            return f"{type(error).__name__}: {error}"


def _with(trajectory: Trajectory, score: Score | None) -> Trajectory:
    if score is None:
        return trajectory.model_copy(update={"reward_status": RewardStatus.unscored})
    return with_score(trajectory, score)


def batches(answers: Sequence[Answer], most: int) -> Iterator[list[Answer]]:
    """The answers in order, at most ``most`` and about ``BATCH_CHARS`` characters at a time."""
    batch: list[Answer] = []
    chars = 0
    for answer in answers:
        if batch and (len(batch) == most or chars + len(answer.text) > BATCH_CHARS):
            yield batch
            batch, chars = [], 0
        batch.append(answer)
        chars += len(answer.text)
    if batch:
        yield batch


def make_grader(scoring: ScoringResources, sandbox: Sandbox) -> Grader:
    """The grader that a recipe names."""
    reward = MathReward()
    return EngineGrader(reward) if scoring.where == "engine" else SandboxGrader(reward, sandbox, scoring)
