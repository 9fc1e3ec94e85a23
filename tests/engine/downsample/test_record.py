"""A group's record: written, read, decided again to the bit, and decided otherwise."""

import copy
import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.downsample import (
    DOWNSAMPLERS,
    Candidate,
    Decision,
    GroupRecord,
    RecordError,
    deviations,
    make_downsampler,
    recompute,
    what_if,
)

ROC = {"mode": "drawn", "min_per_class": 1, "eps": 0.05}


def candidates(right: int = 19, wrong: int = 13, seed: int = 0) -> list[Candidate]:
    luck = random.Random(seed)
    rewards = [1.0] * right + [0.0] * wrong
    luck.shuffle(rewards)
    return [
        Candidate(index, reward, 4, luck.randrange(5), tags := luck.randrange(4), tags, 5, 1 - luck.random())
        for index, reward in enumerate(rewards)
    ]


def record(given: list[Candidate] | None = None, kind: str = "roc", planned: int = 32, keep: int = 16) -> GroupRecord:
    options = ROC if kind == "roc" else {}
    return GroupRecord.decide(
        group="rl-1/3/0",
        problem_id="p1",
        kind=kind,
        options=options,
        planned=planned,
        keep=keep,
        candidates=candidates() if given is None else given,
    )


records = st.builds(
    lambda right, wrong, seed, kind, keep: record(candidates(right, wrong, seed), kind, 40, keep),
    st.integers(0, 20),
    st.integers(1, 20),
    st.integers(0, 1000),
    st.sampled_from(sorted(DOWNSAMPLERS)),
    st.integers(0, 40),
)


class TestReadAgain:
    @settings(max_examples=40)
    @given(records)
    def test_it_is_the_same_to_the_bit_and_so_is_what_it_decides(self, made: GroupRecord) -> None:
        read = GroupRecord.from_dict(json.loads(json.dumps(made.as_dict())))
        assert read == made
        assert recompute(read) == made.selection
        assert deviations(read) == []

    def test_the_order_in_which_rollouts_finished_leaves_no_trace(self) -> None:
        given = candidates()
        assert record(random.Random(1).sample(given, len(given))) == record(given)

    def test_settings_not_given_are_written_down_too(self) -> None:
        made = GroupRecord.decide(
            group="g", problem_id="p", kind="roc", options={}, planned=32, keep=16, candidates=candidates()
        )
        assert made.as_dict()["rule"] == {"kind": "roc", **ROC}

    def test_fewer_rollouts_than_planned_have_fewer_places(self) -> None:
        made = record(candidates(17, 13))
        assert (made.places, len(made.selection.kept)) == (15, 15)


class TestDeviations:
    def test_a_selection_that_somebody_changed_is_found(self) -> None:
        made = record()
        other = next(each.index for each in made.selection.decisions if not each.kept)
        decisions = tuple(replace(each, kept=each.kept or each.index == other) for each in made.selection.decisions)
        forged = replace(made, selection=replace(made.selection, decisions=decisions))
        assert deviations(forged) == [f"rollout {other}, kept: stored True, recomputed False"]

    def test_last_bits_of_another_c_library_are_no_deviation(self) -> None:
        made = record()
        decisions = tuple(
            replace(each, key=None if each.key is None else each.key * (1 + 1e-15)) for each in made.selection.decisions
        )
        assert deviations(replace(made, selection=replace(made.selection, decisions=decisions))) == []

    def test_another_quota_is_found(self) -> None:
        made = record()
        found = deviations(replace(made, selection=replace(made.selection, kept_right_quota=9)))
        assert found == ["kept_right_quota: stored 9, recomputed 10"]


class TestWhatIf:
    def test_nothing_changed_changes_nothing(self) -> None:
        assert what_if(record(), {}) == record()

    def test_the_uniforms_stay(self) -> None:
        made = record()
        other = what_if(made, {"eps": 5.0})
        assert other.selection != made.selection
        assert [each.u for each in other.selection.decisions] == [each.u for each in made.candidates]

    def test_eps_touches_right_ones_only(self) -> None:
        made = record()
        assert wrong_ones(what_if(made, {"eps": 5.0})) == wrong_ones(made)

    @pytest.mark.parametrize("changes", [{"min_per_class": 8}, {"keep": 20}])
    def test_quotas_move_the_line_and_not_the_order(self, changes: dict[str, object]) -> None:
        made = record()
        other = what_if(made, changes)
        before, after = made.selection.decisions, other.selection.decisions
        assert [(each.rank, each.key) for each in before] == [(each.rank, each.key) for each in after]
        assert [each.kept for each in before] != [each.kept for each in after]

    def test_uniform_touches_right_ones_only(self) -> None:
        made = record()
        other = what_if(made, {"kind": "uniform"})
        assert other.options == {"min_per_class": 1}  # the setting that both rules have is carried over
        assert wrong_ones(other) == wrong_ones(made)
        assert other.selection.kept != made.selection.kept

    @settings(max_examples=25)
    @given(records, st.sampled_from(sorted(DOWNSAMPLERS)), st.integers(0, 40))
    def test_it_is_what_the_run_would_have_recorded(self, made: GroupRecord, kind: str, keep: int) -> None:
        other = what_if(made, {"kind": kind, "keep": keep})
        rule = make_downsampler(kind, other.options)
        assert other.selection == rule.select(made.candidates, keep * len(made.candidates) // 40)

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"epsilon": 1}, "'epsilon': roc has no such setting, expected mode, min_per_class, eps"),
            ({"kind": "keep_all", "eps": 1}, "'eps': keep_all has no such setting, expected none"),
            ({"kind": "best"}, "kind: expected one of roc, balanced, uniform, keep_all, got 'best'"),
            ({"kind": 3}, "kind: expected the name of a rule, got 3"),
            ({"eps": "big"}, "eps: expected a number, got 'big'"),
            ({"eps": 0}, "eps must be over 0, is 0.0"),
            ({"eps": 10**400}, "eps: expected a number, got 1000"),
            ({"min_per_class": 1.5}, "min_per_class: expected a whole number, got 1.5"),
            ({"min_per_class": True}, "min_per_class: expected a whole number, got True"),
            ({"min_per_class": -1}, "min_per_class must be 0 or more, is -1"),
            ({"mode": "best"}, "mode is 'best', expected 'drawn' or 'sorted'"),
            ({"keep": 33}, "keep: expected a whole number from 0 to the planned 32, got 33"),
            ({"keep": True}, "keep: expected a whole number from 0 to the planned 32, got True"),
        ],
    )
    def test_a_wrong_setting_is_named(self, changes: dict[str, object], said: str) -> None:
        with pytest.raises(ValueError, match="^" + said.replace("(", "\\(")):
            what_if(record(), changes)


def wrong_ones(made: GroupRecord) -> list[Decision]:
    return [each for each in made.selection.decisions if not each.right]


class TestRefusals:
    """Every error names the field."""

    @pytest.mark.parametrize(
        ("spoil", "said"),
        [
            (lambda r: r.pop("keep"), "record.keep: is missing"),
            (lambda r: r.update(more=1), "record: unknown field 'more'"),
            (lambda r: r.update({"\x1b[31m": 1}), r"record: unknown field '\x1b[31m'"),
            (lambda r: r.update(schema_version=2), "schema_version: is 2, this program reads 1"),
            (lambda r: r.update(group=7), "group: expected a text, got 7"),
            (lambda r: r.update(planned=31), "planned: is 31, but there are 32 candidates"),
            (lambda r: r.update(planned=2**60), "planned: expected a whole number, got 1152921504606846976"),
            (lambda r: r.update(keep=33), "keep: expected 0 to the planned 32, got 33"),
            (lambda r: r.update(keep=True), "keep: expected a whole number, got True"),
            (lambda r: r.update(rule=[]), "rule: expected an object, got []"),
            (lambda r: r["rule"].pop("kind"), "rule.kind: is missing"),
            (lambda r: r["rule"].pop("eps"), "rule.eps: is missing"),
            (lambda r: r["rule"].update(kind="best"), "rule.kind: expected one of roc, balanced"),
            (lambda r: r["rule"].update(eps=-1), "rule.eps must be over 0"),
            (lambda r: r["rule"].update(luck=1), "rule.'luck': roc has no such setting"),
            (lambda r: r.update(candidates={}), "candidates: expected a list, got {}"),
            (lambda r: r.update(candidates=[]), "candidates: expected one rollout or more, got none"),
            (lambda r: r["candidates"].__setitem__(3, None), "candidates[3]: expected an object, got None"),
            (lambda r: r["candidates"][3].pop("u"), "candidates[3].u: is missing"),
            (lambda r: r["candidates"][3].update(u="x" * 100), "candidates[3].u: expected a number, got 'xxx"),
            (lambda r: r["candidates"][3].update(u=float("nan")), "candidates[3].u: expected a number, got nan"),
            (lambda r: r["candidates"][3].update(u=0), "candidates[3]: rollout 3: u is 0.0, expected 0 < u <= 1"),
            (lambda r: r["candidates"][3].update(errors=9), "candidates[3]: rollout 3: 9 errors in 4 tool calls"),
            (lambda r: r["candidates"][3].update(index=2), "candidates[3].index: expected over 2, the one before it"),
            (lambda r: r.update(selection=None), "selection: expected an object, got None"),
            (lambda r: r["selection"].update(outcome="won"), "selection.outcome: expected one of kept, all_right"),
            (lambda r: r["selection"].update(outcome=[]), "selection.outcome: expected one of kept, all_right"),
            (lambda r: r["selection"]["kept"].append("0"), "selection.kept[16]: expected a whole number, got '0'"),
            (lambda r: r["selection"]["decisions"].pop(), "selection.decisions: expected one a candidate"),
            (
                lambda r: r["selection"]["decisions"][0].update(key="1"),
                "selection.decisions[0].key: expected a number or null, got '1'",
            ),
            (
                lambda r: r["selection"]["decisions"][0].update(kept=1),
                "selection.decisions[0].kept: expected true or false, got 1",
            ),
        ],
    )
    def test_a_spoiled_record(self, spoil: Callable[[dict[str, Any]], object], said: str) -> None:
        plain = copy.deepcopy(record().as_dict())
        spoil(plain)
        with pytest.raises(RecordError) as caught:
            GroupRecord.from_dict(plain)
        assert str(caught.value).startswith(said)
        assert str(caught.value).isprintable()

    @pytest.mark.parametrize("value", [None, [], "record", 3])
    def test_what_is_no_object(self, value: object) -> None:
        with pytest.raises(RecordError, match="record: expected an object"):
            GroupRecord.from_dict(value)

    def test_an_unknown_rule(self) -> None:
        with pytest.raises(ValueError, match="kind: expected one of roc, balanced, uniform, keep_all, got 'best'"):
            record(kind="best")
