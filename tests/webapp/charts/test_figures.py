"""Figures of a run: what they show, how little they ask, and that nobody's text becomes markup."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from tests.webapp.support import RECIPE, make_run
from webapp.charts import registry
from webapp.charts.palette import COLOURS
from webapp.charts.registry import chart_specs, figures
from webapp.runs.models import Run, StageRun
from webapp.telemetry.models import EngineMoment, MetricPoint
from webapp.telemetry.queries import Series

pytestmark = pytest.mark.django_db
CASES = {
    case["id"]: case
    for case in map(json.loads, Path("tests/cases/platform.jsonl").read_text().splitlines())
    if case["kind"] in ("metrics", "charts")
}
SPELLED = {"NaN (float)": "nan", "+Infinity (float)": "inf"}


def put(run: Run, stage: str, key: str, values: Mapping[int, float | str]) -> None:
    """Points of a stage as ingest writes them: step -> value, or the word for one that was not finite."""
    row = run.stages.get(name=stage)
    MetricPoint.objects.bulk_create(
        MetricPoint(
            run=run,
            revision=1,
            attempt=1,
            stage=stage,
            step=step,
            x=row.offset + step,
            key=key,
            value=value if isinstance(value, float) else None,
            non_finite="" if isinstance(value, float) else value,
            at=timezone.now(),
        )
        for step, value in values.items()
    )


@pytest.fixture
def run() -> Run:
    """Four SFT steps, then ten of RL, all begun."""
    run = make_run(state="running")
    run.stages.update(started_at=timezone.now())
    return run


def chart(run: Run, name: str, **options: Any) -> dict[str, Any]:
    return next(each for each in figures(run, **options) if each["id"] == name)


def line(drawn: dict[str, Any], key: str) -> dict[str, Any]:
    binding = next(each for each in drawn["bind"] if each["key"] == key)
    found: dict[str, Any] = drawn["figure"]["data"][binding["trace"]]
    return found


def strict(value: Any) -> Any:
    """Through JSON that knows no NaN."""

    def refuse(word: str) -> None:
        raise AssertionError(word)

    return json.loads(json.dumps(value, allow_nan=False), parse_constant=refuse)


def test_every_chart_names_itself_and_is_drawn_without_any_data(run: Run) -> None:
    drawn = figures(run)
    assert [each["id"] for each in drawn] == [spec.id for spec in chart_specs()]
    for each in strict(drawn):
        assert each["title"]
        assert each["question"].endswith("?")
        assert each["words"].endswith(".")
        assert all(trace["x"] == [] for trace in each["figure"]["data"])


def test_all_charts_ask_for_their_series_together(
    run: Run, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Callable[[int], Any]
) -> None:
    asked = []

    def noted(run: Run, keys: Sequence[str], **options: Any) -> dict[str, Series]:
        asked.append(keys)
        return {key: Series() for key in keys}

    monkeypatch.setattr(registry, "series", noted)
    with django_assert_num_queries(2):  # the stages, and the engines' timeline
        figures(run)
    assert [set(keys) for keys in asked] == [{key for spec in chart_specs() for key in spec.keys}]


def test_steps_of_rl_follow_those_of_sft_on_one_axis(run: Run) -> None:
    put(run, "rl", "reward", {1: 0.25, 2: 0.5})
    drawn = chart(run, "reward")
    assert line(drawn, "reward")["x"] == [5, 6]
    assert drawn["ranges"] == [[5, 14]]
    assert drawn["words"] == "Mean reward: 0.5 at step 6, 0.25 at step 5."
    assert [shape["x0"] for shape in drawn["figure"]["layout"]["shapes"]] == [4.5]


@pytest.mark.parametrize("case", [CASES["F001"]], ids=["F001"])
def test_a_number_that_is_not_finite_is_a_marked_gap(run: Run, case: dict[str, Any]) -> None:
    values = {event["step"]: event["loss"] for event in case["input"]["events"]}
    put(run, "sft", "loss", {step: SPELLED.get(str(value), value) for step, value in values.items()})
    drawn = strict(chart(run, "optimisation"))
    assert line(drawn, "loss")["y"] == [0.5, None, None, 0.4]
    assert not line(drawn, "loss")["connectgaps"]
    assert sum(value is not None for value in line(drawn, "loss")["y"]) == case["expected"]["points_shown"]
    marks = drawn["figure"]["data"][drawn["bind"][0]["marks"]]
    assert list(zip(marks["x"], marks["text"], strict=True)) == [(2, "loss at step 2: nan"), (3, "loss at step 3: inf")]
    assert len(marks["x"]) == case["expected"]["nonfinite_marked"]
    assert "2 values were not finite" in drawn["words"]


def test_a_line_stops_where_its_number_begins_to_mean_something_else(run: Run) -> None:
    put(run, "sft", "loss", {3: 2.0, 4: 1.5})
    put(run, "rl", "loss", {1: 0.01, 2: 0.02})
    drawn = chart(run, "optimisation")
    assert drawn["breaks"] == [4, 14]
    loss = line(drawn, "loss")
    assert list(zip(loss["x"], loss["y"], strict=True)) == [(3, 2.0), (4, 1.5), (5, None), (5, 0.01), (6, 0.02)]


def test_the_same_key_of_another_kind_of_stage_is_another_number(run: Run) -> None:
    put(run, "sft", "tokens_per_s", {1: 90_000.0})
    put(run, "rl", "tokens_per_s", {1: 800.0})
    assert line(chart(run, "tokens_per_s"), "tokens_per_s")["y"] == [800.0]


def test_a_thinned_series_has_a_band_from_least_to_greatest(run: Run) -> None:
    run.stages.filter(name="rl").update(steps=400)
    put(run, "rl", "reward", {step: step / 1000 for step in range(1, 401)})
    drawn = chart(run, "reward", max_points=40)
    binding = drawn["bind"][0]
    low, high, shown = (drawn["figure"]["data"][binding[part]] for part in ("low", "high", "trace"))
    assert len(shown["x"]) <= 40
    assert all(a <= b <= c for a, b, c in zip(low["y"], shown["y"], high["y"], strict=True))
    assert high["fill"] == "tonexty"


def test_few_steps_are_bars_and_many_are_areas(run: Run) -> None:
    run.stages.filter(name="rl").update(steps=400)
    put(run, "rl", "kept_groups", {1: 3.0, 2: 5.0})
    put(run, "rl", "all_wrong", {1: 2.0, 2: 0.0})
    drawn = chart(run, "groups")
    assert {trace["type"] for trace in drawn["figure"]["data"]} == {"bar", "scatter"}
    assert drawn["words"] == "Groups of step 6: 5 kept, 0 all wrong."
    put(run, "rl", "kept_groups", {step: 1.0 for step in range(3, 401)})
    assert {trace["type"] for trace in chart(run, "groups")["figure"]["data"]} == {"scatter"}


def test_no_chart_needs_webgl(run: Run) -> None:
    """F071: browsers keep few WebGL contexts."""
    put(run, "rl", "reward", {1: 0.5})
    types = {trace["type"] for each in figures(run) for trace in each["figure"]["data"]}
    assert types <= {"scatter", "bar"}


def test_seconds_are_told_by_phase(run: Run) -> None:
    put(run, "rl", "seconds.sampling", {1: 3.0, 2: 2.0})
    put(run, "rl", "seconds.update", {1: 1.0, 2: 1.5})
    assert chart(run, "seconds")["words"] == "Step 6 took 3.5 s: sampling 2.0 s, update 1.5 s."


def test_calls_are_told_by_how_they_ended(run: Run) -> None:
    put(run, "rl", "sandbox.status.ok", {1: 40.0, 2: 50.0})
    put(run, "rl", "sandbox.status.error", {2: 8.0})
    put(run, "rl", "sandbox.status.timeout", {1: 1.0})
    assert chart(run, "sandbox_calls")["words"] == "Calls of step 6: 50 ok, 8 error."


def test_waiting_for_the_sandbox_is_told_beside_running(run: Run) -> None:
    put(run, "rl", "sandbox.wall_s", {1: 0.25, 2: 0.5})
    put(run, "rl", "sandbox.queued_s", {2: 0.125})
    drawn = chart(run, "sandbox_seconds")
    assert drawn["words"] == (
        "Seconds that a call ran: 0.5 at step 6, 0.25 at step 5. It waited 0.125 s for a free slot."
    )
    assert {line(drawn, f"sandbox.{part}")["yaxis"] for part in ("queued_s", "queued_p99_s")} == {"y2"}


def tell_load(run: Run, seconds: float, attempt: int = 1, **engines: dict[str, float]) -> None:
    assert run.started_at
    at = run.started_at + timedelta(seconds=seconds)
    EngineMoment.objects.create(run=run, revision=1, attempt=attempt, stage="rl", step=1, at=at, engines=engines)


@pytest.fixture
def working(run: Run) -> Run:
    """A run that started a while ago."""
    run.started_at = timezone.now()
    run.save()
    return run


def test_rollouts_in_engines_are_shown_over_time(working: Run) -> None:
    tell_load(working, 0, a={"in_flight": 4.0, "queued": 9.0}, b={"in_flight": 4.0, "queued": 9.0})
    busy, idle = {"in_flight": 3.0, "in_tools": 2.0, "queued": 0.0}, {"in_flight": 1.0, "in_tools": 0.0, "queued": 0.0}
    tell_load(working, 30, a=busy, b=idle)
    drawn = strict(chart(working, "engine_rollouts"))
    assert drawn["x"] == {"name": "second", "per": 1}
    flying, waiting = line(drawn, "engines.in_flight"), line(drawn, "engines.queued")
    assert list(zip(flying["x"], flying["y"], strict=True)) == [(0, 8), (30, 4)]
    assert list(zip(waiting["x"], waiting["y"], strict=True)) == [(0, 9), (30, 0)]
    assert drawn["words"] == "Second 30: in flight 4, waiting for a tool 2, not admitted yet 0."
    assert drawn["keys"] == ["engines.in_flight", "engines.in_tools", "engines.queued"]


def test_a_long_run_counts_minutes_and_its_lines_stop_between_attempts(working: Run) -> None:
    for seconds, attempt in ((0, 1), (90, 1), (6000, 2)):
        tell_load(working, seconds, attempt, a={"in_flight": 1.0})
    drawn = chart(working, "engine_rollouts")
    assert (drawn["x"], drawn["breaks"]) == ({"name": "minute", "per": 60}, [1.5])
    assert line(drawn, "engines.in_flight")["x"] == [0, 1.5, 100, 100]
    assert line(drawn, "engines.in_flight")["y"] == [1, 1, None, 1]


@pytest.mark.parametrize(
    ("engines", "keys"),
    [(2, ["engine.e0.kv_usage", "engine.e1.kv_usage"]), (9, ["engines.kv_usage.mean", "engines.kv_usage.max"])],
)
def test_few_engines_have_a_line_each_and_many_their_mean_and_the_fullest(
    working: Run, engines: int, keys: list[str]
) -> None:
    names = [f"e{number}" for number in range(engines)]
    tell_load(working, 0, **{name: {"kv_usage": number / 10} for number, name in enumerate(names)})
    drawn = chart(working, "engine_cache")
    shown = [each for each in drawn["keys"] if "kv_usage" in each]
    assert shown == keys
    assert [line(drawn, key)["y"] for key in shown] == ([[0], [0.1]] if engines == 2 else [[0.4], [0.8]])


def test_the_name_of_an_engine_is_no_markup(working: Run) -> None:
    tell_load(working, 0, **{"<img src=x>": {"kv_usage": 0.5}})
    drawn = chart(working, "engine_cache")
    assert drawn["figure"]["data"][0]["name"] == "&lt;img src=x&gt; used"
    assert drawn["words"] == "Second 0: <img src=x> used 50.0%."  # text, where it is shown


def test_evaluations_stand_at_the_step_they_followed(run: Run) -> None:
    figures_of_it = {"pass@1": 0.75, "pass@1_stderr": 0.05, "pass@1_greedy": 0.8, "pass@1_stderr_greedy": None}
    run.stages.filter(name="eval").update(metrics=figures_of_it)
    drawn = strict(chart(run, "pass_at_1"))
    sampled, greedy = drawn["figure"]["data"]
    assert (sampled["x"], sampled["y"], sampled["error_y"]["array"]) == ([14], [0.75], [0.05])
    assert (greedy["x"], greedy["y"]) == ([14], [0.8])
    assert drawn["words"] == "pass@1 in eval: sampled 75.0%, greedy 80.0%."


def test_a_run_without_a_kind_of_stage_has_none_of_its_charts() -> None:
    only_sft = RECIPE.partition('[[stages]]\nname = "rl"')[0]
    assert [each["id"] for each in figures(make_run(toml=only_sft))] == ["optimisation"]


@pytest.mark.parametrize("case", [CASES["F077"]], ids=["F077"])
def test_text_that_is_not_ours_is_no_markup(run: Run, case: dict[str, Any]) -> None:
    hostile = case["input"]["run_name"]
    Run.objects.filter(pk=run.pk).update(name=hostile)
    StageRun.objects.filter(run=run, name="rl").update(name=hostile[:50])
    StageRun.objects.filter(run=run, name="eval").update(name="<b>x</b>", metrics={"pass@1": 0.5})
    run.refresh_from_db()
    text = json.dumps([each["figure"] for each in figures(run)])
    assert "&lt;img src=x" in text
    assert "<img" not in text
    assert "<b>" not in text


def test_the_style_sheet_has_the_hues_of_the_palette() -> None:
    style = Path("frontend/src/live.css").read_text()
    for slot, colour in COLOURS.items():
        assert f"--sl-series-{slot}: {colour};" in style
