"""The sentences that explain a selection, with the numbers that a person can check."""

import pytest

from engine.downsample import Candidate, GroupRecord, registry
from engine.downsample.in_words import explained


def words(right: int, wrong: int, kind: str = "roc", *, planned: int = 32, keep: int = 16, **options: object) -> str:
    candidates = [Candidate(i, float(i < right), 1, 0, 1, 1, 2, u=(i + 1) / 64) for i in range(right + wrong)]
    record = GroupRecord.decide(
        group="g",
        problem_id="p",
        kind=kind,
        options=options,  # type: ignore[arg-type]
        planned=planned,
        keep=keep,
        candidates=candidates,
    )
    return "\n".join(explained(record))


def test_the_whole_story_of_a_group() -> None:
    assert words(19, 13).split("\n") == [
        "32 rollouts: 19 right (reward over 0), 13 wrong. Rule: roc with mode = drawn, min_per_class = 1, eps = 0.05.",
        "Places: 16 of 32.",
        "Quota of wrong ones: floor(13 x 16 / 32 = 6.5) = 6.",
        "Quota of right ones: 16 - 6 = 10.",
        "Right ones: w = 1 / (0.05 + p_total), key = u^(1/w); the largest keys stay.",
        "Wrong ones: w = 1, so key = u; the largest keys stay.",
    ]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (words(31, 1), "= 0.5) = 0, raised to 1 (min_per_class 1, of 1 there are)."),
        (words(31, 1), "Quota of right ones: 16 - 1 = 15."),
        (words(31, 1, min_per_class=0), "Variance is checked again: those that would stay have equal rewards"),
        (words(1, 31, min_per_class=2), "16 - 15 = 1."),
        (words(17, 13), "30 of 32 planned rollouts came through, so floor(30 x 16 / 32) = 15 stay."),
        (words(17, 15, mode="sorted"), "round(15 x 16 / 32 = 7.5) = 8."),
        (words(17, 15, mode="sorted"), "Right ones: lowest p_total first, equal ones in batch order."),
        (words(4, 28, min_per_class=8), "16 - 14 = 2, raised to 4 (min_per_class 8, of 4 there are); "),
        (words(4, 28, min_per_class=8), "that leaves 16 - 4 = 12 for wrong ones."),
        (words(20, 12, "balanced"), "min(20, 12, floor(16 / 2) = 8) = 8."),
        (words(20, 12, "uniform"), "Both classes: w = 1, so key = u; the largest keys stay."),
        (words(20, 12, "keep_all", keep=32), "Every rollout stays."),
        (words(32, 0), "All rewards are 1, so every advantage would be 0. "),
        (words(0, 32), "The group is rejected before anything is drawn (all_wrong)."),
    ],
)
def test_limits_and_rejections_are_told(said: str, told: str) -> None:
    assert told in said


def test_a_rule_without_words_of_its_own_still_tells_its_quotas(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine:
        def select(self, candidates: object, keep: int) -> object:
            return registry.DOWNSAMPLERS["uniform"]().select(candidates, keep)  # type: ignore[arg-type]

    monkeypatch.setattr(registry, "DOWNSAMPLERS", {**registry.DOWNSAMPLERS, "mine": Mine})
    assert "Quotas: 10 right, 6 wrong." in words(20, 12, "mine")
