"""Uploads of problem sets: accepted is what an engine reads; a refusal names its lines and leaves nothing."""

import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.data.problem import DataError, read_problems
from engine.reward import Verdict, grade
from tests.webapp.support import make_project, make_user
from webapp.accounts.models import Project
from webapp.datasets import queries, services
from webapp.datasets.models import Dataset, Problem
from webapp.datasets.services import DatasetRefused, LineError
from webapp.runs.folders import problem_lines
from webapp.runs.services import WrongFields

pytestmark = pytest.mark.django_db
ROOT = Path(__file__).parents[2] / "cases"
CASES = {row["id"]: row for row in map(json.loads, (ROOT / "data.jsonl").read_text().splitlines())}
ONE = b'{"problem": "1+1?", "answer": "2"}\n'


@pytest.fixture
def project() -> Project:
    return make_project()


def upload(project: Project, content: bytes, name: str = "sums") -> Dataset:
    return services.upload(user=project.owner, project=project, name=name, file=io.BytesIO(content))


def refused(project: Project, content: bytes) -> DatasetRefused:
    with pytest.raises(DatasetRefused) as caught:
        upload(project, content)
    assert not Problem.objects.exists()
    assert not Dataset.objects.exists()
    return caught.value


def rows(dataset: Dataset) -> list[tuple[int, str, str]]:
    return list(dataset.problems.values_list("position", "text", "answer"))


# --- rows of the case file


def file_of(case: str) -> bytes:
    return (ROOT / CASES[case]["input"]["file"]).read_bytes()


@pytest.mark.parametrize("case", ["G003", "G009", "G017", "G019", "G021", "G025", "G027", "G029"])
def test_a_good_file_of_the_cases_is_taken_whole(project: Project, case: str) -> None:
    dataset = upload(project, file_of(case))
    assert dataset.count == dataset.problems.count() == CASES[case]["expected"].get("rows", file_of(case).count(b"\n"))


@pytest.mark.parametrize("case", ["G013", "G023", "G031", "G035"])
def test_a_bad_file_of_the_cases_names_its_lines(project: Project, case: str) -> None:
    assert [error.line for error in refused(project, file_of(case)).errors] == CASES[case]["expected"]["flagged_lines"]


def test_one_question_with_two_answers_is_flagged_and_not_merged(project: Project) -> None:
    dataset = upload(project, file_of("G003"))
    assert (dataset.count, dataset.duplicates, dataset.conflicts) == (2, 1, CASES["G003"]["expected"]["conflicts"])
    assert [answer for _, _, answer in rows(dataset)] == ["56", "54"]


def test_padded_answers_stay_as_written_and_mean_their_number(project: Project) -> None:
    answers = [answer for _, _, answer in rows(upload(project, file_of("G009")))]
    assert answers == ["073", "73", "000", "73.0"]
    wanted = CASES["G009"]["expected"]["numeric_values"]
    assert all(grade(str(number), answer) is Verdict.correct for number, answer in zip(wanted, answers, strict=True))


def test_what_postgres_cannot_hold_is_stored_escaped(project: Project) -> None:
    assert rows(upload(project, file_of("G025")))[0][1] == r"a\x00b?"
    assert rows(upload(project, file_of("G027")))[0][1] == r"x \ud83d y?"


# --- what is accepted


def test_lines_keep_their_numbers(project: Project) -> None:
    dataset = upload(project, b'\n{"problem": "a", "answer": 1}\n\n\n{"problem": "b", "answer": -2.50, "level": 3}')
    assert rows(dataset) == [(2, "a", "1"), (5, "b", "-2.50")]


def test_what_the_grader_cannot_read_is_kept_counted_and_marked(project: Project) -> None:
    dataset = upload(project, ONE + b'{"problem": "2", "answer": "\\\\sqrt{2}"}\n{"problem": "3", "answer": 1e3}\n')
    assert (dataset.count, dataset.ungradable) == (3, 2)
    assert list(dataset.problems.values_list("ungradable", flat=True)) == [False, True, True]


def test_doubles_are_kept_and_counted(project: Project) -> None:
    dataset = upload(project, ONE * 3 + b'{"problem": "x", "answer": 1}\n{"problem": "x", "answer": 2}\n')
    assert (dataset.count, dataset.duplicates, dataset.conflicts) == (5, 3, 1)


def test_a_late_row_of_another_type_is_as_good_as_the_first(project: Project) -> None:
    lines = [json.dumps({"problem": f"p{number}?", "answer": number}) for number in range(20_000)]
    dataset = upload(project, "\n".join([*lines, '{"problem": "last?", "answer": "\\\\sqrt{2}"}']).encode())
    assert (dataset.count, dataset.ungradable, dataset.duplicates) == (20_001, 1, 0)


def test_a_file_from_a_browser_is_read_from_its_beginning(project: Project) -> None:
    file = SimpleUploadedFile("sums.jsonl", ONE)
    file.read()
    dataset = services.upload(user=project.owner, project=project, name=" sums ", file=file)  # type: ignore[arg-type]
    assert (dataset.name, dataset.count, dataset.created_by) == ("sums", 1, project.owner)


texts = st.text(st.characters(codec="utf-8"), max_size=8)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
good_rows = st.fixed_dictionaries({"problem": texts, "answer": texts | numbers}, optional={"level": st.integers()})
any_json = st.recursive(
    st.none() | st.booleans() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
)
any_rows = st.fixed_dictionaries({}, optional={"problem": any_json, "answer": any_json})
lines = st.one_of(
    good_rows.map(lambda row: json.dumps(row).encode()),
    good_rows.map(lambda row: json.dumps(row, ensure_ascii=False).encode()),
    any_rows.map(lambda row: json.dumps(row).encode()),
    st.sampled_from([b"", b" \t", b"\xe9", b'{"problem": "\\ud800\\u0000", "answer": "1"}', "\u2028".encode()]),
    st.binary(max_size=6),
)
files = st.builds(
    lambda mark, ends, found: mark + b"".join(line + end for line, end in zip(found, ends, strict=False)),
    st.sampled_from([b"", b"\xef\xbb\xbf"]),
    st.lists(st.sampled_from([b"\n", b"\r\n", b"\r"]), min_size=5, max_size=5),
    st.lists(lines, max_size=5),
)


@given(
    content=files | st.lists(good_rows, min_size=1, max_size=4).map(lambda r: "\n".join(map(json.dumps, r)).encode())
)
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_accepted_is_exactly_what_an_engine_reads(project: Project, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_bytes(content)
    try:
        read = [(problem.text, problem.answer) for problem in read_problems(path)]
    except DataError:
        with pytest.raises(DatasetRefused):
            upload(project, content)
        return
    dataset = upload(project, content)
    assert [(text, answer) for _, text, answer in rows(dataset)] == read
    path.write_text(problem_lines(dataset.pk), encoding="utf-8")
    assert [(problem.text, problem.answer) for problem in read_problems(path)] == read


# --- what is refused


@pytest.mark.parametrize(
    ("content", "line", "said"),
    [
        (b"", 0, 'holds no problem; expected lines like {"problem"'),
        (b"\n \r\n", 0, "holds no problem"),
        (b'[{"problem": "a", "answer": "1"}]', 1, "expected an object with problem and answer, got list"),
        (ONE + b"PK\x03\x04\xff", 2, "is not UTF-8: byte 0xff"),
        ('{"problem": "a", "answer": "1"}'.encode("utf-16"), 1, "is not UTF-8: byte 0xff"),
        (ONE + b'{"problem": "a"}', 2, "field answer: expected text or a number, got nothing"),
        (ONE + b'{"problem": "a", "answer": [1]}', 2, "field answer: expected text or a number, got ['1']"),
        (ONE + b'{"problem": "a", "answer": "1"', 2, "is not JSON: Expecting ',' delimiter at character 31"),
    ],
)
def test_a_file_that_is_no_dataset_is_refused(project: Project, content: bytes, line: int, said: str) -> None:
    [error] = refused(project, content).errors
    assert error.line == line
    assert error.message.startswith(said)


def test_the_first_errors_are_told_and_all_are_counted(project: Project) -> None:
    error = refused(project, (ONE + b"no\n") * 60)
    assert [each.line for each in error.errors] == list(range(2, 101, 2))
    assert error.total == 60
    assert str(error).endswith(" and 10 more")


def test_a_bad_line_at_the_end_leaves_the_versions_before_alone(project: Project) -> None:
    first = upload(project, ONE)
    with pytest.raises(DatasetRefused):
        upload(project, ONE * 3 + b"no")
    assert list(Dataset.objects.all()) == [first]
    assert Problem.objects.count() == 1


def test_too_many_problems_and_too_many_bytes_are_refused(project: Project, monkeypatch: Any) -> None:
    monkeypatch.setattr(services, "MOST_PROBLEMS", 3)
    assert upload(project, ONE * 3).count == 3
    with pytest.raises(DatasetRefused) as caught:
        upload(project, ONE * 4)
    assert caught.value.errors == [LineError(4, "more than 3 problems")]
    monkeypatch.setattr(services, "MOST_BYTES", 2 * 2**20)
    with pytest.raises(DatasetRefused) as caught:
        upload(project, b" " * (2 * 2**20 + 1))
    assert caught.value.errors == [LineError(0, "is larger than 2 MiB")]


@pytest.mark.parametrize("name", ["", " ", "x" * 81, "a\0b"])
def test_a_name_that_cannot_be_is_refused(project: Project, name: str) -> None:
    with pytest.raises(WrongFields) as caught:
        upload(project, ONE, name)
    assert caught.value.errors.keys() == {"/name"}


# --- versions


def test_another_file_of_the_same_name_is_the_next_version(project: Project) -> None:
    first, second = upload(project, ONE), upload(project, ONE * 2)
    assert (first.version, second.version) == (1, 2)
    assert upload(project, ONE, "others").version == 1
    assert upload(make_project(), ONE).version == 1


def test_the_same_file_is_the_version_that_it_was(project: Project) -> None:
    first = upload(project, ONE)
    upload(project, ONE * 2)
    assert upload(project, ONE) == first
    assert Problem.objects.count() == 3


def test_the_same_file_as_an_archived_version_is_a_new_one(project: Project) -> None:
    first = upload(project, ONE)
    Dataset.objects.update(archived_at=first.created_at)
    assert upload(project, ONE).version == 2


@pytest.mark.django_db(transaction=True)
def test_a_double_click_makes_one_version() -> None:
    project, both, made = make_project(), threading.Barrier(2), []

    def click() -> None:
        try:
            both.wait()
            made.append(upload(Project.objects.get(pk=project.pk), ONE * 50))
        finally:
            connection.close()

    threads = [threading.Thread(target=click) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made[0] == made[1]
    assert Dataset.objects.count() == 1


# --- what is shown


def test_a_user_sees_the_datasets_of_own_projects(project: Project, django_assert_num_queries: Any) -> None:
    uploaded = [upload(project, ONE * number) for number in (1, 2, 3)]
    upload(make_project(), ONE)
    Dataset.objects.filter(pk=uploaded[0].pk).update(archived_at=uploaded[0].created_at)
    with django_assert_num_queries(1):
        shown = [(each.project.name, each.created_by.username, each) for each in queries.dataset_list(project.owner)]
    assert [each for _, _, each in shown] == [uploaded[2], uploaded[1]]
    assert queries.dataset_list(make_user(is_superuser=True)).count() == 3


def test_versions_are_those_of_the_same_name_and_project(project: Project) -> None:
    first, second = upload(project, ONE), upload(project, ONE * 2)
    upload(project, ONE, "others")
    upload(make_project(), ONE)
    assert list(queries.versions_of(first)) == [second, first]
