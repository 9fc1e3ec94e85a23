"""Rules side by side: sweeps take the best cap, ratios are medians, musts are judged, and the command tells it all."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from engine.cli import app
from engine.contract.resources import GrowthScheduler
from engine.simulate.compare import (
    ARMS,
    NO_CAP,
    Arm,
    Comparison,
    Figures,
    Scenario,
    Sweep,
    Tried,
    as_dict,
    dominated,
    larger_scale,
    paper_scale,
    ratio,
    sweep,
)
from engine.simulate.workload import Shape

SMALL = Scenario(Shape(4_000, 8_000, problems=6, rollouts=8), kv_tokens=60_000, engines=2)


def figures(makespan_s: float, recomputed: float = 0.0, spread: float = 0.0) -> Figures:
    return Figures(makespan_s, 1.0, recomputed, 0.0, spread, 0.0)


def comparison(**arms: tuple[Figures, ...]) -> Comparison:
    """All arms on one scenario; those not given are like growth."""
    found = {arm.name: arms.get(arm.name, arms["growth"]) for arm in ARMS}
    sweeps = {(SMALL, arm.name): Sweep(SMALL, arm, 1, (Tried(NO_CAP, 1.0),)) for arm in ARMS}
    seeds = len(arms["growth"])
    return Comparison((SMALL,), seeds, sweeps, {(SMALL, name): each for name, each in found.items()}, {})


def test_the_papers_scale_is_three_shapes_and_two_kv_caches():
    names = [scenario.name for scenario in paper_scale()]
    assert names[:2] == ["4K/8K, KV 5M, 8 engines", "4K/8K, KV 2.5M, 8 engines"]
    assert len(set(names)) == 6
    assert len({scenario.name for scenario in (*paper_scale(), *larger_scale())}) == 18


def test_a_sweep_takes_the_best_and_stops_what_is_slower():
    arm = replace(ARMS[1], caps=(None, 0.4, 1.5))
    found = sweep((SMALL, arm, 1))
    assert [tried.max_running for tried in found.tried] == [NO_CAP, 2, 10]
    assert found.tried[1].makespan_s is None
    assert found.best != 2


def test_of_equal_caps_the_first_is_taken_and_without_any_there_is_none():
    assert Sweep(SMALL, ARMS[0], 1, (Tried(9, 5.0), Tried(3, 5.0))).best == 9
    assert Sweep(SMALL, ARMS[-1], 1, ()).best == NO_CAP


def test_a_ratio_is_the_median_over_scenarios_and_seeds():
    made = comparison(growth=(figures(10), figures(10), figures(20)), kv_cap=(figures(15), figures(12), figures(80)))
    assert ratio(made, "kv_cap") == 1.5
    assert ratio(made, "static_sync") == 1


@pytest.mark.parametrize(
    ("aimd", "dominates"),
    [
        (figures(9, 0.0), True),
        (figures(10, 0.0), True),
        (figures(9, 0.02), False),
        (figures(11, 0.0), False),
        (figures(10, 0.01), False),
    ],
)
def test_aimd_dominates_when_it_is_no_worse_in_both_and_better_in_one(aimd, dominates):
    made = comparison(growth=(figures(10, 0.01),), aimd=(aimd,))
    assert dominated(made) == ([SMALL] if dominates else [])


def test_musts_are_judged_by_the_worst_scenario_and_can_be_missed():
    made = as_dict(comparison(growth=(figures(10, 0.02, 0.04),), static_sync=(figures(15),), kv_cap=(figures(11),)))
    reached = {must["name"]: must["reached"] for must in made["musts"]}
    assert reached == {
        "growth_vs_static_sync": True,
        "growth_vs_static_async": False,
        "growth_vs_kv_cap": False,
        "scenarios on which aimd dominates growth": True,
        "growth.recomputed_share": False,
        "growth.finish_spread": True,
    }


def test_every_baseline_is_swept_and_growth_runs_at_its_default():
    assert all(len(arm.caps) > 1 for arm in ARMS[:-1])
    assert Arm("growth", GrowthScheduler()) == ARMS[-1]


@pytest.mark.e2e
def test_the_command_prints_json_and_writes_a_report(tmp_path):
    report = tmp_path / "report.html"
    result = CliRunner().invoke(app, ["simulate", "--json", "--problems", "1", "--seeds", "1", "--report", str(report)])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert set(found["ratios"]) == {f"growth_vs_{name}" for name in ("static_sync", "static_async", "kv_cap", "aimd")}
    assert len(found["scenarios"]) == 6
    for scenario in found["scenarios"]:
        assert set(scenario["arms"]) == {arm.name for arm in ARMS}
        assert scenario["arms"]["kv_cap"]["sweep"]["tried"][0]["max_running"] is None
        assert len(scenario["frontier"]) > 2
    page = report.read_text(encoding="utf-8")
    assert "growth, default" in page
    assert "http-equiv" in page


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--replay", "/nowhere"], "/nowhere is no run folder"),
        (["--report", "/nowhere/report.html"], "there is no folder /nowhere"),
        (["--seeds", "0"], "greater than or equal to 1"),
        (["--problems", "513"], "less than or equal to 512"),
    ],
)
def test_bad_input_is_refused_at_once(arguments, said):
    result = CliRunner().invoke(app, ["simulate", *arguments])
    assert result.exit_code == 2
    assert said in result.output
