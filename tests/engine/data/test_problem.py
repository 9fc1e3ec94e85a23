"""A user's problem file: good rows are read, a bad one names file, line and field."""

from pathlib import Path

import pytest

from engine.data.problem import DataError, read_problems


def write(folder: Path, text: str) -> Path:
    path = folder / "problems.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


def test_rows_are_read_and_blank_lines_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path, '{"problem": "1+1?", "answer": "2"}\n\n{"problem": "2+2?", "answer": 4}\n')
    assert [(p.text, p.answer) for p in read_problems(path)] == [("1+1?", "2"), ("2+2?", "4")]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", ":2: is not JSON"),
        ("[1]", ":2: expected an object"),
        ('{"problem": "x"}', ":2: field answer"),
        ('{"problem": "", "answer": "1"}', ":2: field problem"),
        ('{"problem": "x", "answer": null}', ":2: field answer"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, line: str, expected: str) -> None:
    path = write(tmp_path, '{"problem": "1+1?", "answer": "2"}\n' + line + "\n")
    with pytest.raises(DataError, match=expected):
        read_problems(path)


def test_an_empty_file_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no problem; expected lines like"):
        read_problems(write(tmp_path, ""))
