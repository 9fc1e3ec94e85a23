"""TRL's arm: a process in TRL's environment that does one trainer step each time it is asked.

Leaves out what the process does: ``trl_step.py``.
"""

from pathlib import Path

from benchmarks.trl_peer.process import TrlProcess
from engine.bench.stopwatch import Seconds
from engine.learner.base import Sample


class TrlArm(TrlProcess):
    """A context: the process lives inside it. Raises ``TrlMissing``, with the end of what it wrote, if it cannot."""

    def __init__(self, python: Path, model: Path, batch: list[Sample], max_tokens: int, learning_rate: float) -> None:
        super().__init__(python, "benchmarks.learner.trl_step")
        order = {
            "model": str(model),
            "max_tokens": max_tokens,
            "learning_rate": learning_rate,
            "samples": [
                {"ids": list(s.ids), "trained": [int(on) for on in s.trained], "advantage": s.advantage} for s in batch
            ],
        }
        self.settings = self.ask(order)

    def step(self) -> Seconds:
        """One trainer step on the whole batch, timed over there."""
        answer = self.ask("step")
        return Seconds(wall=answer["wall_s"], cpu=answer["cpu_s"])
