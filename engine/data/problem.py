"""What a problem is, and problems from a user's file.

Leaves out generated problems (``arithmetic.py``) and the checks of large data sets (duplicates, contamination).
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.contract.base import visible


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
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    problems = list(_parse_lines(path, text))
    if not problems:
        raise DataError(f'{path}: holds no problem; expected lines like {{"problem": "1+1?", "answer": "2"}}')
    return problems


def _parse_lines(path: Path, text: str) -> Iterator[Problem]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield _parse_line(f"{path}:{number}", line)


def _parse_line(place: str, line: str) -> Problem:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{place}: is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise DataError(f"{place}: expected an object with problem and answer, got {type(row).__name__}")
    for field in ("problem", "answer"):
        if not isinstance(row.get(field), str | int) or row[field] == "":
            raise DataError(f"{place}: field {field}: expected text, got {row.get(field)!r:.60}")
    return Problem(text=visible(str(row["problem"])), answer=visible(str(row["answer"])))
