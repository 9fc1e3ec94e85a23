"""The response of one rollout as it grows, and how it is kept when the rollout is halted.

Ids, mask, log-probabilities and the policy step that sampled each token are written here and nowhere else, always
together. Leaves out who samples and who calls tools: ``agent.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from engine.contract.base import visible
from engine.contract.trajectory import ToolCallRecord, Turn
from engine.rollout.base import Generation


@dataclass(frozen=True, slots=True)
class Begun:
    """A halted rollout, as sampled: all that is needed to go on with it, by whatever weights.

    ``ids``, ``sampled`` and ``logprobs`` are of equal length. Ids after the last of ``turns`` are of a turn that was
    halted in its middle. ``policy_steps`` are (first position, version), one for each version that sampled.
    """

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...] = ()
    sampled: tuple[bool, ...] = ()
    logprobs: tuple[float, ...] = ()
    turns: tuple[Turn, ...] = ()
    policy_steps: tuple[tuple[int, int], ...] = ()
    seconds: float = 0.0


@dataclass(slots=True)
class Response:
    """Three columns of equal length, the turns that tile them, and what is open: sampled, but of no turn yet."""

    ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    policy_steps: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, begun: Begun) -> Self:
        """What a halted rollout had."""
        columns = list(begun.ids), list(begun.sampled), list(begun.logprobs)
        return cls(*columns, list(begun.turns), list(begun.policy_steps))

    def halted(self, prompt_ids: tuple[int, ...], seconds: float) -> Begun:
        """All of it, to go on with later."""
        columns = tuple(self.ids), tuple(self.sampled), tuple(self.logprobs)
        return Begun(prompt_ids, *columns, tuple(self.turns), tuple(self.policy_steps), seconds)

    @property
    def turn_start(self) -> int:
        """Where the open turn begins."""
        return self.turns[-1].end if self.turns else 0

    @property
    def open_ids(self) -> list[int]:
        return self.ids[self.turn_start :]

    @property
    def assistant_turns(self) -> int:
        return sum(turn.role == "assistant" for turn in self.turns)

    def add_sampled(self, made: Generation) -> None:
        """A turn, or the next piece of one; log-probabilities that an engine does not tell are 0.0."""
        if made.ids and (not self.policy_steps or self.policy_steps[-1][1] != made.version):
            self.policy_steps.append((len(self.ids), made.version))
        self.ids += made.ids
        self.logprobs += [0.0] * len(made.ids) if made.logprobs is None else made.logprobs
        self.sampled += [True] * len(made.ids)

    def close_turn(self, text: str, calls: Sequence[ToolCallRecord]) -> None:
        """The open ids were a turn of the policy's."""
        turn = Turn(role="assistant", start=self.turn_start, end=len(self.ids), text=visible(text), calls=tuple(calls))
        self.turns.append(turn)

    def add_tool(self, ids: Sequence[int], text: str) -> None:
        """What the tools answered, with the ids around it that open the next turn."""
        start = len(self.ids)
        self.ids += ids
        self.logprobs += [0.0] * len(ids)
        self.sampled += [False] * len(ids)
        self.turns.append(Turn(role="tool", start=start, end=len(self.ids), text=text))

    @property
    def sampled_text(self) -> str:
        return "\n".join(turn.text for turn in self.turns if turn.role == "assistant")
