"""A user's problem file: good rows are read, a bad one names file, line and field."""

import io
from pathlib import Path

import pytest

from engine.data.problem import MAX_LINE, DataError, numbered_lines, problem_of, read_problems


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


@pytest.mark.parametrize(
    "content",
    [
        b'\xef\xbb\xbf{"problem": "a", "answer": "1"}\n{"problem": "b", "answer": 2}\n',
        b'{"problem": "a", "answer": "1"}\r\n\r\n{"problem": "b", "answer": 2}',
        b'{"problem": "a", "answer": "1"}\r{"problem": "b", "answer": 2}\r',
    ],
    ids=["byte-order mark", "Windows", "old Macs"],
)
def test_files_of_other_systems_are_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_bytes(content)
    assert [(p.text, p.answer) for p in read_problems(path)] == [("a", "1"), ("b", "2")]


@pytest.mark.parametrize("number", ["0.50", "-3", "1e400", "9" * 5000])
def test_a_number_is_kept_as_it_is_written(number: str) -> None:
    assert problem_of(f'{{"problem": "x", "answer": {number}}}').answer == number


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"problem": "x", "answer": true}', "field answer: expected text or a number, got True"),
        ('{"problem": "x", "answer": NaN}', "NaN is no JSON number"),
        ('{"problem": "x", "answer": "1", "answer": "2"}', "field given twice: 'answer'"),
        ('{"problem": "  ", "answer": "1"}', "field problem: expected text or a number, got '  '"),
        ("[" * 100_000, "is nested too deeply"),
        ('{"problem": "' + "x" * MAX_LINE + '", "answer": 1}', "is longer than 1,000,000 characters"),
    ],
)
def test_a_line_that_is_no_problem_is_refused(line: str, expected: str) -> None:
    with pytest.raises(DataError, match=expected):
        problem_of(line)


def test_a_byte_of_another_encoding_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_bytes(b'{"problem": "a", "answer": "1"}\n{"problem": "caf\xe9", "answer": "1"}\n')
    with pytest.raises(DataError, match=r":2: is not UTF-8: byte 0xe9 after '.*caf'"):
        read_problems(path)


def test_lines_keep_their_numbers_after_one_that_is_too_long() -> None:
    file = io.BytesIO(b"a\n" + b"x" * (3 * MAX_LINE) + b"\n\nb\n")
    assert [(number, len(line)) for number, line in numbered_lines(file)] == [(1, 2), (2, MAX_LINE + 2), (4, 2)]
