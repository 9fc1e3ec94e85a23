"""Series, charts, updates and logs: what telemetry and charts make, as REST says it."""

import csv
import io
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from tests.webapp.api.support import places, problem_of, strict
from webapp.api.serializers import ChartsAnswer, EngineLoadAnswer, SeriesAnswer, UpdatesAnswer
from webapp.runs.models import Run
from webapp.telemetry import queries
from webapp.telemetry.models import EngineMoment, LogLine, MetricPoint


@pytest.fixture
def url(run: Run) -> str:
    return f"/api/v1/runs/{run.pk}"


@pytest.fixture
def points(run: Run) -> None:
    """F001: a loss with one NaN and one infinity among four steps, and a reward."""
    common = {"run": run, "revision": 5, "attempt": 1, "stage": "rl", "at": timezone.now()}
    values = [(0.5, ""), (None, "nan"), (None, "inf"), (0.4, "")]
    MetricPoint.objects.bulk_create(
        MetricPoint(key=key, x=step, step=step, value=value, non_finite=which, **common)
        for key in ("loss", "reward")
        for step, (value, which) in enumerate(values, start=1)
    )
    Run.objects.filter(pk=run.pk).update(revision=5)


def test_series_are_parallel_arrays_with_bad_numbers_marked(api: APIClient, url: str, points: None) -> None:
    """F001"""
    body = strict(api.get(f"{url}/series?keys=loss,none"))
    loss = body["series"]["loss"]
    assert (loss["x"], loss["last"]) == ([1, 2, 3, 4], [0.5, None, None, 0.4])
    assert loss["non_finite"] == [{"x": 2, "which": "nan"}, {"x": 3, "which": "inf"}]
    assert body["series"]["none"]["x"] == []
    assert body["keys"] == ["loss", "reward"]
    assert body["cursor"] == 5
    assert set(loss) == set(SeriesAnswer().fields["series"].child.fields)  # type: ignore[attr-defined]


def test_series_can_be_cut_and_thinned(api: APIClient, url: str, points: None) -> None:
    assert strict(api.get(f"{url}/series?keys=loss&from=2&to=3"))["series"]["loss"]["x"] == [2, 3]
    assert len(strict(api.get(f"{url}/series?keys=loss&max_points=2"))["series"]["loss"]["x"]) == 2
    assert strict(api.get(f"{url}/series?keys=loss&max_points=100000000"))["series"]["loss"]["n"] == [1, 1, 1, 1]
    assert strict(api.get(f"{url}/series"))["series"] == {}


def test_wrong_parameters_of_series_are_named(api: APIClient, url: str) -> None:
    many = ",".join(map(str, range(101)))
    for query in ("from=-1", "to=99999999999999999999", "from=one", "max_points=0", f"keys={many}"):
        body = problem_of(api.get(f"{url}/series?{query}"), 400, "invalid")
        assert places(body) == {query.partition("=")[0]}


def moment(run: Run, seconds: float, revision: int, **engines: dict[str, float | None]) -> None:
    at = run.created_at + timedelta(seconds=seconds)
    EngineMoment.objects.create(
        run=run, revision=revision, attempt=1, stage="rl", step=2, at=at, engines={"vllm-0": engines["of"]}
    )


def test_the_load_of_engines_is_told_over_time(api: APIClient, run: Run, url: str) -> None:
    moment(run, 0.5, 5, of={"in_flight": 3.0, "kv_usage": None})
    moment(run, 10.5, 5, of={"in_flight": 2.0, "kv_usage": 0.25})
    body = strict(api.get(f"{url}/engine-load"))
    assert body["engines"] == {"vllm-0": {"in_flight": [3.0, 2.0], "kv_usage": [None, 0.25]}}
    assert (body["seconds"], body["stage"], body["step"], body["attempt"]) == ([0.5, 10.5], ["rl"] * 2, [2, 2], [1, 1])
    assert set(body) == set(EngineLoadAnswer().fields)


def test_new_load_of_engines_is_told_behind_the_cursor_and_too_much_is_fetched_anew(
    api: APIClient, run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment(run, 1, 4, of={"in_flight": 3.0})
    moment(run, 2, 5, of={"in_flight": 2.0})
    Run.objects.filter(pk=run.pk).update(revision=5)
    body = strict(api.get(f"{url}/updates?since=4"))
    assert (body["points"], body["more"]) == ([["engines.in_flight", 2.0, 2.0, ""]], False)
    monkeypatch.setattr(queries, "MOST_MOMENTS", 1)
    assert strict(api.get(f"{url}/updates?since=3"))["more"]


def test_series_come_as_csv_as_well(api: APIClient, url: str, points: None) -> None:
    answer = api.get(f"{url}/series?keys=loss,reward", headers={"Accept": "text/csv"})
    assert answer["Content-Type"].startswith("text/csv")
    assert "attachment" in answer["Content-Disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.content.decode())))
    assert [row["last"] for row in rows if row["key"] == "loss" and not row["non_finite"]] == ["0.5", "", "", "0.4"]
    assert [(row["x"], row["non_finite"]) for row in rows if row["key"] == "loss" and row["non_finite"]] == [
        ("2", "nan"),
        ("3", "inf"),
    ]
    empty = api.get(f"{url}/series", headers={"Accept": "text/csv"})
    assert empty.content.startswith(b"key,x,last")


def test_charts_come_with_the_cursor_to_go_on_from(api: APIClient, url: str, points: None) -> None:
    body = strict(api.get(f"{url}/charts"))
    assert body["cursor"] == 5
    reward = next(chart for chart in body["charts"] if chart["id"] == "reward")
    assert "reward" in reward["keys"]
    assert set(reward) == set(ChartsAnswer().fields["charts"].child.fields)  # type: ignore[attr-defined]


def test_updates_are_what_is_new_since_a_cursor(api: APIClient, url: str, points: None) -> None:
    body = strict(api.get(f"{url}/updates?since=4"))
    assert body["cursor"] == 5
    assert ["loss", 1, 0.5, ""] in body["points"]
    assert ["loss", 2, None, "nan"] in body["points"]
    assert set(body) == set(UpdatesAnswer().fields)
    assert strict(api.get(f"{url}/updates?since=5"))["points"] == []


def test_updates_need_a_cursor(api: APIClient, url: str) -> None:
    for query in ("", "?since=", "?since=x", "?since=-1", "?since=99999999999999999999999"):
        assert places(problem_of(api.get(f"{url}/updates{query}"), 400, "invalid")) == {"since"}


def log(run: Run, count: int) -> None:
    LogLine.objects.bulk_create(
        LogLine(
            run=run,
            revision=1,
            attempt=1,
            seq=n,
            at=timezone.now(),
            level="error" if n % 5 == 0 else "info",
            message=f"line {n}",
        )
        for n in range(1, count + 1)
    )


def seqs(body: Any) -> list[int]:
    return [line["seq"] for line in body["results"]]


def test_logs_can_be_followed_line_by_line(api: APIClient, run: Run, url: str) -> None:
    assert strict(api.get(f"{url}/logs")) == {"results": [], "next": None}
    log(run, 12)
    last = strict(api.get(f"{url}/logs?limit=5"))
    assert (seqs(last), last["next"]) == ([8, 9, 10, 11, 12], "1:12")
    nothing = strict(api.get(f"{url}/logs?after={last['next']}"))
    assert nothing == {"results": [], "next": "1:12"}
    assert seqs(strict(api.get(f"{url}/logs?after=1:3&limit=3"))) == [4, 5, 6]
    assert seqs(strict(api.get(f"{url}/logs?after=0:0&limit=100000000"))) == [*range(1, 13)]
    assert seqs(strict(api.get(f"{url}/logs?level=error"))) == [5, 10]


def test_wrong_parameters_of_logs_are_named(api: APIClient, url: str) -> None:
    nines = "9" * 30
    for query in ("after=12", "after=1:", "after=-1:2", "after=1:٣", f"after={nines}:1", "level=loud", "limit=0"):
        body = problem_of(api.get(f"{url}/logs?{query}"), 400, "invalid")
        assert places(body) == {query.partition("=")[0]}
