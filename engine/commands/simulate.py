"""``python -m engine simulate``: rules of scheduling at cluster scale, or a recorded run again, in virtual time.

Leaves out the simulation itself: ``engine.simulate``.
"""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from engine.commands.terminal import refuse, say

if TYPE_CHECKING:
    from engine.simulate.compare import Plan

WIDTH = 118
"""Columns of the tables: no number is cut on a narrower terminal."""


def simulate(
    plain: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="First steps and 64 engines too, sweeps over the whole batch; minutes.")
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, max=100, metavar="N", help="Batches of each scenario.")] = 1,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write an HTML report; sweeps growth's chance too.", show_default=False),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(metavar="RUN_FOLDER", help="Simulate a recorded run's steps instead.", show_default=False),
    ] = None,
    problems: Annotated[int, typer.Option(min=1, max=512, help="Problems a batch; the paper has 512.")] = 512,
) -> None:
    """Simulate rollouts at cluster scale with the scheduler that runs use."""
    if replay is not None:
        _replay(replay, plain)
        return
    if report is not None and not report.parent.is_dir():
        raise refuse(ValueError(f"--report {report}: there is no folder {report.parent}"))
    _compare(_plan(full, seeds, problems, frontier=report is not None), plain, report)


def _plan(full: bool, seeds: int, problems: int, *, frontier: bool) -> "Plan":
    from dataclasses import replace

    from engine.simulate.compare import CHANCES, PART, Plan, larger_scale, paper_scale
    from engine.simulate.workload import SHAPES

    shapes = [replace(shape, problems=problems) for shape in SHAPES]
    scenarios = (*paper_scale(shapes), *(larger_scale(shapes) if full else ()))
    return Plan(
        scenarios,
        seeds,
        sweep_part=1 if full else PART,
        chances=CHANCES if frontier else (),
    )


def _compare(plan: "Plan", plain: bool, report: Path | None) -> None:
    from engine.simulate.compare import as_dict, compare

    columns = TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("simulating", total=plan.batches)
        comparison = compare(plan, processes=os.cpu_count() or 1, done=lambda: progress.advance(task))
    found = as_dict(comparison)
    if report is not None:
        from engine.simulate.report import write_report  # plotly: a second

        write_report(report, comparison)
    if plain:
        typer.echo(json.dumps(found))
        return
    _print(found)
    if report is not None:
        say(f"report: {report.resolve().as_uri()}")


def _print(found: dict[str, Any]) -> None:
    console = Console()
    console.width = max(console.width, WIDTH)
    for scenario in found["scenarios"]:
        seeds = ", ".join(map(str, scenario["seeds"]))
        table = Table(title=f"{scenario['name']}; seeds: {seeds}", title_justify="left")
        for name in ("rule", "cap an engine", "makespan s", "useful tokens/s", "recomputed", "re-prefilled", "spread"):
            table.add_column(name, justify="left" if name == "rule" else "right")
        table.add_column("p95 wait s", justify="right")
        for name, arm in scenario["arms"].items():
            table.add_row(name, *_row(arm))
        console.print(table)
    console.print(f"engine: {_settings(found['engine'])}")
    for scenario in found["scenarios"]:
        for name, arm in scenario["arms"].items():
            console.print(f"{scenario['name']}, {name}: {_arm_settings(arm)}", soft_wrap=True)
    musts = Table("what", "found", "must", "")
    for must in found["musts"]:
        musts.add_row(
            must["name"], f"{must['value']:.3f}", must["must"], "reached" if must["reached"] else "not reached"
        )
    musts.add_row("growth_vs_aimd", f"{found['ratios']['growth_vs_aimd']:.3f}", "", "")
    console.print(musts)


def _row(arm: dict[str, Any]) -> list[str]:
    cap = arm["settings"]["max_running"]
    return [
        "none" if cap is None else str(cap),
        f"{arm['makespan_s']:.1f}",
        f"{arm['useful_tokens_per_s']:,.0f}",
        f"{arm['recomputed_share']:.2%}",
        f"{arm['reprefilled_share']:.1%}",
        f"{arm['finish_spread']:.1%}",
        f"{arm['p95_wait_s']:.2f}",
    ]


def _arm_settings(arm: dict[str, Any]) -> str:
    settings = arm["settings"]
    tried = [
        f"cap {'none' if each['max_running'] is None else each['max_running']}: "
        + ("stopped, slower" if each["makespan_s"] is None else f"{each['makespan_s']:.1f} s")
        for each in arm["sweep"]["tried"]
    ]
    swept = f"; swept over {arm['sweep']['part']} of the batch: {', '.join(tried)}" if tried else ""
    return f"{_settings(settings['scheduler'])}, barrier {'on' if settings['barrier'] else 'off'}{swept}"


def _settings(settings: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in settings.items()
    )


def _replay(folder: Path, plain: bool) -> None:
    from engine.simulate.replay import NothingToReplay, replay  # trajectories: pyarrow
    from engine.sink.event_log import EventLogCorrupt
    from engine.sink.run_folder import RunFolderError
    from engine.sink.trajectories import TrajectoriesUnreadable

    try:
        found = replay(folder).as_dict()
    except (RunFolderError, TrajectoriesUnreadable, EventLogCorrupt, NothingToReplay) as error:
        raise refuse(error) from error
    if plain:
        typer.echo(json.dumps(found))
        return
    table = Table("stage", "step", "rollouts", "recorded s", "simulated s", "error", "")
    for batch in found["batches"]:
        table.add_row(
            batch["stage"],
            str(batch["step"]),
            str(batch["rollouts"]),
            f"{batch['recorded_s']:.2f}",
            f"{batch['simulated_s']:.2f}",
            f"{batch['error']:+.1%}",
            batch["use"],
        )
    console = Console()
    console.print(table)
    console.print(f"{found['engines']} engines: {_settings(found['engine'])}", soft_wrap=True)
    verdict = "reached" if found["reached"] else "not reached"
    console.print(f"error of all predicted steps together: {found['error']:+.1%} (must: {found['must']}, {verdict})")
