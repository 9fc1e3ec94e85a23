"""A learner's benchmark for people: what was measured, and each aim as reached or not."""

from typing import Any

from rich.console import Console
from rich.table import Table

from engine.bench.plan_table import size


def print_bench(found: dict[str, Any]) -> None:
    console = Console()
    machine, batch, settings = found["machine"], found["batch"], found["settings"]
    console.print(
        f"{machine['device']}: {settings['parameters']:,} parameters, {settings['precision']}, "
        f"{batch['samples']} samples of {batch['shortest']} to {batch['longest']} tokens"
    )
    console.print(f"matrix rate: {found['matrix_flops_per_s'] / 1e12:,.2f} TFLOP/s")
    for name in ("packed", "padded"):
        arm = found[name]
        console.print(f"{name}: {_speed(arm)}" if arm["ran"] else f"{name}: not run: {arm['reason']}")
    packed = found["packed"]
    console.print(f"peak memory: {size(packed['peak_bytes'])} measured, {size(packed['planned_bytes'])} planned")
    table = Table("what", "measured", "aim", "")
    for aim in found["aims"]:
        value = "not measured" if aim["value"] is None else f"{aim['value']:.3f}"
        table.add_row(aim["name"], value, aim["aim"], "reached" if aim["reached"] else "not reached")
    console.print(table)


def _speed(arm: dict[str, Any]) -> str:
    spread = f"{arm['min_s']:.3f} to {arm['max_s']:.3f}"
    return f"{arm['tokens_per_s']:,.0f} tokens/s, {arm['median_s']:.3f} s a step ({spread})"
