"""The contract of rewards: from what a policy wrote to a number.

Standard library only: the web platform grades too. A reward never sees what a tool or the prompt printed, and
our own failures never reach it: a rollout that we spoiled is retried or left out. Leaves out when and where
rewards are computed (off the training path: ``engine.stages.grading``).
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

ExtractRule = Literal["answer_tag", "last_box"]


class Verdict(StrEnum):
    """What the grader says of an answer. ``ungradable`` is the problem's fault: its gold cannot be read."""

    correct = "correct"
    incorrect = "incorrect"
    ungradable = "ungradable"


@dataclass(frozen=True, slots=True)
class Score:
    """A rollout's reward and how it came about.

    ``reward`` is None where ``status`` is ``ungradable``. ``verdict`` is the grader's own and ignores that a
    rollout was cut, so that "right when cut" can be counted. ``rule`` says how ``answer`` was found.
    """

    reward: float | None
    status: Literal["scored", "ungradable"]
    verdict: Verdict
    answer: str | None
    rule: ExtractRule


class Reward(Protocol):
    """Anything that scores a rollout; a recipe may name one as ``module:attribute``."""

    def score(self, gold: str, sampled_text: str, *, cut: bool = False) -> Score:
        """``cut`` is true for the stop reasons ``length`` and ``max_turns``."""
        ...
