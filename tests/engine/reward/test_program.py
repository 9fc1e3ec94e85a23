"""The grader as a program: the same scores as in our own process, from nothing but the standard library."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.reward import MathReward
from engine.reward.base import ExtractRule, Score, Verdict
from engine.reward.program import Answer, NotScores, as_stdin, grader_program, read_scores

CASES = Path(__file__).parents[2] / "cases" / "answers.jsonl"


def forms(gold: str, pred: str) -> list[Answer]:
    """A predicted answer as a policy may give it: bare, boxed, tagged, in a rollout that was cut."""
    tagged = f"<answer>\\boxed{{{pred}}}</answer>"
    return [Answer(gold, text, cut) for text, cut in ((pred, False), (tagged, False), (tagged, True))]


def every_answer() -> list[Answer]:
    rows: list[dict[str, Any]] = [json.loads(line) for line in CASES.read_text("utf-8").splitlines()]
    inputs = [row["input"] for row in rows if "gold" in row["input"]]
    hostile = [("4", "\ud800"), ("4", "\x00"), ("4", "9" * 5000), ("{" * 3000, "4"), ("4", "\\boxed{" * 3000)]
    pairs = [*((each["gold"], each.get("pred") or each["response"]) for each in inputs), *hostile]
    return [answer for pair in pairs for answer in forms(*pair)]


def graded(answers: list[Answer], rule: ExtractRule) -> list[Score]:
    """By an interpreter that finds no package at all (``-I -S``)."""
    program = [sys.executable, "-I", "-S", "-c", grader_program()]
    ran = subprocess.run(program, input=as_stdin(answers, rule), capture_output=True, text=True, check=True)
    return read_scores(ran.stdout, len(answers))


@pytest.mark.parametrize("rule", ["answer_tag", "last_box"])
def test_its_scores_are_those_of_our_own_process(rule: ExtractRule) -> None:
    answers, reward = every_answer(), MathReward(rule)
    expected = [reward.score(each.gold, each.text, cut=each.cut) for each in answers]
    assert {score.verdict for score in expected} == set(Verdict), "the cases tell verdicts apart"
    assert graded(answers, rule) == expected


@pytest.mark.parametrize(
    ("stdout", "said"),
    [
        ("", "asked for 1 scores and printed 0"),
        ("{}\n{}", "no score"),
        ("oops", "no score: Expecting value"),
        ('{"reward": 1.0, "status": "scored", "verdict": "sure", "answer": null, "rule": "last_box"}', "sure"),
        (
            '{"reward": null, "status": "scored", "verdict": "correct", "answer": "4", "rule": "last_box"}',
            "reward None",
        ),
        ('{"reward": 1.0, "verdict": "correct"}', "no score"),
    ],
)
def test_what_is_no_score_is_never_taken_for_one(stdout: str, said: str) -> None:
    with pytest.raises(NotScores, match=said):
        read_scores(stdout, 1)
