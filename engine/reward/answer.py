r"""Finding the answer in what the policy wrote, and comparing it with the gold answer (paper, 2.2).

The answer is the last ``\boxed{}`` of either the last complete ``<answer>...</answer>`` (rule ``answer_tag``,
the training default) or the whole text (rule ``last_box``). Decided where the paper is silent:

* An unclosed, empty or brace-less last box is no answer; earlier boxes do not stand in for it. Of a box in a
  box, the inner one counts.
* Tool calls and tool responses are taken out first: a box that a program would print is no answer.
* Escaped braces do not count when braces are balanced.

Grading is exact, on integers and rationals: ``-1,234``, ``007``, ``.5``, ``5.``, ``3/4``, ``\frac{3}{4}``.
Nothing is rounded, evaluated or searched for inside other text. Anything over ``MAX_CHARS`` or with an
exponent is not read, so no input can keep the grader busy. Gold that cannot be read makes the problem
ungradable; an answer that cannot be read is incorrect. Leaves out symbolic answers, units, percent signs,
sets and intervals.
"""

import re
from fractions import Fraction

from engine.reward.base import ExtractRule, Verdict

MAX_CHARS = 1000

_TOOL_TEXT = re.compile(
    r"<tool_call>(?:(?!<tool_call>).)*?</tool_call>|<tool_response>(?:(?!<tool_response>).)*?</tool_response>",
    re.DOTALL,
)
_ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)
_BOX = re.compile(r"\\boxed(?![A-Za-z])\s*(\{?)")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)

_PLAIN = r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+"
_NUMBER = rf"[+-]?(?:{_PLAIN})"
_INTEGER_OR_DECIMAL = re.compile(_NUMBER)
_QUOTIENT = re.compile(rf"(?P<sign>)(?P<top>{_NUMBER})\s*/\s*(?P<bottom>{_NUMBER})")
_FRAC = re.compile(rf"(?P<sign>[+-]?)\\[dt]?frac\s*\{{\s*(?P<top>{_NUMBER})\s*\}}\s*\{{\s*(?P<bottom>{_NUMBER})\s*\}}")


def extract_answer(sampled_text: str, rule: ExtractRule = "answer_tag") -> str | None:
    """The answer's text, or None where there is none."""
    own_text = _TOOL_TEXT.sub("", sampled_text)
    if rule == "last_box":
        return _last_box(own_text)
    if rule != "answer_tag":
        raise ValueError(f"rule is {rule!r}, expected 'answer_tag' or 'last_box'")
    answers = _ANSWER.findall(own_text)
    return _last_box(answers[-1]) if answers else None


def count_answer_tags(text: str) -> tuple[int, int]:
    """Opening and closing answer tags, for p_format. Pass sampled text only: the prompt names the tag too."""
    return text.count("<answer>"), text.count("</answer>")


def grade(gold: str, answer: str | None) -> Verdict:
    """Compare as numbers, exactly."""
    wanted = read_number(gold)
    if wanted is None:
        return Verdict.ungradable
    return Verdict.correct if answer is not None and read_number(answer) == wanted else Verdict.incorrect


def read_number(text: str) -> Fraction | None:
    """The rational that ``text`` denotes, all of it, or None."""
    if len(text) > MAX_CHARS:
        return None
    text = _plain(text)
    if _INTEGER_OR_DECIMAL.fullmatch(text):
        return _fraction(text)
    parts = _QUOTIENT.fullmatch(text) or _FRAC.fullmatch(text)
    if parts is None:
        return None
    top, bottom = _fraction(parts["top"]), _fraction(parts["bottom"])
    sign = -1 if parts["sign"] == "-" else 1
    return sign * top / bottom if bottom else None


def _plain(text: str) -> str:
    """Without math delimiters, TeX's braces around a comma and the typographic minus."""
    text = text.strip()
    if len(text) >= 2 and text.startswith("$") and text.endswith("$"):
        text = text[1:-1].strip()
    return text.replace("{,}", ",").replace("\u2212", "-")


def _fraction(number: str) -> Fraction:
    return Fraction(number.replace(",", ""))


def _last_box(text: str) -> str | None:
    boxes = list(_BOX.finditer(text))
    if not boxes or not boxes[-1][1]:
        return None
    start = boxes[-1].end()
    end = _closing_brace(text, start)
    return (text[start:end].strip() or None) if end is not None else None


def _closing_brace(text: str, start: int) -> int | None:
    """Where the brace opened just before ``start`` closes."""
    depth = 1
    for brace in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return brace.start()
    return None
