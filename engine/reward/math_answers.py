"""The paper's reward: 1 for a right final answer, 0 for anything else, and nothing besides.

A rollout that was cut (token limit, turn limit) has reward 0 even where its answer is right, and stays in the
loss. Leaves out how answers are found and compared: ``answer.py``.
"""

from dataclasses import dataclass

from engine.reward.answer import extract_answer, grade
from engine.reward.base import ExtractRule, Score, Verdict


@dataclass(frozen=True, slots=True)
class MathReward:
    """Outcome reward in {0, 1}. ``rule`` is the recipe's ``answer_in``."""

    rule: ExtractRule = "answer_tag"

    def score(self, gold: str, sampled_text: str, *, cut: bool = False) -> Score:
        answer = extract_answer(sampled_text, self.rule)
        verdict = grade(gold, answer)
        if verdict is Verdict.ungradable:
            return Score(None, "ungradable", verdict, answer, self.rule)
        return Score(float(verdict is Verdict.correct and not cut), "scored", verdict, answer, self.rule)
