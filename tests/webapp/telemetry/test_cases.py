"""Rows of the platform's case file that concern numbers: what a tracker must not get wrong."""

import json
import math
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection, connections
from django.utils import timezone

from engine.contract.delivery import Batch
from engine.contract.events import StepFinished
from tests.webapp.support import make_run
from tests.webapp.telemetry.rows import shown
from tests.webapp.telemetry.telling import Attempt, case, shipped, stage_started, started, step, tool_call
from webapp.runs.models import Run
from webapp.telemetry import bulk, queries
from webapp.telemetry.door import Unacceptable, admit, parse
from webapp.telemetry.ingest import answer, take_in
from webapp.telemetry.models import MetricPoint
from webapp.trajectories.models import ToolCall

WORDS = {"NaN (float)": math.nan, "+Infinity (float)": math.inf}


def metrics_of(row: dict[str, Any]) -> list[tuple[int, dict[str, float]]]:
    """The events of a case: step and metrics."""
    return [
        (
            event["step"],
            {key: WORDS.get(value, value) for key, value in event.items() if key not in ("step", "event_id")},
        )
        for event in row
    ]


def as_sft(row: Any) -> list[StepFinished]:
    """As steps of the first stage, where a step and its place on the axis are one number."""
    return [StepFinished(stage="sft", step=number, metrics=metrics) for number, metrics in metrics_of(row)]


@pytest.mark.django_db
def test_f001_a_number_that_is_none_is_marked_and_hides_nothing(run: Run) -> None:
    row = case("F001")
    take_in(run.pk, Attempt().tell(started(), stage_started("sft"), *as_sft(row["input"]["events"])), launch=1)
    found = queries.series(run, ["loss"])["loss"]
    strict = json.loads(json.dumps({"last": found.last, "non_finite": found.non_finite}, allow_nan=False))
    assert len([value for value in strict["last"] if value is not None]) == row["expected"]["points_shown"]
    assert strict["non_finite"] == [{"x": 2, "which": "nan"}, {"x": 3, "which": "inf"}]
    assert len(strict["non_finite"]) == row["expected"]["nonfinite_marked"]


@pytest.mark.django_db
def test_f003_after_a_resume_the_newer_values_stand_and_the_older_are_kept(run: Run) -> None:
    row = case("F003")
    first, second = as_sft(row["input"]["events"]), as_sft(row["input"]["resumed"])
    take_in(run.pk, Attempt(1).tell(started(), stage_started("sft"), *first), launch=1)
    resumed = stage_started("sft", row["input"]["then_resume_from"] + 1)
    take_in(run.pk, Attempt(2).tell(started(), resumed, *second), launch=1)
    assert [[x, round(value or 0, 6)] for x, value in shown(run, "loss")] == row["expected"]["final_series"]
    assert list(MetricPoint.objects.filter(superseded=True).values_list("x", "value")) == [(4, 0.25), (5, 0.2)]


@pytest.mark.django_db
def test_f005_a_late_point_is_stored_and_sorted(run: Run) -> None:
    row = case("F005")
    take_in(run.pk, Attempt().tell(started(), stage_started("sft"), *as_sft(row["input"]["events"])), launch=1)
    assert [x for x, _ in shown(run, "a")] == row["expected"]["order_shown"]
    assert MetricPoint.objects.count() == row["expected"]["stored"]
    run.refresh_from_db()
    assert (run.step, run.latest) == (4, {"a": 1.0})  # it was late: the run stands where it stood


@pytest.mark.django_db
@pytest.mark.parametrize("at_once", [True, False])
def test_f009_of_two_values_of_one_step_the_last_is_shown_once(run: Run, at_once: bool) -> None:
    events = as_sft(case("F009")["input"]["events"])
    attempt = Attempt()
    take_in(run.pk, attempt.tell(started(), stage_started("sft")), launch=1)
    for bodies in [events] if at_once else [[event] for event in events]:
        take_in(run.pk, attempt.tell(*bodies), launch=1)
    assert shown(run, "loss") == [(1, 0.6)]
    assert MetricPoint.objects.count() == 2


@pytest.mark.parametrize("number", ["F011", "F015"])
def test_f011_f015_a_step_that_cannot_be_is_refused_by_name(number: str) -> None:
    """Steps end at 2**31 - 1, far below where JavaScript's numbers stop being exact (2**53)."""
    for event in case(number)["input"]["events"]:
        body = {"type": "step.finished", "stage": "sft", "step": event["step"], "metrics": {"loss": event["loss"]}}
        batch = {"attempt": 1, "events": [{"attempt": 1, "seq": 1, "at": 1.0, "body": body}]}
        with pytest.raises(Unacceptable) as refused:
            admit(parse(json.dumps(batch).encode()))
        assert list(refused.value.faults) == ["/events/0/body/step"]


@pytest.mark.django_db
def test_f013_a_long_series_comes_in_few_buckets_that_lose_no_peak(run: Run) -> None:
    """With fewer points than the case to stay quick; the case's million took 0.4 to 1.3 s on two busy cores."""
    count, most = 100_000, case("F013")["expected"]["chart_points_max"]
    values = [math.sin(number / 50) for number in range(count)]
    values[12_345], values[54_321] = 9.0, -9.0
    now = timezone.now()
    rows = ((run.pk, 1, 1, "sft", x, x, "loss", values[x - 1], "", now, False) for x in range(1, count + 1))
    bulk.copy_in(MetricPoint, bulk._POINT, rows)
    found = queries.series(run, ["loss"], max_points=most)["loss"]
    assert len(found.x) == most
    assert sum(found.n) == count
    assert (found.x[0], found.last[0], found.n[0]) == (1, values[0], 1)
    assert (found.x[-1], found.last[-1]) == (count, values[-1])
    assert (max(v for v in found.max if v is not None), min(v for v in found.min if v is not None)) == (9.0, -9.0)
    assert found.last == [values[x - 1] for x in found.x]


@pytest.mark.django_db
def test_f017_nul_is_stored_visibly_in_values_and_keys(run: Run) -> None:
    stdout = json.loads(f'"{case("F017")["input"]["json"]["stdout"]}"')
    assert stdout == "a\x00b"
    call = tool_call(arguments={"stdout": stdout, "k\x00": "1"}, response="\x00", name="py\x00")
    turn = shipped(1)[0].turns[0].model_copy(update={"calls": (call,), "text": "a\x00b"})
    hostile = shipped(1)[0].model_copy(update={"turns": (turn,), "problem": "\x00?"})
    take_in(run.pk, Attempt().tell(started(), stage_started(), trajectories=[hostile]), launch=1)
    stored = ToolCall.objects.get()
    assert stored.arguments == {"stdout": "a\\x00b", "k\\x00": "1"}
    assert (stored.name, stored.response) == ("py\\x00", "\\x00")
    assert stored.trajectory.problem == "\\x00?"
    assert stored.trajectory.turns.get().text == "a\\x00b"


@pytest.mark.django_db(transaction=True)
def test_f023_a_connection_that_was_cut_between_two_requests_is_replaced() -> None:
    run = make_run(state="starting", attempt=0)
    attempt = Attempt()
    take_in(run.pk, attempt.tell(started()), launch=1)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (backend,) = cursor.fetchone()
    connection.close()  # as at the end of a request: back into the pool
    with psycopg.connect(**own_connection(), autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [backend])
    take_in(run.pk, attempt.tell(stage_started(), step(1)), launch=1)
    assert answer(run.pk, 1).cursor == {1: 3}


def own_connection() -> dict[str, Any]:
    """To the same server, beside Django's pool."""
    known = connection.settings_dict
    return {"host": known["HOST"], "port": known["PORT"], "user": known["USER"]} | {
        "password": known["PASSWORD"],
        "dbname": known["NAME"],
    }


WRITERS, EVENTS_EACH, PER_BATCH = 20, 1000, 250


@pytest.mark.django_db(transaction=True)
@pytest.mark.e2e
def test_f025_parallel_writers_lose_nothing() -> None:
    """Sixteen runs with a writer each, and four writers on one run: two attempts, each sent by two at once."""
    assert case("F025")["input"] == {"parallel_writers": WRITERS - 4, "metric_events": WRITERS * EVENTS_EACH}
    apart = [make_run(state="starting", attempt=0) for _ in range(16)]
    shared = make_run(state="starting", attempt=0)
    writers = [(run, 1) for run in apart] + [(shared, number) for number in (1, 1, 2, 2)]
    failures: list[BaseException] = []
    threads = [threading.Thread(target=write, args=(run.pk, number, failures)) for run, number in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for run in apart:
        assert [row.last_seq for row in run.attempts.all()] == [EVENTS_EACH]
        assert [x for x, _ in shown(run, "loss")] == list(range(1, EVENTS_EACH - 1))
    assert [row.last_seq for row in shared.attempts.all()] == [EVENTS_EACH, EVENTS_EACH]
    assert [x for x, _ in shown(shared, "loss")] == list(range(1, EVENTS_EACH - 1))
    assert MetricPoint.objects.filter(run=shared).count() == 2 * (EVENTS_EACH - 2)


def write(run_id: str, number: int, failures: list[BaseException]) -> None:
    """Send an attempt of 1000 events; whoever is behind another goes on where that one is."""
    try:
        whole = Attempt(number)
        steps = (StepFinished(stage="sft", step=n, metrics={"loss": 1.0}) for n in range(1, EVENTS_EACH - 1))
        whole.tell(started(), stage_started("sft"), *steps)
        for batch in cut(whole):
            take_in(run_id, batch, launch=1)
    except BaseException as error:
        failures.append(error)
    finally:
        connections.close_all()


def cut(attempt: Attempt) -> Iterator[Batch]:
    for first in range(0, len(attempt.events), PER_BATCH):
        yield Batch(attempt=attempt.number, events=tuple(attempt.events[first : first + PER_BATCH]))
