"""Wall time of a step by phase, and the phases told in the log. Leaves out what happens in them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from engine.contract.events import Phase
from engine.stages.context import StageContext


@dataclass(slots=True)
class Stopwatch:
    """Wall seconds by phase; a phase that comes again (refill) adds up."""

    context: StageContext
    stage: str
    step: int
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        self.context.phase(self.stage, self.step, phase)
        began = time.monotonic()
        try:
            yield
        finally:
            spent = time.monotonic() - began
            self.seconds[str(phase)] = self.seconds.get(str(phase), 0.0) + spent
