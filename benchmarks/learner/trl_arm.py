"""TRL's arm: a process in TRL's environment that does one trainer step each time it is asked.

What goes there and back is JSON, a line each. Leaves out what the process does: ``trl_step.py``.
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.trl_peer.environment import trl_environment
from engine.bench.stopwatch import Seconds
from engine.learner.base import Sample
from scripts.packages import SetupError

ROOT = Path(__file__).resolve().parents[2]


class TrlMissing(Exception):
    """Why TRL is not among the arms."""


def find_trl() -> Path | TrlMissing:
    """The Python of an environment with TRL, made for this process, or why it could not be."""
    try:
        return trl_environment()
    except SetupError as error:
        return TrlMissing(" ".join(str(error).split())[:300])


class TrlArm:
    """A context: the process lives inside it. Raises ``TrlMissing``, with the end of what it wrote, if it cannot."""

    def __init__(self, python: Path, model: Path, batch: list[Sample], max_tokens: int, learning_rate: float) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 closed in __exit__
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.learner.trl_step"],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        order = {
            "model": str(model),
            "max_tokens": max_tokens,
            "learning_rate": learning_rate,
            "samples": [
                {"ids": list(s.ids), "trained": [int(on) for on in s.trained], "advantage": s.advantage} for s in batch
            ],
        }
        self.settings = self._ask(order)

    def step(self) -> Seconds:
        """One trainer step on the whole batch, timed over there."""
        answer = self._ask("step")
        return Seconds(wall=answer["wall_s"], cpu=answer["cpu_s"])

    def _ask(self, question: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        except (BrokenPipeError, ValueError) as error:
            self._log.seek(0)
            raise TrlMissing(f"TRL's process ended: {self._log.read().strip()[-300:]}") from error
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._log.close()
