"""Which text is the answer, and whether it equals the gold answer."""

import math
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.reward import REWARDS, MathReward, Verdict, count_answer_tags, extract_answer, grade
from engine.reward.answer import MAX_CHARS, read_number


class TestAnswerTag:
    @pytest.mark.parametrize(
        ("text", "answer"),
        [
            (r"<answer>So \boxed{5}.</answer>", "5"),
            (r"\boxed{5}", None),  # a lone box is no answer in training
            ("<answer>5</answer>", None),
            (r"<answer>\boxed{1}</answer> no: <answer>\boxed{2}</answer>", "2"),
            (r"<answer>\boxed{1}</answer> hm <answer>\boxed{2}", "1"),  # the last complete one
            (r"<answer>\boxed{1}</answer> \boxed{2}", "1"),
            (r"<answer> I open <answer>\boxed{3}</answer>", "3"),
            (r"<answer>\boxed{3}</answer> and </answer>", "3"),
            (r"<answer>\boxed{1} \boxed{2}</answer>", "2"),
            (r"<answer>\boxed{1} \boxed{}</answer>", None),
            (r"<answer>\boxed{1</answer>}", None),
            ("<answer></answer>", None),
            ("", None),
        ],
    )
    def test_the_box_in_the_last_complete_answer(self, text: str, answer: str | None) -> None:
        assert extract_answer(text) == answer


class TestLastBox:
    @pytest.mark.parametrize(
        ("text", "answer"),
        [
            (r"\boxed{6} no, \boxed{9}.", "9"),
            (r"\boxed{6} because f(x)={x+1 : x>0}", "6"),
            (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
            (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
            (r"\boxed{a \} b}", r"a \} b"),
            (r"\boxed {7}", "7"),
            ("\\boxed{8\n}", "8"),
            (r"\boxed{x = \boxed{5}}", "5"),  # the inner box
            (r"\boxed{12} and finally \boxed{}", None),
            (r"\boxed{12} and finally \boxed{13", None),
            (r"\boxed{12} and finally \boxed 13", None),
            (r"\boxed{12} \boxedge{13}", "12"),  # another command
            (r"\fbox{7}", None),
            ("12", None),
        ],
    )
    def test_the_last_one_or_none(self, text: str, answer: str | None) -> None:
        assert extract_answer(text, "last_box") == answer


@pytest.mark.parametrize("rule", ["answer_tag", "last_box"])
def test_what_a_program_would_print_is_no_answer(rule: str) -> None:
    answer = r"<answer>\boxed{10}</answer>"
    code = f'<tool_call>{{"name": "python", "arguments": {{"code": "print({answer!r})"}}}}</tool_call>'
    assert extract_answer(code, rule) is None  # type: ignore[arg-type]
    assert extract_answer(f"<tool_response>{answer}</tool_response>", rule) is None  # type: ignore[arg-type]
    assert extract_answer(f"a <tool_call> would do; {answer}", rule) == "10"  # type: ignore[arg-type]


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 'answer_tag' or 'last_box'"):
        extract_answer("", "first_box")  # type: ignore[arg-type]


def test_answer_tags_are_counted_apart() -> None:
    assert count_answer_tags("<answer>1</answer><answer>") == (2, 1)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("204", "204"),
        ("073", "73"),
        ("-0", "0"),
        ("5", "+5"),
        ("1234567", "1,234,567"),
        ("1{,}000", "1000"),
        ("1000.5", "1,000.50"),
        ("0.5", ".5"),
        ("5", "5."),
        ("-3", "\u22123"),  # the typographic minus
        ("3/4", "0.75"),
        (r"\frac{3}{4}", r"\frac{6}{8}"),
        (r"\dfrac{1}{2}", r"\tfrac{-1}{-2}"),
        (r"-\frac{2}{5}", r"\frac{-2}{5}"),
        ("-2/5", "2/-5"),
        ("$12$", " 12 "),
        ("99999999999999999999", "99999999999999999999"),
    ],
)
def test_equal_numbers_are_correct_both_ways(gold: str, answer: str) -> None:
    assert grade(gold, answer) == grade(answer, gold) == Verdict.correct


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("204", None),
        ("204", ""),
        ("204", " "),
        ("12", "112"),
        ("5/6", "0.8333"),
        ("100000", "100001"),
        ("99999999999999999999", "99999999999999999998"),  # equal as floats
        ("50", "0.5"),
        ("1234", "12,34"),  # not a thousands group
        ("100", "0,100"),
        ("7", "1,2,3,4,5,6,7"),
        ("7", "7 or 8"),
        ("7", "7=8"),
        ("0", "0/0"),
        ("0", r"\frac{0}{0}"),
        ("5", "__import__('os').system('touch X') or 5"),
        ("3", "x"),
        ("3", "$"),
        ("1", "1_0"),
        ("1", "1e0"),  # exponents are not read
    ],
)
def test_anything_else_is_incorrect(gold: str, answer: str | None) -> None:
    assert grade(gold, answer) == Verdict.incorrect


@pytest.mark.parametrize("gold", ["", " ", r"\text{see solution}", "x", "1/0", "12,34", "nan", "inf"])
def test_gold_that_cannot_be_read_is_ungradable_never_right(gold: str) -> None:
    assert grade(gold, gold) == grade(gold, "5") == grade(gold, None) == Verdict.ungradable


@given(st.fractions(), st.fractions())
def test_fractions_compare_as_fractions(a: object, b: object) -> None:
    assert (grade(str(a), str(b)) == Verdict.correct) == (a == b)


@given(st.text(st.sampled_from("0123456789,./+-{}\\frac $e"), max_size=30))
def test_no_text_makes_the_grader_fail(text: str) -> None:
    number = read_number(text)
    assert grade(text, text) == (Verdict.ungradable if number is None else Verdict.correct)


def test_nothing_keeps_the_grader_busy() -> None:
    began = time.perf_counter()
    for text in (
        "9" * 10**7,
        "1e999999999",
        "10**10**10",
        "0." + "1" * MAX_CHARS,
        "1," * MAX_CHARS,
        "(" * 10**6,
    ):
        assert grade("3", text) == Verdict.incorrect
        assert grade(text, "3") == Verdict.ungradable
    for piece in ("<answer>", r"\boxed{", "{", "<tool_call>", "<tool_response>", "</answer>", "$"):
        extract_answer(piece * 20_000)
        extract_answer(piece * 20_000, "last_box")
    assert time.perf_counter() - began < 5


def test_the_longest_number_that_is_read_is_exact() -> None:
    digits = "".join(random.Random(1).choices("123456789", k=MAX_CHARS))
    assert grade(digits, digits) == Verdict.correct
    assert grade(digits, digits + "0") == Verdict.incorrect


class TestMathReward:
    RIGHT = r"<answer>\boxed{5}</answer>"

    def test_right_is_one_and_wrong_is_nothing(self) -> None:
        reward = REWARDS["math"]()
        assert reward.score("5", self.RIGHT).reward == 1.0
        assert reward.score("6", self.RIGHT).reward == 0.0
        assert reward.score("5", "5").reward == 0.0

    def test_a_cut_rollout_gets_nothing_but_its_verdict_is_kept(self) -> None:
        score = MathReward().score("5", self.RIGHT, cut=True)
        assert (score.reward, score.status, score.verdict) == (0.0, "scored", Verdict.correct)

    def test_an_ungradable_problem_has_no_reward_rather_than_nought(self) -> None:
        score = MathReward().score("see below", self.RIGHT)
        assert (score.reward, score.status, score.answer) == (None, "ungradable", "5")

    def test_the_rule_is_the_recipes_and_is_recorded(self) -> None:
        assert MathReward().score("5", r"\boxed{5}").reward == 0.0
        score = MathReward(rule="last_box").score("5", r"\boxed{5}")
        assert (score.reward, score.rule) == (1.0, "last_box")
        assert not math.isnan(score.reward or 0)
