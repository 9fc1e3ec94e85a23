"""Rewards: one file each, by name in ``REWARDS``. The class's arguments come from the recipe."""

from collections.abc import Callable, Mapping
from typing import Final

from engine.reward.answer import count_answer_tags, extract_answer, grade
from engine.reward.base import Reward, Score, Verdict
from engine.reward.math_answers import MathReward

REWARDS: Final[Mapping[str, Callable[..., Reward]]] = {"math": MathReward}

__all__ = [
    "REWARDS",
    "MathReward",
    "Reward",
    "Score",
    "Verdict",
    "count_answer_tags",
    "extract_answer",
    "grade",
]
