"""A rank without a model, for tests of what ranks do when something goes wrong: it does what a folder's name says.

Run as a rank's process (``RankedLearner(..., command=PUPPET)``). Starts in a fraction of a second: no torch.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from engine.learner.base import CheckpointMismatch, Sample, TransferGroup, UpdateResult, WeightSpec
from engine.learner.rank_worker import Seat, run
from engine.sink.disk import SinkFull

PUPPET = (sys.executable, "-m", "tests.engine.learner.puppet")
FOREVER_S = 1000.0

ERRORS = {
    "mismatch": lambda: CheckpointMismatch("a checkpoint of A; this learner holds B"),
    "value": lambda: ValueError("sample 3: no"),
    "missing": lambda: FileNotFoundError(2, "No such file or directory", "/nowhere"),
    "full": lambda: SinkFull(Path("/"), 28),
    "bug": lambda: ZeroDivisionError("a bug"),
    "kind": lambda: RuntimeError("opened without a reference model"),
}


class Writing:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def wait(self) -> None:
        """Until the test lets it go on: ``<folder>.go``; ``<folder>.full`` says that the disk is full by then."""
        while not self.folder.with_suffix(".go").exists():
            time.sleep(0.01)
        if self.folder.with_suffix(".full").exists():
            raise SinkFull(self.folder.parent, 28)


class Puppet:
    """``load(Path("raise value 0, hang - 1"))``: rank 0 raises ``ERRORS["value"]``, rank 1 hangs; no number is all."""

    def __init__(self, seat: Seat) -> None:
        self.rank = seat.rank
        self.scratch = seat.scratch
        self.calls: list[str] = []

    def load(self, folder: Path) -> None:
        for part in folder.name.split(","):
            act, what, *ranks = part.split()
            if not ranks or str(self.rank) in ranks:
                getattr(self, f"_{act}")(what)

    def _raise(self, what: str) -> None:
        raise ERRORS[what]()

    def _die(self, name: str) -> None:
        os.kill(os.getpid(), signal.Signals[name])
        time.sleep(FOREVER_S)

    def _exit(self, status: str) -> None:
        sys.stderr.write("something to say\n")
        sys.stderr.flush()
        os._exit(int(status))

    def _hang(self, _: str) -> None:
        time.sleep(FOREVER_S)

    def _spawn(self, pid_file: str) -> None:
        child = subprocess.Popen(["sleep", str(FOREVER_S)])
        (self.scratch / pid_file).write_text(str(child.pid))

    def rl_update(self, batch: Sequence[Sample], *, lr_scale: float, normaliser: float | None = None) -> UpdateResult:
        self.calls.append(f"rl {len(batch)} {lr_scale} {normaliser}")
        return UpdateResult({"calls": float(len(self.calls)), "rank": float(self.rank)})

    sft_update = rl_update

    def logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        return [list(sample.logprobs) for sample in samples]

    reference_logprobs = logprobs

    def export(self, folder: Path) -> None:
        (folder / f"calls-{self.rank}").write_text("\n".join(self.calls))

    def weight_specs(self) -> list[WeightSpec]:
        return [WeightSpec("lm_head.weight", "float32", (2, 3))]

    def join_transfer(self, group: TransferGroup) -> None:
        self.calls.append(f"join {group}")

    def broadcast(self) -> None:
        self.calls.append("broadcast")

    def save(self, folder: Path, *, model_folder: Path | None = None) -> Writing:
        self.calls.append(f"save {folder.name} {model_folder}")
        return Writing(folder)

    def close(self) -> None:
        self.calls.append("close")


def open_puppet(seat: Seat, opening: str) -> Puppet:
    if opening:
        Puppet(seat).load(Path(opening))
    return Puppet(seat)


if __name__ == "__main__":
    run(sys.argv[1:], open_puppet)
