"""Resampling on Correct, as the paper words it and as we filled its gaps."""

import json
import math
import random
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.contract.stages import Downsampling
from engine.downsample import DOWNSAMPLERS, Candidate, Downsampler, KeepAll, Roc, Uniform, keep_count
from engine.downsample.quotas import class_quotas
from engine.downsample.registry import check_options
from engine.downsample.roc import draw_weight, error_penalty, format_penalty

N, K = 32, 16  # the paper's 2G and G

uniforms = st.floats(min_value=0, max_value=1, exclude_min=True, allow_subnormal=False)


def rollout(index: int, *, right: bool, errors: int = 0, answers: int = 1, u: float = 0.5) -> Candidate:
    """One that called the tool four times in five turns."""
    return Candidate(
        index=index,
        reward=float(right),
        calls=4,
        errors=errors,
        answer_opens=answers,
        answer_closes=answers,
        turns=5,
        u=u,
    )


def group(right: int, wrong: int, seed: int = 0) -> list[Candidate]:
    """Right and wrong ones in mixed order, with mixed penalties."""
    luck = random.Random(seed)
    verdicts = [True] * right + [False] * wrong
    luck.shuffle(verdicts)
    return [
        rollout(index, right=each, errors=luck.randrange(5), answers=luck.randrange(4), u=1 - luck.random())
        for index, each in enumerate(verdicts)
    ]


@st.composite
def groups(draw: st.DrawFn) -> list[Candidate]:
    size = draw(st.integers(2, 20))
    return [
        rollout(
            index,
            right=draw(st.booleans()),
            errors=draw(st.integers(0, 4)),
            answers=draw(st.integers(0, 3)),
            u=draw(uniforms),
        )
        for index in range(size)
    ]


class TestPenalties:
    def test_p_err_is_the_share_of_erroneous_calls_and_a_half_without_any(self) -> None:
        assert [error_penalty(calls, errors) for calls, errors in [(0, 0), (4, 0), (4, 1), (4, 4)]] == [
            0.5,
            0,
            0.25,
            1,
        ]

    def test_p_format_is_one_without_a_well_formed_answer(self) -> None:
        assert format_penalty(0, 0, turns=3) == 1
        assert format_penalty(2, 1, turns=3) == 1
        assert format_penalty(0, 1, turns=3) == 1

    def test_p_format_counts_surplus_answers_per_turn_up_to_one(self) -> None:
        assert [format_penalty(tags, tags, turns=4) for tags in (1, 2, 3, 9)] == [0, 0.25, 0.5, 1]

    def test_a_single_turn_with_a_single_answer_is_spotless(self) -> None:
        assert format_penalty(1, 1, turns=1) == 0  # the release counts no turn here and says 1

    def test_the_weight_falls_with_the_penalty_and_is_finite_without_one(self) -> None:
        assert draw_weight(0, eps=0.05) == pytest.approx(20)
        assert draw_weight(0.95, eps=0.05) == pytest.approx(1)


class TestQuotas:
    @pytest.mark.parametrize("wrong", range(N + 1))
    @pytest.mark.parametrize("least", [0, 1, 2])
    def test_exactly_half_stays_for_every_split_of_32(self, wrong: int, least: int) -> None:
        right = N - wrong
        quotas = class_quotas(right, wrong, K, least)
        assert sum(quotas) == K
        assert min(least, right) <= quotas.right <= right
        assert min(least, wrong) <= quotas.wrong <= wrong
        if least == 0:
            assert quotas.wrong == wrong // 2  # the paper's floor(|O_neg| / 2)

    def test_the_releases_rounding_keeps_four_of_five_and_five(self) -> None:
        assert round(5 * 5 / 10) + round(5 * 5 / 10) == 4
        assert sum(class_quotas(5, 5, 5, 1)) == 5

    def test_one_wrong_of_32_vanishes_by_the_letter_and_stays_with_a_minimum(self) -> None:
        assert class_quotas(31, 1, K, min_per_class=0) == (16, 0)
        assert class_quotas(31, 1, K, min_per_class=1) == (15, 1)
        assert class_quotas(30, 2, K, min_per_class=2) == (14, 2)

    @given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 50), st.integers(0, 4))
    def test_no_place_is_lost_or_invented(self, right: int, wrong: int, keep: int, least: int) -> None:
        quotas = class_quotas(right, wrong, keep, least)
        assert sum(quotas) == min(keep, right + wrong)
        assert 0 <= quotas.right <= right
        assert 0 <= quotas.wrong <= wrong
        if keep >= 2 * least:
            assert quotas.right >= min(least, right, keep)
            assert quotas.wrong >= min(least, wrong, keep)

    def test_negative_settings_are_refused(self) -> None:
        with pytest.raises(ValueError, match="0 or more"):
            class_quotas(3, 3, -1, 1)


def test_fewer_rollouts_keep_proportionally_fewer() -> None:
    assert [keep_count(32, 16, present) for present in (32, 31, 1, 0)] == [16, 15, 0, 0]
    with pytest.raises(ValueError, match="planned"):
        keep_count(32, 16, 33)


@pytest.mark.parametrize("downsampler", [Roc(), Roc(mode="sorted"), Uniform()])
class TestEverySelection:
    @pytest.mark.parametrize("right", range(1, N))
    def test_keeps_exactly_g_of_both_classes(self, downsampler: Downsampler, right: int) -> None:
        candidates = group(right, N - right, seed=right)
        selection = downsampler.select(candidates, K)
        kept = [each for each in candidates if each.index in selection.kept]
        assert selection.outcome == "kept"
        assert len(selection.kept) == len(set(selection.kept)) == len(kept) == K
        assert sum(each.right for each in kept) == selection.kept_right_quota >= 1
        assert sum(not each.right for each in kept) == selection.kept_wrong_quota >= 1

    @settings(max_examples=40)
    @given(groups(), st.integers(0, 40), st.randoms())
    def test_holds_for_any_group(
        self, downsampler: Downsampler, candidates: list[Candidate], keep: int, luck: random.Random
    ) -> None:
        selection = downsampler.select(candidates, keep)
        assert [each.index for each in selection.decisions] == list(range(len(candidates)))
        assert selection.kept == tuple(each.index for each in selection.decisions if each.kept)
        if selection.outcome == "kept":
            assert len(selection.kept) == min(keep, len(candidates))
            assert {candidates[index].right for index in selection.kept} == {True, False}
        else:
            assert selection.kept == ()
            assert {each.reason for each in selection.decisions} == {selection.outcome}
        finished = luck.sample(candidates, len(candidates))  # in whatever order rollouts came back
        assert downsampler.select(finished, keep) == selection

    @pytest.mark.parametrize(("right", "outcome"), [(N, "all_right"), (0, "all_wrong")])
    def test_equal_rewards_are_rejected_first(self, downsampler: Downsampler, right: int, outcome: str) -> None:
        selection = downsampler.select(group(right, N - right), K)
        assert (selection.kept, selection.outcome) == ((), outcome)
        assert all(each.rank is None and each.inclusion is None for each in selection.decisions)

    def test_a_group_with_one_survivor_has_no_contrast(self, downsampler: Downsampler) -> None:
        assert downsampler.select([rollout(0, right=True)], 1).outcome == "all_right"

    def test_variance_is_checked_again_after_selection(self, downsampler: Downsampler) -> None:
        selection = downsampler.select(group(5, 5), keep=1)
        assert (selection.kept, selection.outcome) == ((), "roc_emptied")
        assert not any(each.kept for each in selection.decisions)

    def test_serialises_to_plain_json(self, downsampler: Downsampler) -> None:
        stored = downsampler.select(group(20, 12), K).as_dict()
        assert json.loads(json.dumps(stored)) == stored

    def test_shows_penalties_of_right_and_wrong_ones_alike(self, downsampler: Downsampler) -> None:
        for each in downsampler.select(group(20, 12), K).decisions:
            assert each.p_total == each.p_err + each.p_format

    def test_the_first_of_each_class_up_to_its_quota_are_kept(self, downsampler: Downsampler) -> None:
        selection = downsampler.select(group(20, 12), K)
        for right, quota in ((True, selection.kept_right_quota), (False, selection.kept_wrong_quota)):
            members = [each for each in selection.decisions if each.right is right]
            assert sorted(each.rank or 0 for each in members) == list(range(1, len(members) + 1))
            for each in members:
                assert each.quota == quota
                assert each.kept == ((each.rank or 0) <= quota)

    @pytest.mark.parametrize("right", [1, 9, 16, 23, 31])
    def test_chances_of_a_class_add_up_to_its_quota(self, downsampler: Downsampler, right: int) -> None:
        selection = downsampler.select(group(right, N - right, seed=right), K)
        for side, quota in ((True, selection.kept_right_quota), (False, selection.kept_wrong_quota)):
            chances = [each.inclusion or 0.0 for each in selection.decisions if each.right is side]
            assert math.fsum(chances) == pytest.approx(quota, abs=1e-9)


class TestEverySplitOf32:
    """Exactly 16 stay; what cannot is rejected by rule and never filled up with rollouts that teach nothing."""

    @pytest.mark.parametrize("least", [0, 1, 2])
    @pytest.mark.parametrize("rule", ["drawn", "sorted", "uniform"])
    def test_keeps_16_when_it_can(self, rule: str, least: int) -> None:
        downsampler = Uniform(least) if rule == "uniform" else Roc(rule, least)  # type: ignore[arg-type]
        found = {right: downsampler.select(group(right, N - right, seed=right), K) for right in range(N + 1)}
        outcomes = {right: each.outcome for right, each in found.items() if each.outcome != "kept"}
        # By the letter (no minimum) the only wrong one of 32 has no place, floor(1/2) = 0, and right ones alone are
        # left. The release rounds halves to even, so that an only right one has none either.
        emptied = {31: "roc_emptied"} | ({1: "roc_emptied"} if rule == "sorted" else {}) if least == 0 else {}
        assert outcomes == {0: "all_wrong", N: "all_right"} | emptied
        assert {len(each.kept) for each in found.values() if each.outcome == "kept"} == {K}


class TestDrawnMode:
    def test_by_the_letter_a_nearly_solved_group_empties(self) -> None:
        candidates = group(31, 1)
        assert Roc(min_per_class=0).select(candidates, K).outcome == "roc_emptied"
        assert Roc().select(candidates, K).kept_wrong_quota == 1

    def test_right_ones_have_the_largest_efraimidis_spirakis_keys(self) -> None:
        selection = Roc().select(group(20, 12), K)
        right = [each for each in selection.decisions if each.right]
        for each, candidate in zip(selection.decisions, group(20, 12), strict=True):
            if each.right:
                assert each.weight == pytest.approx(1 / (0.05 + each.p_total))
                assert each.key == pytest.approx(candidate.u ** (0.05 + each.p_total))
        lowest_kept = min(each.key or 0 for each in right if each.kept)
        assert all((each.key or 0) <= lowest_kept for each in right if not each.kept)

    def test_wrong_ones_do_not_care_for_penalties(self) -> None:
        candidates = group(12, 20)
        clean = [
            each if each.right else replace(each, errors=0, answer_opens=1, answer_closes=1) for each in candidates
        ]
        drawn, again = (
            {index for index in Roc().select(each, K).kept if not candidates[index].right}
            for each in (candidates, clean)
        )
        assert drawn == again

    def test_a_what_if_with_the_same_uniforms_changes_only_with_the_setting(self) -> None:
        candidates = group(20, 12)
        assert Roc().select(candidates, K) == Roc().select(candidates, K)
        assert Roc().select(candidates, K) != Roc(eps=5.0).select(candidates, K)

    def test_with_equal_penalties_it_is_the_uniform_control(self) -> None:
        candidates = [rollout(index, right=index < 20, u=(index * 7 % 32 + 1) / 33) for index in range(N)]
        assert Roc().select(candidates, K).kept == Uniform().select(candidates, K).kept


class TestSortedMode:
    """The release's rule: no luck. Which ones it keeps: ``test_release.py``."""

    def test_uniforms_play_no_part(self) -> None:
        candidates = group(20, 12)
        again = [replace(each, u=1.0) for each in candidates]
        assert Roc(mode="sorted").select(candidates, K).kept == Roc(mode="sorted").select(again, K).kept

    def test_inclusion_is_certain(self) -> None:
        for each in Roc(mode="sorted").select(group(20, 12), K).decisions:
            assert each.inclusion == float(each.kept)


class TestKeepAll:
    def test_keeps_every_rollout_of_a_group_with_contrast(self) -> None:
        selection = KeepAll().select(group(20, 12), keep=N)
        assert selection.kept == tuple(range(N))
        assert (selection.kept_right_quota, selection.kept_wrong_quota) == (20, 12)

    def test_rejects_equal_rewards_like_the_others(self) -> None:
        assert KeepAll().select(group(4, 0), keep=4).outcome == "all_right"


class TestRefusals:
    def test_a_candidate_that_cannot_be(self) -> None:
        whole = rollout(0, right=True)
        refused: list[tuple[dict[str, Any], str]] = [
            ({"reward": math.nan}, "leave unscored rollouts out"),
            ({"errors": 5}, "5 errors in 4 tool calls"),
            ({"u": 0.0}, "0 < u <= 1"),
            ({"turns": -1}, "negative"),
        ]
        for change, said in refused:
            with pytest.raises(ValueError, match=said):
                replace(whole, **change)

    def test_two_candidates_with_one_index(self) -> None:
        with pytest.raises(ValueError, match="share an index"):
            Roc().select([rollout(0, right=True), rollout(0, right=False)], 1)

    def test_no_candidates(self) -> None:
        with pytest.raises(ValueError, match="without rollouts"):
            Roc().select([], 1)

    def test_settings_that_make_no_sense(self) -> None:
        for eps in (0, -1, math.nan, math.inf, 5e-324):
            with pytest.raises(ValueError, match="eps must be over 0"):
                Roc(eps=eps)
        for rule in (Roc, Uniform):
            with pytest.raises(ValueError, match="min_per_class must be 0 or more"):
                rule(min_per_class=-1)
        with pytest.raises(ValueError, match="mode"):
            Roc(mode="random")  # type: ignore[arg-type]


def test_recipes_know_every_rule_with_the_same_settings_and_defaults() -> None:
    union = get_args(Downsampling)[0]
    models = {get_args(model.model_fields["kind"].annotation)[0]: model for model in get_args(union)}
    assert models.keys() == DOWNSAMPLERS.keys()
    for kind, model in models.items():
        assert model(kind=kind).model_dump(exclude={"kind"}) == check_options(kind, {})


def test_the_registry_names_every_rule() -> None:
    assert set(DOWNSAMPLERS) == {"roc", "balanced", "uniform", "keep_all"}
    assert DOWNSAMPLERS["roc"](mode="sorted", min_per_class=2, eps=0.1) == Roc("sorted", 2, 0.1)
