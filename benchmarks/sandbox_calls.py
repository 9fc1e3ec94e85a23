"""The quick half of `python -m sandbox bench`, so that `make bench` shows the same numbers as that command does."""

from pathlib import Path
from typing import Any

from sandbox.bench.settings import QUICK
from sandbox.bench.whole import measure as measure_sandbox


async def measure(python: Path) -> dict[str, Any]:
    """What `sandbox.bench.report.show` prints; `musts` says of each whether it was reached."""
    return await measure_sandbox(python, QUICK)
