"""Run every measurement, print a table, write JSON with the settings of the machine beside the numbers."""

import argparse
import asyncio
import json
import os
import platform
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import pure_rules, sandbox_calls

ROOT = Path(__file__).resolve().parent.parent


def machine() -> dict[str, Any]:
    return {"python": platform.python_version(), "kernel": platform.release(), "cores": os.cpu_count()}


def show(results: dict[str, Any]) -> None:
    table = Table("program", "starloom p50 ms", "subprocess p50 ms", "ratio", title="One call after the other")
    for name, row in results["sandbox_calls"].items():
        ms = row["p50_ms"]
        table.add_row(name, f"{ms['starloom']:.1f}", f"{ms['subprocess']:.1f}", f"{row['ratio']:.1f}x")
    console = Console()
    console.print(table)
    for name, value in results["pure_rules"].items():
        console.print(f"{name}: {value:,.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--json", type=Path, help="file to write the results to")
    arguments = parser.parse_args()
    results = {
        "machine": machine(),
        "sandbox_calls": asyncio.run(sandbox_calls.measure(ROOT / ".venv-sandbox" / "bin" / "python")),
        "pure_rules": pure_rules.measure(),
    }
    show(results)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
        print(f"written: {arguments.json}")


if __name__ == "__main__":
    main()
