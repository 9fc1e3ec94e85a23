"""Run measurements of rollouts by name (all of them without one), print their musts, write JSON.

``python -m benchmarks.rollouts [NAME ...] --json docs/benchmarks/rollouts-DATE.json --picture docs/rollouts.png``. They
take from half a minute (``loop_lag``) to seven (``live_engines``) on two idle cores, and want both. The picture is that
of ``live_engines``.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from benchmarks.rollouts import against_trl, engine_death, hidden_tools, live_engines, loop_lag, picture
from benchmarks.trl_peer.process import find_trl

REACHED: Final = {True: "reached", False: "not reached"}


async def compare_with_trl() -> dict[str, Any]:
    return await against_trl.measure(await asyncio.to_thread(find_trl))


MEASUREMENTS: Final[Mapping[str, Callable[[], Awaitable[dict[str, Any]]]]] = {
    "against_trl": compare_with_trl,
    "hidden_tools": hidden_tools.measure,
    "live_engines": live_engines.measure,
    "loop_lag": loop_lag.measure,
    "engine_death": engine_death.measure,
}


async def measure(names: Sequence[str]) -> dict[str, Any]:
    """One after the other; ``musts`` are those of all."""
    results: dict[str, Any] = {"machine": machine()}
    for name in names:
        began = time.perf_counter()
        results[name] = await MEASUREMENTS[name]()
        results[name]["took_s"] = time.perf_counter() - began
    return results | {"musts": [must for name in names for must in results[name]["musts"]]}


def show(results: Mapping[str, Any], console: Console) -> None:
    table = Table("must", "", "value", "", title="Rollouts")
    for must in results["musts"]:
        value = "not measured" if must["value"] is None else f"{must['value']:.3g}"
        table.add_row(must["name"], must["must"], value, must.get("reason") or REACHED[must["reached"]])
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rollouts", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MEASUREMENTS)}; all without one")
    parser.add_argument("--json", type=Path, help="file to write the results to")
    parser.add_argument("--picture", type=Path, help="PNG of the live engines' timeline; wants a Chromium")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(MEASUREMENTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(MEASUREMENTS)}")
    names = arguments.names or list(MEASUREMENTS)
    if arguments.picture and "live_engines" not in names:
        parser.error("--picture shows live_engines, which is not among the names")
    results = asyncio.run(measure(names))
    show(results, Console())
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
        print(f"written: {arguments.json}")
    if arguments.picture:
        picture.draw(results["live_engines"], arguments.picture)
        print(f"written: {arguments.picture}")


if __name__ == "__main__":
    main()
