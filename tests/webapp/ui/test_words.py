"""What is said of numbers, times, states and selections; and text made harmless. Nothing here needs a database."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from engine.downsample import DOWNSAMPLERS, Candidate
from webapp.ui import highlight, inert, wording
from webapp.ui.wording import NOTHING

NOW = datetime(2026, 11, 2, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, NOTHING), (0.0, "0"), (1.0, "1"), (0.4375, "0.438"), (88.4, "88.4"), (1423.3, "1,423"),
        (5e-4, "5.0e-04"), (-0.25, "-0.25"), (1e9, "1,000,000,000"), (float("nan"), "NaN"), (float("-inf"), "-∞"),
    ],
)  # fmt: skip
def test_numbers(value: float | None, said: str) -> None:
    assert wording.number(value) == said


@pytest.mark.parametrize(("value", "said"), [(None, NOTHING), (0.0, "0.0%"), (0.213, "21.3%"), (float("inf"), "∞")])
def test_shares(value: float | None, said: str) -> None:
    assert wording.percent(value) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, NOTHING), (0, "0.0 s"), (0.03, "30 ms"), (9.94, "9.9 s"), (42, "42 s"), (185, "3 min 05 s"),
        (8040, "2 h 14 min"), (442_800, "5 d 3 h"),
    ],
)  # fmt: skip
def test_durations(seconds: float | None, said: str) -> None:
    assert wording.duration(seconds) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s ago"), (59, "59 s ago"), (60, "1 min ago"), (7200, "2 h ago"), (200_000, "2 d ago"), (-5, "0 s ago")],
)
def test_ages(seconds: int, said: str) -> None:
    assert wording.age(NOW - timedelta(seconds=seconds), NOW) == said


RL: dict[str, Any] = {"kind": "rl"}


@pytest.mark.parametrize(
    ("rule", "reason", "right", "said"),
    [
        ({"kind": "roc", "mode": "drawn"}, "kept", True, "the lower the penalty, the better the chance"),
        ({"kind": "roc", "mode": "drawn"}, "kept", False, "among the wrong rollouts"),
        ({"kind": "roc", "mode": "drawn"}, "not_drawn", True, "smaller chance to stay"),
        ({"kind": "roc", "mode": "drawn"}, "not_drawn", False, "more wrong rollouts than places"),
        ({"kind": "roc", "mode": "sorted"}, "kept", True, "with the lowest penalties"),
        ({"kind": "roc", "mode": "sorted"}, "not_drawn", True, "lower penalties took the places"),
        ({"kind": "roc", "mode": "sorted"}, "not_drawn", False, "went to earlier ones"),
        ({"kind": "uniform"}, "kept", True, "all with the same chance"),
        ({"kind": "uniform"}, "not_drawn", True, "more right rollouts than places"),
        ({"kind": "balanced"}, "not_drawn", False, "more wrong rollouts than places"),
        ({"kind": "keep_all"}, "kept", False, "learns from every rollout"),
        ({"kind": "roc"}, "all_right", True, "every rollout of it is right"),
        ({"kind": "roc"}, "all_wrong", False, "every rollout of it is wrong"),
        ({"kind": "roc"}, "roc_emptied", True, "equal rewards and teach nothing"),
        ({"kind": "roc"}, "", False, "no reason was recorded"),
    ],
)
def test_selections_are_sentences(rule: dict[str, str], reason: str, right: bool, said: str) -> None:
    stage = RL | {"downsampling": rule}
    assert said in wording.selection_rule(stage, kept=reason == "kept", reason=reason, right=right)


def test_every_reason_that_down_sampling_gives_is_a_sentence() -> None:
    def of(rewards: list[float]) -> list[Candidate]:
        return [Candidate(i, reward, 1, 0, 1, 1, 1, 0.5) for i, reward in enumerate(rewards)]

    for kind, make in DOWNSAMPLERS.items():
        for rewards in ([1.0, 1.0], [0.0, 0.0], [1.0, 1.0, 1.0, 0.0]):
            for decision in make().select(of(rewards), 2).decisions:
                stage = RL | {"downsampling": {"kind": kind}}
                sentence = wording.selection_rule(
                    stage, kept=decision.kept, reason=decision.reason, right=decision.right
                )
                assert sentence.endswith(".")
                assert decision.reason in wording.SELECTION


def test_evaluations_select_nothing() -> None:
    assert "nothing is selected" in wording.selection_rule({"kind": "eval"}, kept=False, reason="", right=True)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain äöü 漢字 🙂\n\ttab", "plain äöü 漢字 🙂\n\ttab"),
        ("a\u202eb", "a⟦U+202E⟧b"),
        ("a\r\nb", "a\nb"),
        ("a\rb", "a⟦U+000D⟧b"),
        ("\x1b[0m", "⟦U+001B⟧[0m"),
        ("\ufeffx\u200b", "⟦U+FEFF⟧x⟦U+200B⟧"),
        ("\U000e0041", "⟦U+E0041⟧"),
        ("\udc80", "⟦U+DC80⟧"),
    ],
)
def test_hidden_characters_are_named(text: str, shown: str) -> None:
    assert inert.visible(text) == shown


def test_a_short_text_is_not_folded() -> None:
    folded = inert.fold("one\ntwo")
    assert (folded.head, folded.whole, folded.lines, folded.cut) == ("one\ntwo", "", 2, False)


@pytest.mark.parametrize("text", ["x\n" * 19 + "x", "y" * inert.FOLD_CHARACTERS])
def test_a_text_of_just_the_length_is_not_folded(text: str) -> None:
    assert inert.fold(text).whole == ""


def test_folding_loses_nothing_up_to_the_length_of_a_page() -> None:
    text = "line\n" * 5000
    folded = inert.fold(text)
    assert folded.head == "line\n" * 19 + "line"
    assert folded.whole == text
    assert (folded.lines, folded.cut) == (5001, False)
    assert inert.fold("x" * 70_000).cut
    assert len(inert.fold("x" * 70_000).whole) == inert.PAGE_CHARACTERS


def test_one_line_is_one_line() -> None:
    assert inert.one_line("a\n b\t c") == "a b c"
    assert inert.one_line("x" * 100, 10) == "x" * 9 + "…"
    assert inert.one_line("x" * 10, 10) == "x" * 10
    assert len(inert.one_line("\u202e" * 1_000_000, 10)) == 10


def test_code_is_coloured_and_escaped() -> None:
    shown = highlight.code("print('<b>')  # \u202e", "python")
    assert '<span class="nb">print</span>' in shown
    assert "&lt;b&gt;" in shown
    assert "⟦U+202E⟧" in shown
    assert "<span" not in highlight.code("x = 1\n" * 10_000, "python")
