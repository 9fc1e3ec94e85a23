"""One rollout from prompt to reward, as every part of Starloom passes it on and as the run folder stores it.

Token ids and log-probabilities are kept as sampled. ``ids``, ``sampled`` and ``logprobs`` cover the response only
(what came after the prompt) and always have equal length. Leaves out how they are stored: ``engine.sink``.
"""

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from engine.contract.base import Strict


class StopReason(StrEnum):
    """Why a rollout ended."""

    answered = "answered"
    no_answer = "no_answer"
    length = "length"
    max_turns = "max_turns"
    aborted = "aborted"


class RewardStatus(StrEnum):
    """Whether a reward could be given. ``unscored`` is our failure, never the model's."""

    scored = "scored"
    ungradable = "ungradable"
    unscored = "unscored"


class ToolCallRecord(Strict):
    """One tool call and what came of it."""

    name: str = Field(description="Tool the model named; empty when the call could not be parsed.")
    arguments: dict[str, str] = Field(default_factory=dict)
    status: str = Field(description="Sandbox status, or `parse_error`.")
    response: str = Field(description="Text that the model got back.")
    error_type: str | None = Field(default=None, description="Exception type, the program's own claim.")
    queued_s: float = Field(default=0.0, description="Seconds waited for a sandbox slot.")
    wall_s: float = Field(default=0.0, description="Seconds run.")

    @property
    def failed(self) -> bool:
        """A tool error by structured status (design: never by finding a word in the text)."""
        return self.status != "ok"


class Turn(Strict):
    """One message of the response: an assistant turn or the tool responses after it."""

    role: str = Field(description="`assistant` or `tool`.")
    start: int = Field(description="First position of the turn in the response's ids.")
    end: int = Field(description="Position after its last.")
    text: str
    calls: tuple[ToolCallRecord, ...] = ()


class Trajectory(Strict):
    """One rollout. Lengths in tokens, times in seconds."""

    stage: str
    step: int
    group: str = Field(description="Group id, unique per draw of a problem.")
    replica: int = Field(description="Place of the rollout in its group.")
    problem_id: str
    problem: str
    gold: str
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...] = Field(description="Response token ids, sampled and appended.")
    sampled: tuple[bool, ...] = Field(description="True where the policy sampled the token (the loss mask).")
    logprobs: tuple[float, ...] = Field(description="Log-probability as sampled; 0.0 where not sampled.")
    turns: tuple[Turn, ...]
    stop_reason: StopReason
    first_version: int = Field(default=0, description="Policy step (weight version) at the first token.")
    last_version: int = Field(default=0, description="Policy step (weight version) at the last token.")
    policy_steps: tuple[tuple[int, int], ...] = Field(
        default=(),
        description="(first position in `ids`, weight version) of each policy step that sampled; empty if one did.",
    )
    answer: str | None = None
    verdict: str | None = Field(default=None, description="Grader's verdict, also when the rollout was cut.")
    reward: float | None = None
    reward_status: RewardStatus = RewardStatus.unscored
    u: float = Field(default=1.0, gt=0, le=1, description="Stored uniform that down-sampling draws with.")
    penalty: float | None = None
    advantage: float | None = None
    kept: bool = False
    kept_reason: str = ""
    seconds: float = 0.0

    @model_validator(mode="after")
    def _lengths_agree(self) -> Self:
        if not len(self.ids) == len(self.sampled) == len(self.logprobs):
            raise ValueError(
                f"ids, sampled, logprobs differ: {len(self.ids)}, {len(self.sampled)}, {len(self.logprobs)}"
            )
        return self

    @property
    def calls(self) -> list[ToolCallRecord]:
        return [call for turn in self.turns for call in turn.calls]

    @property
    def tool_errors(self) -> int:
        return sum(call.failed for call in self.calls)

    @property
    def assistant_turns(self) -> int:
        return sum(turn.role == "assistant" for turn in self.turns)

    @property
    def sampled_text(self) -> str:
        """What the policy itself wrote: nothing of prompt or tools."""
        return "\n".join(turn.text for turn in self.turns if turn.role == "assistant")
