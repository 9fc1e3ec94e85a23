"""Run every measurement, print tables, write JSON with the settings of the machine beside the numbers."""

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import pure_rules, sandbox_calls
from benchmarks.learner import measuring
from benchmarks.machine import machine
from benchmarks.trl_peer.process import find_trl
from sandbox.bench import report

ROOT = Path(__file__).resolve().parent.parent
REACHED = {True: "reached", False: "not reached", None: ""}


# --- tables ---


def show(results: dict[str, Any]) -> None:
    console = Console()
    report.show(results["sandbox_calls"], console)
    for name, found in results["learner"].items():
        console.print(learner_table(name, found))
    for name, value in results["pure_rules"].items():
        console.print(f"{name}: {value:,.2f}")


def learner_table(name: str, found: dict[str, Any]) -> Table:
    """Each arm a row, ours against it; a must that is not reached says so."""
    batch, arms = found["batch"], found["arms"]
    title = (
        f"One update, {name} model ({found['settings']['parameters']:,} parameters): {batch['samples']} samples of "
        f"{batch['shortest']} to {batch['longest']} tokens; packed: {arms['packed']['tokens_per_s']:,.0f} tokens/s"
    )
    table = Table("against", "tokens/s", "ratio", "spread", "of CPU time", "must", "", title=title)
    for row in found["ratios"]:
        must = "" if row["must"] is None else f">= {row['must']}x"
        if row["ran"]:
            least, most = row["spread"]
            speed = f"{arms[row['against']]['tokens_per_s']:,.0f}"
            figures = (speed, f"{row['ratio']:.2f}x", f"{least:.2f} to {most:.2f}", f"{row['cpu_ratio']:.2f}x")
            table.add_row(row["against"], *figures, must, REACHED[row["reached"]])
        else:
            table.add_row(row["against"], "", "", "", "", must, f"not run: {row['reason']}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--json", type=Path, help="file to write the results to")
    arguments = parser.parse_args()
    results = {
        "machine": machine(),
        "sandbox_calls": asyncio.run(sandbox_calls.measure(ROOT / ".venv-sandbox" / "bin" / "python")),
        "pure_rules": pure_rules.measure(),
        "learner": measuring.measure(find_trl()),
    }
    show(results)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
        print(f"written: {arguments.json}")


if __name__ == "__main__":
    main()
