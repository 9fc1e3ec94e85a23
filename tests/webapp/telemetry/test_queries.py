"""What charts, logs and live pages read of a run."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.contract.delivery import Batch
from engine.contract.events import LogLine, StepFinished
from tests.webapp.support import make_run
from tests.webapp.telemetry.rows import shown
from tests.webapp.telemetry.telling import Attempt, stage_started, started, step
from webapp.runs.models import Run
from webapp.runs.queries import run_summary
from webapp.telemetry import queries
from webapp.telemetry.ingest import take_in
from webapp.telemetry.queries import Series, keys_of, line_as_json, log_lines, series, updates

pytestmark = pytest.mark.django_db


def tell(run: Run, attempt: Attempt, *bodies: Any) -> Run:
    take_in(run.pk, attempt.tell(*bodies), launch=1)
    run.refresh_from_db()
    return run


def steps(*numbers: int, **more: float) -> list[StepFinished]:
    return [step(number, "sft", loss=float(number), **more) for number in numbers]


# Series


def test_a_short_series_is_shown_point_by_point(run: Run) -> None:
    tell(run, Attempt(), started(), stage_started("sft"), *steps(1, 2, 4))
    assert series(run, ["loss"])["loss"] == Series(
        x=[1, 2, 4], last=[1.0, 2.0, 4.0], min=[1.0, 2.0, 4.0], max=[1.0, 2.0, 4.0], n=[1, 1, 1], attempt=[1, 1, 1]
    )


def test_a_series_that_is_not_there_is_empty_and_no_keys_are_no_question(run: Run) -> None:
    assert series(run, ["loss"]) == {"loss": Series()}
    assert series(run, []) == {}
    assert series(run, ["\x00", "\ud800"]) == {"\x00": Series(), "\ud800": Series()}
    assert keys_of(run) == []


def test_a_long_series_comes_in_buckets_with_first_and_last_kept(run: Run) -> None:
    tell(run, Attempt(), started(), stage_started("sft"), *steps(*range(1, 10)))
    assert series(run, ["loss"], max_points=3)["loss"] == Series(
        x=[1, 5, 9], last=[1.0, 5.0, 9.0], min=[1.0, 2.0, 6.0], max=[1.0, 5.0, 9.0], n=[1, 4, 4], attempt=[1, 1, 1]
    )


def test_a_bucket_without_a_finite_number_is_a_break_and_says_where(run: Run) -> None:
    told = steps(1, 2) + [step(number, "sft", loss=float("nan")) for number in (3, 4)] + steps(5)
    tell(run, Attempt(), started(), stage_started("sft"), *told)
    found = series(run, ["loss"], max_points=3)["loss"]
    assert (found.x, found.last, found.min, found.n) == ([1, 3, 5], [1.0, None, 5.0], [1.0, 2.0, 5.0], [1, 2, 2])
    assert found.non_finite == [{"x": 3, "which": "nan"}, {"x": 4, "which": "nan"}]


def test_a_part_of_the_axis(run: Run) -> None:
    tell(run, Attempt(), started(), stage_started("sft"), *steps(*range(1, 10)))
    assert series(run, ["loss"], start=3, end=5)["loss"].x == [3, 4, 5]
    assert series(run, ["loss"], start=8)["loss"].x == [8, 9]
    assert series(run, ["loss"], end=2)["loss"].x == [1, 2]
    assert series(run, ["loss"], start=-5, end=10**12)["loss"].x == list(range(1, 10))
    assert series(run, ["loss"], start=5, end=3)["loss"].x == []


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(st.integers(1, 60), min_size=1, max_size=25), st.integers(2, 12))
def test_no_bucket_loses_anything(run: Run, places: set[int], most: int) -> None:
    """Against the plain definition, whatever lies where."""
    mine = make_run(state="starting", attempt=0)
    values = {x: float((x * 37) % 11) for x in places}
    told = [step(x, "sft", loss=value) for x, value in sorted(values.items())]
    take_in(mine.pk, Attempt().tell(started(), stage_started("sft"), *told), launch=1)
    found = series(mine, ["loss"], max_points=most)["loss"]
    assert len(found.x) <= most
    assert found.x == sorted(set(found.x))
    assert (found.x[0], found.x[-1]) == (min(places), max(places))
    below = 0
    for x, last, low, high, n in zip(found.x, found.last, found.min, found.max, found.n, strict=True):
        here = [values[place] for place in sorted(places) if below < place <= x]
        assert (last, low, high, n) == (values[x], min(here), max(here), len(here))
        below = x


def test_another_run_has_its_own_numbers(run: Run) -> None:
    other = make_run(state="starting", attempt=0)
    tell(other, Attempt(), started(), stage_started("sft"), *steps(1))
    assert (shown(run, "loss"), keys_of(run)) == ([], [])


def test_keys_are_those_that_are_shown(run: Run) -> None:
    tell(run, Attempt(1), started(), stage_started("sft"), step(1, "sft", b=1.0, a=1.0), step(2, "sft", gone=1.0))
    tell(run, Attempt(2), started(), stage_started("sft", 2))
    assert keys_of(run) == ["a", "b"]


def test_many_series_cost_no_more_questions(run: Run, django_assert_num_queries: Any) -> None:
    tell(run, Attempt(), started(), stage_started("sft"), *steps(1, 2, **{f"m{n}": 1.0 for n in range(30)}))
    with django_assert_num_queries(2):
        found = series(run, keys_of_many := [f"m{n}" for n in range(30)])
    assert all(found[key].x == [1, 2] for key in keys_of_many)


# The log


def test_the_log_is_read_from_its_end_or_from_a_place(run: Run) -> None:
    tell(run, Attempt(1), started(), *(LogLine(message=f"1.{n}") for n in (2, 3, 4)))
    tell(run, Attempt(2), started(), *(LogLine(message=f"2.{n}", level="warning") for n in (2, 3)))

    def messages(**asked: Any) -> list[str]:
        return [line.message for line in log_lines(run, **asked)]

    assert messages() == ["1.2", "1.3", "1.4", "2.2", "2.3"]
    assert messages(limit=2) == ["2.2", "2.3"]
    assert messages(after=(1, 3)) == ["1.4", "2.2", "2.3"]
    assert messages(after=(1, 3), limit=2) == ["1.4", "2.2"]
    assert messages(after=(2, 3)) == []
    assert messages(level="info") == messages()
    assert messages(level="warning") == ["2.2", "2.3"]
    assert messages(level="error") == []


# What is new


def test_a_reader_that_has_nothing_gets_the_cursor_only(run: Run) -> None:
    tell(run, Attempt(), started(), stage_started("sft"), *steps(1), LogLine(message="hello"))
    found = updates(run, 0).as_json()
    assert (found["cursor"], found["points"], found["log"]) == (run.revision, [], [])
    assert (found["reset"], found["more"], found["run"]) == (False, False, run_summary(run))


def test_what_is_new_since_a_cursor(run: Run) -> None:
    attempt = Attempt()
    seen = tell(run, attempt, started(), stage_started("sft"), *steps(1)).revision
    bad = step(2, "sft", loss=float("inf"))
    tell(run, attempt, bad, LogLine(level="warning", message="<b>\x00"))
    found = updates(run, seen).as_json()
    assert (found["cursor"], found["reset"], found["more"]) == (run.revision, False, False)
    assert found["points"] == [["loss", 2, None, "inf"]]
    line = {"attempt": 1, "seq": 5, "level": "warning", "message": "<b>\\x00"}
    assert [{name: each[name] for name in line} for each in found["log"]] == [line]
    assert found["log"][0]["at"].endswith("Z")
    assert updates(run, run.revision).as_json()["points"] == []


def test_nothing_newer_than_the_run_as_it_was_read_is_given_out(run: Run) -> None:
    """Else the next delta would bring it again."""
    attempt = Attempt()
    seen = tell(run, attempt, started(), stage_started("sft")).revision
    read = tell(run, attempt, *steps(1), LogLine(message="1"))
    take_in(read.pk, attempt.tell(*steps(2), LogLine(message="2")), launch=1)
    found = updates(read, seen)
    assert ([x for _, x, _, _ in found.points], [line["message"] for line in found.log]) == ([1], ["1"])
    fresh = updates(Run.objects.get(pk=run.pk), found.cursor)
    assert ([x for _, x, _, _ in fresh.points], [line["message"] for line in fresh.log]) == ([2], ["2"])


def test_a_reader_from_before_a_resume_begins_anew(run: Run) -> None:
    first, second = Attempt(1), Attempt(2)
    seen = tell(run, first, started(), stage_started("sft"), *steps(1, 2)).revision
    reset = tell(run, second, started(), stage_started("sft", 2)).revision
    tell(run, second, *steps(2))
    assert updates(run, seen).reset
    assert updates(run, seen).points == []
    assert not updates(run, reset).reset
    assert updates(run, reset).points == [("loss", 2, 2.0, "")]


def test_a_reader_from_a_database_that_was_thrown_away_begins_anew(run: Run) -> None:
    assert updates(run, run.revision + 100).reset


def test_too_much_at_once_is_said_and_cut(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "MOST_POINTS", 3)
    monkeypatch.setattr(queries, "MOST_LINES", 2)
    attempt = Attempt()
    seen = tell(run, attempt, started(), stage_started("sft")).revision
    exactly = tell(run, attempt, *steps(1, 2, 3), *(LogLine(message=str(n)) for n in (1, 2))).revision
    assert not updates(run, seen).more
    tell(run, attempt, *(LogLine(message=str(n)) for n in (3, 4, 5)))
    found = updates(run, exactly)
    assert ([line["message"] for line in found.log], found.more) == (["4", "5"], True)
    tell(run, attempt, *steps(4))
    assert (len(updates(run, seen).points), updates(run, seen).more) == (3, True)


class Reader:
    """A live page: begins with what REST shows, then follows by deltas alone until it is told to begin anew."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.begin()

    def begin(self) -> None:
        run = Run.objects.get(pk=self.run_id)
        self.cursor, self.summary = run.revision, run_summary(run)
        found = series(run, keys_of(run), max_points=5000)
        self.points = {(key, x): value for key, of in found.items() for x, value in zip(of.x, of.last, strict=True)}
        self.log = {(line.attempt, line.seq): line_as_json(line) for line in log_lines(run, limit=5000)}

    def follow(self) -> None:
        found = updates(Run.objects.get(pk=self.run_id), self.cursor).as_json()
        if found["reset"] or found["more"]:
            self.begin()
            return
        self.cursor, self.summary = found["cursor"], found["run"]
        self.points |= {(key, x): value for key, x, value, _ in found["points"]}
        for line in found["log"]:
            assert (line["attempt"], line["seq"]) not in self.log, "a line came twice"
            self.log[line["attempt"], line["seq"]] = line

    def sees(self) -> dict[str, Any]:
        return {"points": self.points, "log": dict(sorted(self.log.items())), "summary": self.summary}


def told_by(number: int, first_step: int) -> Attempt:
    attempt = Attempt(number)
    attempt.tell(started(), stage_started("sft", first_step, steps=4), LogLine(message="hello"))
    for done in range(first_step, 5):
        attempt.tell(step(done, "sft", loss=number + done / 10), LogLine(message=f"step {done}"))
    attempt.tell(step(4, "sft", loss=9.0, extra=float("nan")))
    return attempt


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from([0, 1, 2]), st.integers(0, 12), st.integers(1, 8)),  # a piece, perhaps known
            st.just("look"),
        ),
        max_size=25,
    )
)
def test_who_follows_sees_what_who_comes_fresh_sees(run: Run, happens: list[Any]) -> None:
    """Whatever arrives, in whatever order, sent again or not, and whenever the page looks."""
    mine = make_run(state="starting", attempt=0)
    attempts = [told_by(1, 1), told_by(2, 3), told_by(3, 2)]
    reader = Reader(mine.pk)
    for each in [*happens, "look"]:
        if each == "look":
            reader.follow()
        else:
            which, first, some = each
            events = tuple(attempts[which].events[first : first + some])
            known = mine.attempts.filter(number=which + 1).values_list("last_seq", flat=True).first() or 0
            if first <= known:
                take_in(mine.pk, Batch(attempt=which + 1, events=events), launch=1)
    assert reader.sees() == Reader(mine.pk).sees()
