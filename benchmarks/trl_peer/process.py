"""A process in TRL's environment that answers questions: JSON there and back, a line each.

Leaves out what it answers: the modules that run there (``benchmarks/*/trl_*.py``).
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.trl_peer.environment import trl_environment
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


class TrlProcess:
    """A context: ``module`` runs inside it, one thread. Asking raises ``TrlMissing``, with its last words, if it ended.

    One question at a time.
    """

    def __init__(self, python: Path, module: str) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 closed in __exit__
        self._process = subprocess.Popen(
            [python, "-m", module],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def ask(self, question: object) -> dict[str, Any]:
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
