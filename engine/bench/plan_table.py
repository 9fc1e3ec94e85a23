"""A memory plan for people: a table of each process, and in words whether it fits. Leaves out the arithmetic."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from engine.bench.plan import MemoryPlan, Phase

GB = 10**9
PHASES: dict[Phase, str] = {
    "always": "always",
    "forward": "end of the forward pass",
    "recompute": "first layer recomputed",
    "reduce": "end of the backward pass",
    "step": "optimizer's step",
}


def plans_as_json(plans: Sequence[MemoryPlan], device_memory_gb: float | None) -> dict[str, Any]:
    """Bytes of every item; ``fits`` where a device's memory was given."""
    return {
        "plans": [
            {
                "process": plan.title,
                "peak_bytes": plan.peak_bytes,
                "peak_phase": plan.peak_phase,
                "main_memory_bytes": plan.offloaded_bytes,
                **({} if device_memory_gb is None else {"fits": fits(plan, device_memory_gb)}),
                "items": [
                    {"name": i.name, "bytes": i.size_bytes, "phase": i.phase, "offloaded": i.offloaded, "why": i.why}
                    for i in plan.items
                ],
            }
            for plan in plans
        ]
    }


def fits(plan: MemoryPlan, device_memory_gb: float) -> bool:
    return plan.peak_bytes <= device_memory_gb * GB


def print_plans(plans: Sequence[MemoryPlan], device_memory_gb: float | None) -> None:
    console = Console()
    for plan in plans:
        console.print(_table(plan))
        console.print(_verdict(plan, device_memory_gb), end="\n\n")
    console.print("Not counted: CUDA's context, fragmentation, workspaces; what vLLM measures at its start.")


def _table(plan: MemoryPlan) -> Table:
    table = Table("what", "when", "size", "why", title=plan.title, title_justify="left")
    for item in plan.items:
        when = "main memory" if item.offloaded else PHASES[item.phase]
        table.add_row(item.name, when, size(item.size_bytes), item.why)
    return table


def _verdict(plan: MemoryPlan, device_memory_gb: float | None) -> str:
    offloaded = f", and {size(plan.offloaded_bytes)} of main memory" if plan.offloaded_bytes else ""
    changes = any(item.phase != "always" for item in plan.items)
    when = f" ({PHASES[plan.peak_phase]})" if changes else ""
    said = f"Peak: {size(plan.peak_bytes)}{when}{offloaded}."
    if device_memory_gb is None:
        return said
    free = device_memory_gb * GB - plan.peak_bytes
    return f"{said} " + (f"Fits, {size(free)} free." if free >= 0 else f"Does not fit: {size(-free)} too much.")


def size(value_bytes: float) -> str:
    """In steps of 1000, as devices are sold."""
    for unit, step in (("GB", GB), ("MB", 10**6), ("kB", 10**3)):
        if value_bytes >= step:
            return f"{value_bytes / step:,.2f} {unit}"
    return f"{value_bytes:.0f} B"
