"""How an engine's events travel to a platform: batches up, the answer down.

One batch holds consecutive events of one attempt, and the trajectories that those events make durable, without their
tokens (these stay in the run folder). ``POST /api/v1/runs/{id}/events``, body: a ``Batch`` as JSON, compressed
(``Content-Encoding: zstd`` or ``gzip``), header ``Authorization: Bearer <run token>``; 200 with an ``Answer``.
``GET`` on the same address gives the ``Answer`` alone. Exactly once: the platform takes event ``seq`` only when it
has ``seq - 1``; an event that it has is skipped, a gap is answered 409 ``gap`` with the cursor. 409 ``superseded``
says that another launch of the run has taken over: the engine must end. Leaves out reading run folders
(``engine.interop``) and HTTP (``engine.sink.shipper``).
"""

from typing import Self

from pydantic import Field, model_validator

from engine.contract.base import Strict
from engine.contract.commands import Command
from engine.contract.events import Event
from engine.contract.trajectory import RewardStatus, StopReason, Trajectory, Turn


class ShippedTrajectory(Strict):
    """A trajectory as a platform stores it: everything but token ids, mask and log-probabilities."""

    file: str = Field(description="Parquet file, in the run folder.")
    row: int = Field(ge=0, description="Its row there.")
    stage: str
    step: int
    group: str
    replica: int
    problem_id: str
    problem: str
    gold: str
    turns: tuple[Turn, ...]
    stop_reason: StopReason
    first_version: int
    last_version: int
    policy_steps: tuple[tuple[int, int], ...] = Field(
        default=(), description="(first position, weight version), where a rollout was sampled by more than one."
    )
    answer: str | None
    verdict: str | None
    reward: float | None
    reward_status: RewardStatus
    u: float
    penalty: float | None
    advantage: float | None
    kept: bool
    kept_reason: str
    seconds: float
    prompt_tokens: int
    response_tokens: int
    sampled_tokens: int

    @classmethod
    def of(cls, trajectory: Trajectory, file: str, row: int) -> Self:
        """What of ``trajectory`` travels; ``file`` and ``row`` say where the rest lies."""
        same = {name: getattr(trajectory, name) for name in cls.model_fields.keys() & Trajectory.model_fields.keys()}
        return cls(
            **same,
            file=file,
            row=row,
            prompt_tokens=len(trajectory.prompt_ids),
            response_tokens=len(trajectory.ids),
            sampled_tokens=sum(trajectory.sampled),
        )


class Batch(Strict):
    """Consecutive events of one attempt. Trajectories come with or before the event that names their file, so that
    a step that is told as finished is there whole; ones that are there already are skipped."""

    attempt: int = Field(ge=1)
    events: tuple[Event, ...] = ()
    trajectories: tuple[ShippedTrajectory, ...] = ()

    @model_validator(mode="after")
    def _consecutive(self) -> Self:
        for before, event in zip(self.events, self.events[1:], strict=False):
            if event.seq != before.seq + 1:
                raise ValueError(f"events must be consecutive: seq {event.seq} after {before.seq}")
        wrong = {event.attempt for event in self.events} - {self.attempt}
        if wrong:
            raise ValueError(f"a batch of attempt {self.attempt} holds events of attempt {min(wrong)}")
        return self


class Answer(Strict):
    """What the platform says back."""

    cursor: dict[int, int] = Field(description="Attempt -> seq of the last event taken in.")
    commands: tuple[Command, ...] = Field(
        default=(), description="Waiting for the run; sent again until `command.applied` (or a refusal) is told."
    )
