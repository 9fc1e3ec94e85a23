"""The measurement for people: the arms beside each other, waits and memory, and what of the musts is reached."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

_ARMS = {"subprocess_one_thread": "… one thread"}
_VERDICT = {True: "[green]reached[/]", False: "[red]not reached[/]", None: "not measured"}


def show(found: Mapping[str, Any], console: Console) -> None:
    """Print everything that was measured."""
    for part in (_settings(found["settings"]), _arms(found), _waits(found), _details(found), _musts(found["musts"])):
        console.print(part)


def _settings(settings: Mapping[str, Any]) -> str:
    return "\n".join(f"{_words(name)}: {_plain(value)}" for name, value in settings.items())


_ARM_TITLE = "Calls back to back; x: times that ours is better, in calls/s and in CPU"
_WAITS = ("serial_print", "session_first_cell", "session_later_cell", "open_loop")
_DETAILS = ("session_idle_mb_by", "open_loop", "queue")


def _arms(found: Mapping[str, Any]) -> Table:
    table = _table(_ARM_TITLE, ("", "arm"), ("calls/s", "CPU ms", "p50 ms", "p99 ms", "x calls", "x CPU"))
    for program in found["settings"]["programs"]:
        row = found[program]
        table.add_row(program, "starloom", *_speed(row))
        for name, baseline in row["baselines"].items():
            ratios = _times(row[f"vs_{name}_wall"]), _times(row[f"vs_{name}_cpu"])
            table.add_row("", _ARMS.get(name, name), *_speed(baseline), *ratios)
        table.add_section()
    return table


def _speed(row: Mapping[str, Any]) -> tuple[str, ...]:
    cpu = "" if row["cpu_ms_per_call"] is None else f"{row['cpu_ms_per_call']:.1f}"
    return f"{row['calls_per_s']:.1f}", cpu, f"{row['p50_ms']:.1f}", f"{row['p99_ms']:.1f}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.1f}x"


def _waits(found: Mapping[str, Any]) -> Table:
    table = _table("Waits of one call", ("",), ("mean ms", "p50 ms", "p99 ms", "calls"))
    for name in _WAITS:
        if row := found.get(name):
            mean = f"{row['mean_ms']:.2f}" if "mean_ms" in row else ""
            table.add_row(_words(name), mean, f"{row['p50_ms']:.2f}", f"{row['p99_ms']:.2f}", str(row["calls"]))
    return table


def _details(found: Mapping[str, Any]) -> str:
    return "\n".join(f"{_words(name)}: {_plain(found[name])}" for name in _DETAILS if name in found)


def _musts(rows: list[dict[str, Any]]) -> Table:
    table = _table("Musts", ("must", "bound"), ("measured", ""))
    for row in rows:
        measured = "" if row["value"] is None else f"{row['value']:.3g} {row['unit']}".rstrip()
        table.add_row(row["name"], row["must"], measured, _VERDICT[row["reached"]])
    return table


def _table(title: str, words: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    table = Table(*words, title=title)
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table


def _plain(value: object) -> str:
    """In one line, without quotes and brackets."""
    if isinstance(value, Mapping):
        return ", ".join(f"{_words(key)} {_plain(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _words(name: str) -> str:
    return name.replace("_", " ")
