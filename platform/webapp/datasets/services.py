"""Uploads of problem sets: a JSON Lines file becomes a dataset, whole or not at all.

What a line may be is the engine's rule (``engine.data.problem``): what is accepted here, an engine reads. Kept, counted
and shown, but refused by nobody: answers that the grader cannot read (the engine samples no such problem), texts that
come more than once, and texts that come with several answers. Leaves out other formats and the file itself, of which
the problems and a SHA-256 remain.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO

from django.db import connection, transaction
from psycopg import sql

from engine.data.problem import DataError, numbered_lines, problem_of
from engine.data.problem import Problem as ReadProblem
from engine.reward import Verdict, grade
from webapp.accounts.models import Project, User
from webapp.datasets.models import Dataset, Problem
from webapp.runs.services import WrongFields

MOST_BYTES = 256 * 2**20
MOST_PROBLEMS = 1_000_000
MOST_ERRORS = 50
"""Errors told one by one; the others are counted."""

EXPECTED = 'expected lines like {"problem": "1+1?", "answer": "2"}'
_COPIED = ("dataset_id", "position", "text", "answer", "ungradable")


@dataclass(frozen=True)
class LineError:
    """What is wrong with a line; line 0 is the file as a whole."""

    line: int
    message: str


class DatasetRefused(Exception):
    """A file that is no dataset: the first errors with their lines, and how many there are in all."""

    def __init__(self, errors: list[LineError], total: int) -> None:
        more = f" and {total - len(errors)} more" if total > len(errors) else ""
        super().__init__("; ".join(f"line {each.line}: {each.message}" for each in errors) + more)
        self.errors = errors
        self.total = total

    @classmethod
    def as_a_whole(cls, message: str) -> "DatasetRefused":
        return cls([LineError(0, message)], 1)


def upload(*, user: User, project: Project, name: str, file: IO[bytes]) -> Dataset:
    """The next version of the project's dataset of that name. A file that is one of its versions already is that
    version. Raises ``WrongFields`` for the name and ``DatasetRefused`` for the file."""
    name = name.strip()
    if not 1 <= len(name) <= 80 or "\0" in name:
        raise WrongFields({"/name": "expected a name of 1 to 80 characters"})
    digest = _digest(file)
    with transaction.atomic():
        # Uploads to one project come one after another: a second click waits for the first and finds its dataset.
        Project.objects.select_for_update(no_key=True).get(pk=project.pk)
        versions = Dataset.objects.filter(project=project, name=name)
        if same := versions.filter(sha256=digest, archived_at=None).order_by("-version").first():
            return same
        latest = versions.order_by("-version").first()
        dataset = Dataset.objects.create(
            project=project,
            name=name,
            version=latest.version + 1 if latest else 1,
            sha256=digest,
            count=0,
            created_by=user,
        )
        _copy_problems(dataset, file)
        _count(dataset)
    return dataset


def _digest(file: IO[bytes]) -> str:
    """SHA-256 of the file, which is left at its beginning. Raises ``DatasetRefused`` for one that is too large."""
    file.seek(0)
    digest, size = hashlib.sha256(), 0
    while chunk := file.read(2**20):
        digest.update(chunk)
        size += len(chunk)
        if size > MOST_BYTES:
            raise DatasetRefused.as_a_whole(f"is larger than {MOST_BYTES // 2**20} MiB")
    file.seek(0)
    return digest.hexdigest()


class _Errors:
    """The first errors, and how many there are."""

    def __init__(self) -> None:
        self.first: list[LineError] = []
        self.total = 0

    def add(self, line: int, error: DataError) -> None:
        self.total += 1
        if len(self.first) < MOST_ERRORS:
            self.first.append(LineError(line, str(error)))


def _copy_problems(dataset: Dataset, file: IO[bytes]) -> None:
    """Write every line's problem. Raises ``DatasetRefused`` when all lines are read."""
    errors = _Errors()
    table, columns = sql.Identifier(Problem._meta.db_table), sql.SQL(", ").join(map(sql.Identifier, _COPIED))
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(table, columns)
    with connection.cursor() as cursor, cursor.cursor.copy(statement) as copy:
        for row in _rows(dataset.pk, _problems(file, errors)):
            copy.write_row(row)
            dataset.count += 1
            dataset.ungradable += row[-1]
    if errors.total:
        raise DatasetRefused(errors.first, errors.total)
    if not dataset.count:
        raise DatasetRefused.as_a_whole(f"holds no problem; {EXPECTED}")


def _problems(file: IO[bytes], errors: _Errors) -> Iterator[tuple[int, ReadProblem]]:
    """Problems with their lines, up to the first error; the lines behind it are only looked at."""
    for good, (line, text) in enumerate(numbered_lines(file)):
        if good >= MOST_PROBLEMS:
            errors.add(line, DataError(f"more than {MOST_PROBLEMS:,} problems"))
            return
        try:
            problem = problem_of(text)
        except DataError as error:
            errors.add(line, error)
        else:
            if not errors.total:
                yield line, problem


def _rows(dataset_id: str, problems: Iterable[tuple[int, ReadProblem]]) -> Iterator[tuple[str, int, str, str, bool]]:
    for line, problem in problems:
        ungradable = grade(problem.answer, None) is Verdict.ungradable
        yield dataset_id, line, problem.text, problem.answer, ungradable


def _count(dataset: Dataset) -> None:
    """Have Postgres count doubles: a million texts do not belong in our memory."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT coalesce(sum(copies - 1), 0), count(*) FILTER (WHERE answers > 1) FROM ("
            " SELECT count(*) AS copies, count(DISTINCT md5(answer)) AS answers"
            " FROM datasets_problem WHERE dataset_id = %s GROUP BY md5(text)) AS texts",
            [dataset.pk],
        )
        dataset.duplicates, dataset.conflicts = cursor.fetchone()
    dataset.save(update_fields=["count", "ungradable", "duplicates", "conflicts"])
