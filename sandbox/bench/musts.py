"""What the sandbox holds itself to, number by number. Judges what was measured and knows no excuses."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Must:
    """One bound on one number, found in the JSON by its path."""

    name: str
    path: tuple[str, ...]
    bound: float
    unit: str
    at_least: bool = False

    @property
    def text(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.bound:g} {self.unit}".rstrip()

    def judge(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """`reached` is None where the number was not measured."""
        value: Any = found
        for key in self.path:
            value = value.get(key) if isinstance(value, Mapping) else None
        reached = None if value is None else value >= self.bound if self.at_least else value <= self.bound
        return {"name": self.name, "must": self.text, "value": value, "unit": self.unit, "reached": reached}


def _faster(program: str, times: float) -> Must:
    return Must(f"{program}: calls/s against subprocess", (program, "vs_subprocess_wall"), times, "x", at_least=True)


MUSTS = (
    _faster("print", 5),
    _faster("numpy", 18),
    _faster("sympy", 40),
    Must("print, one in flight: p50", ("serial_print", "p50_ms"), 4, "ms"),
    Must("later cell of a session: p50", ("session_later_cell", "p50_ms"), 0.3, "ms"),
    Must("idle session after numpy", ("session_idle_mb",), 4, "MiB"),
    Must("open loop: mean", ("open_loop", "mean_ms"), 300, "ms"),
    Must("open loop: p99", ("open_loop", "p99_ms"), 1000, "ms"),
    Must("queue: CPU at 45,000 calls", ("queue", "core_s_at_45000"), 500, "core-s"),
    Must("queue: calls lost", ("queue", "lost"), 0, ""),
    Must("queue: calls answered twice", ("queue", "doubled"), 0, ""),
    Must("queue: answers that are wrong", ("queue", "wrong"), 0, ""),
    Must("queue: growth of the node's memory", ("queue", "node_resident_mb", "growth"), 0.05, ""),
)


def judge(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All of them, in order."""
    return [must.judge(found) for must in MUSTS]
