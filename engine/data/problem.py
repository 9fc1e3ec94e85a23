"""What a problem is, and problems from a user's file.

A problem file is JSON Lines in UTF-8: one object a line, its ``problem`` and ``answer`` texts or numbers; a number is
kept as it is written. Blank lines, a byte-order mark and any ends of line are fine, other fields are passed over.
Leaves out generated problems (``arithmetic.py``) and the checks of large data sets (duplicates, contamination).
"""

import hashlib
import io
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from engine.contract.base import visible

MAX_LINE = 1_000_000
"""Characters. A longer line is no problem but a broken file, and must not fill the memory."""


class DataError(Exception):
    """Data that cannot be used: file, line, field and what was expected."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A question with its gold answer. ``kind`` groups problems in reports (``k=2``: two chained operations)."""

    text: str
    answer: str
    kind: str = ""

    @property
    def id(self) -> str:
        """The same for the same text, so that a problem is recognised across stages and runs."""
        return hashlib.sha256(self.text.encode("utf-8", "backslashreplace")).hexdigest()[:12]


def read_problems(path: Path) -> list[Problem]:
    """Problems of a JSONL file. Raises ``DataError`` that names file, line and field."""
    problems = []
    try:
        with path.open("rb") as file:
            for number, line in numbered_lines(file):
                problems.append(_placed(f"{path}:{number}", line))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    if not problems:
        raise DataError(f'{path}: holds no problem; expected lines like {{"problem": "1+1?", "answer": "2"}}')
    return problems


def _placed(place: str, line: str) -> Problem:
    try:
        return problem_of(line)
    except DataError as error:
        raise DataError(f"{place}: {error}") from error


def numbered_lines(file: IO[bytes]) -> Iterator[tuple[int, str]]:
    """The lines that hold something, each with its number. Never holds more than one of them; of one that is too
    long, the beginning is given. Bytes that are no UTF-8 come as lone surrogates, for ``problem_of`` to refuse."""
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape")
    try:
        for number in itertools.count(1):
            line = text.readline(MAX_LINE + 2)
            if not line:
                return
            rest = line
            while len(rest) == MAX_LINE + 2 and not rest.endswith("\n"):
                rest = text.readline(MAX_LINE + 2)
            if line.strip():
                yield number, line
    finally:
        text.detach()


def problem_of(line: str) -> Problem:
    """The problem in a line of a problem file. Raises ``DataError`` that says what was expected."""
    if len(line.removesuffix("\n")) > MAX_LINE:
        raise DataError(f"is longer than {MAX_LINE:,} characters")
    _refuse_other_encodings(line)
    row = _parsed(line)
    if not isinstance(row, dict):
        raise DataError(f"expected an object with problem and answer, got {type(row).__name__}")
    for field in ("problem", "answer"):
        value = row.get(field)
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"field {field}: expected text or a number, got {_shown(row, field)}")
    return Problem(text=visible(row["problem"]), answer=visible(row["answer"]))


def _shown(row: dict[str, Any], field: str) -> str:
    return f"{row[field]!r:.60}" if field in row else "nothing"


def _refuse_other_encodings(line: str) -> None:
    try:
        line.encode("utf-8")
    except UnicodeEncodeError as error:
        before, byte = line[: error.start][-20:], ord(line[error.start]) & 0xFF
        raise DataError(f"is not UTF-8: byte 0x{byte:02x} after {before!r}; save the file as UTF-8") from error


def _parsed(line: str) -> Any:
    try:
        return _DECODER.decode(line)
    except json.JSONDecodeError as error:
        raise DataError(f"is not JSON: {error.msg} at character {error.pos + 1}") from error
    except RecursionError as error:
        raise DataError("is nested too deeply") from error


def _refuse_constant(name: str) -> NoReturn:
    raise DataError(f"is not JSON: {name} is no JSON number")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise DataError(f"field given twice: {', '.join(twice)!r:.60}")
    return row


# Numbers stay as they are written: ``0.50`` is no other text, and no number is too large.
_DECODER = json.JSONDecoder(
    parse_int=str, parse_float=str, parse_constant=_refuse_constant, object_pairs_hook=_without_doubles
)
