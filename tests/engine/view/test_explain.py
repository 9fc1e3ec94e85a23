"""The table of ``explain-roc`` on the sample group of the docs: what a person reads, what hostile text cannot do."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from engine.downsample import GroupRecord, RecordError, deviations, recompute, what_if
from engine.view.explain import (
    as_json,
    deviation_lines,
    in_order_of_places,
    parse_settings,
    plain_text,
    print_explanation,
    read_group,
)

SAMPLE = Path(__file__).resolve().parents[3] / "docs" / "examples" / "roc-group.json"
RULER = re.compile(r"^[\s─-]+$")


@pytest.fixture
def sample() -> GroupRecord:
    return read_group(SAMPLE)


def printed(record: GroupRecord, other: GroupRecord | None = None, *, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system="truecolor")
    print_explanation(record, other, console)
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())


def rows(text: str) -> list[list[str]]:
    """Cells of the lines that are rows of rollouts or rulers (no cells)."""
    lines = [line for line in text.splitlines() if RULER.match(line) or re.match(r"\s*\d+\s+(\d|right|wrong)", line)]
    return [[] if RULER.match(line) else line.split() for line in lines if line.strip()]


class TestTheSample:
    def test_is_a_group_of_32_that_keeps_16(self, sample: GroupRecord) -> None:
        assert (len(sample.candidates), sample.right, sample.wrong, len(sample.selection.kept)) == (32, 19, 13, 16)

    def test_is_what_the_rule_gives(self, sample: GroupRecord) -> None:
        assert recompute(sample) == sample.selection
        assert deviations(sample) == []

    def test_is_stored_as_it_is_written(self, sample: GroupRecord) -> None:
        assert json.loads(SAMPLE.read_text("utf-8")) == sample.as_dict()


class TestOneOutcome:
    def test_the_quota_is_spelt_out(self, sample: GroupRecord) -> None:
        text = printed(sample)
        assert "Quota of wrong ones: floor(13 x 16 / 32 = 6.5) = 6." in text
        assert "Quota of right ones: 16 - 6 = 10." in text

    def test_rows_stand_by_falling_key_with_a_line_where_the_quota_ends(self, sample: GroupRecord) -> None:
        found = rows(printed(sample))
        assert [len(part) for part in _parts(found)] == [10, 9, 6, 7]
        for right in (True, False):
            keys = [each.key or 0 for each in in_order_of_places(sample, right)]
            assert keys == sorted(keys, reverse=True)
        indices = [int(cells[0]) for cells in found if cells]
        assert indices == [each.index for right in (True, False) for each in in_order_of_places(sample, right)]
        kept = {int(cells[0]) for cells in found if cells and cells[-1] == "kept"}
        assert kept == set(sample.selection.kept)

    def test_a_row_can_be_followed_by_hand(self, sample: GroupRecord) -> None:
        row = next(cells for cells in rows(printed(sample)) if cells and cells[0] == "23")
        assert " ".join(row) == "23 1 0/4 2/2 5 0.000 0.200 0.200 4 0.83612 0.95624 21.6% kept"
        weight, key = 1 / (0.05 + 0.2), 0.83612 ** (1 / 4)
        assert weight == pytest.approx(4)
        assert key == pytest.approx(0.95624, abs=1e-5)

    def test_no_number_is_cut_on_a_narrow_terminal(self, sample: GroupRecord) -> None:
        assert "…" not in printed(sample, width=40)

    def test_a_rejected_group_has_no_line(self, sample: GroupRecord) -> None:
        right = tuple(each for each in sample.candidates if each.right)
        solved = GroupRecord.decide(
            group="g", problem_id="p", kind="roc", options={}, planned=32, keep=16, candidates=right
        )
        text = printed(solved)
        assert "rejected before anything is drawn (all_right)" in text
        assert [len(part) for part in _parts(rows(text))] == [19]
        assert "Kept: none" in text


class TestWhatIf:
    def test_both_outcomes_stand_beside_each_other(self, sample: GroupRecord) -> None:
        other = what_if(sample, parse_settings(["kind=balanced", "keep=15"]))
        text = printed(sample, other)
        assert "floor(15 / 2) = 7) = 7." in text
        found = {int(cells[0]): cells for cells in rows(text) if cells}
        assert " ".join(found[28]) == "28 wrong 1.000 not drawn 7 46.2% kept 7 53.8% enters"
        assert found[0][-1] == "leaves"
        assert "Enter: 5, 28" in text
        assert "Leave: 0, 6, 10, 29" in text

    def test_the_same_for_programs(self, sample: GroupRecord) -> None:
        other = what_if(sample, parse_settings(["mode=sorted"]))
        plain = json.loads(json.dumps(as_json(sample, other)))
        assert GroupRecord.from_dict(plain["record"]) == sample
        assert GroupRecord.from_dict(plain["what_if"]["record"]) == other
        assert set(plain["what_if"]["enter"]) == set(other.selection.kept) - set(sample.selection.kept)
        assert plain["deviations"] == []

    def test_settings_are_numbers_where_they_look_like_it(self) -> None:
        given = ["eps=0.1", "min_per_class=0", "mode=sorted", 'kind="uniform"']
        assert parse_settings(given) == {"eps": 0.1, "min_per_class": 0, "mode": "sorted", "kind": "uniform"}

    @pytest.mark.parametrize("given", ["eps", "=1", "eps=", ""])
    def test_a_setting_without_name_or_value(self, given: str) -> None:
        with pytest.raises(ValueError, match="expected name=value"):
            parse_settings([given])


class TestHostileText:
    def test_markup_and_escape_sequences_stay_text(self, sample: GroupRecord) -> None:
        hostile = replace(sample, group="[red]x[/red]\x1b[2J\x07", problem_id="a\u202eb\n[link=file:///x]\x9b1m")
        text = printed(hostile, width=200)
        assert r"group [red]x[/red]\x1b[2J\x07 · problem a\u202eb\n[link=file:///x]\x9b1m" in text

    def test_a_long_text_is_one_line(self) -> None:
        assert plain_text("x" * 10_000) == "x" * 119 + "…"

    def test_a_changed_selection_is_told(self, sample: GroupRecord) -> None:
        assert deviation_lines(sample) == []
        lines = deviation_lines(replace(sample, selection=replace(sample.selection, kept=tuple(range(32)))))
        assert lines[0] == "the stored selection is not what its candidates and its rule give:"
        assert lines[1].startswith("  kept: stored (0, 1, 2")
        many = tuple(replace(each, p_err=2.0) for each in sample.selection.decisions)
        assert deviation_lines(replace(sample, selection=replace(sample.selection, decisions=many)))[-1] == (
            "  and 27 more"
        )


class TestFiles:
    @pytest.fixture
    def many(self, sample: GroupRecord, tmp_path: Path) -> Path:
        path = tmp_path / "step-00003.jsonl"
        groups = [replace(sample, group=f"rl/3/{n}").as_dict() for n in range(3)]
        path.write_text("".join(json.dumps(each) + "\n" for each in groups), "utf-8")
        return path

    def test_a_group_is_picked_from_lines(self, many: Path) -> None:
        assert read_group(many, "rl/3/1").group == "rl/3/1"

    def test_one_line_needs_no_pick(self, sample: GroupRecord, tmp_path: Path) -> None:
        path = tmp_path / "one.jsonl"
        path.write_text(json.dumps(sample.as_dict()), "utf-8")
        assert read_group(path) == sample

    def test_a_byte_order_mark_does_no_harm(self, sample: GroupRecord, tmp_path: Path) -> None:
        path = tmp_path / "one.json"
        path.write_text(json.dumps(sample.as_dict()), "utf-8-sig")
        assert read_group(path) == sample

    def test_a_pick_that_is_needed_or_not_there(self, many: Path) -> None:
        with pytest.raises(RecordError, match=r"has 3 groups, pick one with --group; the first are 'rl/3/0', "):
            read_group(many)
        with pytest.raises(RecordError, match=r"has no group 'rl/9/9'; its first groups are 'rl/3/0', "):
            read_group(many, "rl/9/9")

    def test_a_group_that_is_there_twice(self, many: Path) -> None:
        many.write_text(many.read_text("utf-8") * 2, "utf-8")
        with pytest.raises(RecordError, match=r"'rl/3/1' is there more than once: .*jsonl:2, .*jsonl:5"):
            read_group(many, "rl/3/1")

    def test_a_wrong_line_is_named(self, many: Path) -> None:
        good, spoiled, _ = many.read_text("utf-8").splitlines()
        many.write_text(good + "\n\n" + spoiled.replace('"turns": 2', '"turns": "2"', 1) + "\n", "utf-8")
        with pytest.raises(RecordError, match=r"step-00003.jsonl:3: candidates\[\d+\].turns: expected a whole number"):
            read_group(many, "rl/3/1")
        many.write_text(good + "\n{torn", "utf-8")
        with pytest.raises(RecordError, match=r"step-00003.jsonl:2: is not JSON: "):
            read_group(many, "rl/3/0")

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (None, "cannot be read: No such file"),
            (b"", "is not JSON"),
            (b"\xff\xfe", "is not UTF-8 text: byte 0"),
            (b"[" * 100_000, "is not JSON"),
            (b'{"planned": ' + b"9" * 5000 + b"}", "is not JSON"),
            (b"[]", "record: expected an object"),
        ],
    )
    def test_what_is_no_record(self, tmp_path: Path, content: bytes | None, said: str) -> None:
        path = tmp_path / "group.json"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(RecordError, match=f"group.json: {said}"):
            read_group(path)

    def test_lines_without_a_record(self, tmp_path: Path) -> None:
        path = tmp_path / "empty.jsonl"
        path.write_text("\n\n")
        with pytest.raises(RecordError, match="is empty, expected a group's record"):
            read_group(path)


def _parts(found: list[list[str]]) -> list[list[list[str]]]:
    """Rows between rulers."""
    parts: list[list[list[str]]] = [[]]
    for cells in found:
        if cells:
            parts[-1].append(cells)
        elif parts[-1]:
            parts.append([])
    return [part for part in parts if part]
