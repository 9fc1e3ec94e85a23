"""A learner of several ranks, each in a process of its own, driven from here as if it were one.

Every rank gets every call, in the same order: inside they meet in collectives. The answer is rank 0's. A rank that
dies takes all others with it, at once: they would wait in a collective for one that never comes. Leaves out what a
rank does with a call (``rank_worker.py``) and a single process (``rank_process.py``).
"""

import itertools
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import engine
from engine.learner.base import Sample, Saving, TransferGroup, UpdateResult, WeightSpec
from engine.learner.rank_messages import Call, LearnerFailed, encoded
from engine.learner.rank_process import END_S, RankProcess

START_S = 600.0
"""Seconds for all ranks to have opened: imports, a model from a slow disk, DeepSpeed's compiled pieces."""
FOLLOW_S = 10.0
"""Seconds for the others to follow one that raised. Who does not is waiting for it in a collective."""
WORKER = (sys.executable, "-m", "engine.learner.rank_worker")

Answers = list["Future[Any]"]
"""Of one call, by rank."""


class RankedLearner:
    """``Learner`` of ``ranks`` processes on this machine.

    ``opening`` is the JSON of what every rank opens. A rank's ``CheckpointMismatch``, ``ValueError`` and ``OSError``
    (with ``SinkFull``) are raised here as they are, any other error as ``LearnerFailed``; all name the rank. After a
    rank died, or did not follow the others, every call raises ``LearnerFailed`` and no process is left.
    """

    def __init__(
        self,
        opening: str,
        ranks: int,
        *,
        logs: Path | None = None,
        command: Sequence[str] = WORKER,
        start_s: float = START_S,
    ) -> None:
        self._numbers = itertools.count()
        self._death: str | None = None
        self._dying = threading.Lock()  # over _death: the first one counts
        self._closing: Answers | None = None
        self._ranks: list[RankProcess] = []
        self._scratch = Path(tempfile.mkdtemp(prefix="starloom-ranks-"))  # ranks meet over a file in it
        try:
            for rank in range(ranks):
                self._ranks.append(self._start(rank, ranks, command, logs))
            self._open(opening, start_s)
        except BaseException:
            self._end_all(seconds=0)
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids by rank."""
        return [rank.pid for rank in self._ranks]

    def _start(self, rank: int, ranks: int, command: Sequence[str], logs: Path | None) -> RankProcess:
        if logs is not None:
            logs.mkdir(parents=True, exist_ok=True)
        return RankProcess(
            rank,
            [*command, str(rank), str(ranks), str(self._scratch)],
            environment=_environment(),
            log_file=logs / f"learner-{rank}.log" if logs else None,
            on_end=self._on_end,
        )

    def _open(self, opening: str, start_s: float) -> None:
        answers = self._send(self._numbered("open", opening))
        late = wait(answers, start_s, FIRST_EXCEPTION).not_done
        failed = any(answer.exception() for answer in answers if answer.done())
        if late and not failed:
            ranks = [rank for rank, answer in zip(self._ranks, answers, strict=True) if answer in late]
            names = ", ".join(str(rank.rank) for rank in ranks)
            raise LearnerFailed(f"learner ranks not open within {start_s:g} s: {names}{ranks[0].tail()}")
        self._gather(answers)

    # --- calls ---

    def sft_update(self, batch: Sequence[Sample], *, lr_scale: float, normaliser: float | None = None) -> UpdateResult:
        result: UpdateResult = self._call("sft_update", batch, lr_scale=lr_scale, normaliser=normaliser)
        return result

    def rl_update(self, batch: Sequence[Sample], *, lr_scale: float, normaliser: float | None = None) -> UpdateResult:
        result: UpdateResult = self._call("rl_update", batch, lr_scale=lr_scale, normaliser=normaliser)
        return result

    def logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        rows: list[list[float]] = self._call("logprobs", samples)
        return rows

    def reference_logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        rows: list[list[float]] = self._call("reference_logprobs", samples)
        return rows

    def export(self, folder: Path) -> None:
        self._call("export", folder.absolute())

    def weight_specs(self) -> Sequence[WeightSpec]:
        specs: Sequence[WeightSpec] = self._call("weight_specs")
        return specs

    def join_transfer(self, group: TransferGroup) -> None:
        self._call("join_transfer", group)

    def broadcast(self) -> None:
        self._call("broadcast")

    def save(self, folder: Path, *, model_folder: Path | None = None) -> Saving:
        call = self._numbered("save", folder.absolute(), model_folder=model_folder and model_folder.absolute())
        written = [rank.expect(call.number, written=True) for rank in self._ranks]
        self._gather(self._send(call))
        return _RanksSaving(written, self._gather)

    def load(self, folder: Path) -> None:
        self._call("load", folder.absolute())

    def close(self) -> None:
        """End every rank, once what it is writing is on disk. May be called twice."""
        if self._closing is not None:
            return
        self._closing = []
        try:
            if self._death is None:
                self._closing = self._send(self._numbered("close"))
                self._gather(self._closing)
        finally:
            self._end_all()

    def _call(self, method: str, *arguments: Any, **named: Any) -> Any:
        return self._gather(self._send(self._numbered(method, *arguments, **named)))

    def _numbered(self, method: str, *arguments: Any, **named: Any) -> Call:
        return Call(next(self._numbers), method, arguments, named)

    def _send(self, call: Call) -> Answers:
        self._fail_if_dead()
        data = encoded(call)
        answers = [rank.expect(call.number) for rank in self._ranks]
        for rank in self._ranks:
            rank.send(data)
        return answers

    def _gather(self, answers: Answers) -> Any:
        """Rank 0's answer, once every rank has one.

        What all ranks raise, or one while the others get through the call, leaves them in step and the learner usable.
        """
        silent = wait(answers, return_when=FIRST_EXCEPTION).not_done
        silent = wait(silent, FOLLOW_S).not_done
        errors = [error for answer in answers if answer not in silent and (error := answer.exception())]
        if not errors:
            return answers[0].result()
        errors.sort(key=lambda error: isinstance(error, LearnerFailed))  # may be what another's error led to
        if silent:
            self._give_up([rank for rank, answer in enumerate(answers) if answer in silent], errors[0])
        self._fail_if_dead(errors[0])
        raise errors[0]

    # --- ends ---

    def _fail_if_dead(self, cause: BaseException | None = None) -> None:
        if self._death is not None:
            self._end_all()
            raise LearnerFailed(self._death) from cause

    def _on_end(self, ended: RankProcess) -> None:
        """On a thread of the rank that ended."""
        if self._closing and self._closing[ended.rank].done():
            return
        self._die(ended.last_words())

    def _give_up(self, silent: Sequence[int], error: BaseException) -> None:
        ranks = ", ".join(map(str, silent))
        self._die(f"learner ranks out of step: no answer of {ranks} within {FOLLOW_S:g} s of an error: {error}")

    def _die(self, reason: str) -> None:
        with self._dying:
            self._death = self._death or reason
        for rank in self._ranks:
            rank.kill()

    def _end_all(self, seconds: float = END_S) -> None:
        for rank in self._ranks:
            rank.end(seconds)
        shutil.rmtree(self._scratch, ignore_errors=True)  # the ranks may have removed it


@dataclass(frozen=True, slots=True)
class _RanksSaving:
    """``Saving`` of every rank."""

    answers: Answers
    gather: Callable[[Answers], Any]

    def wait(self) -> None:
        wait(self.answers)  # a rank that failed to write keeps no other from it
        self.gather(self.answers)


def _environment() -> dict[str, str]:
    """Ours, and where this very package is found."""
    paths = [str(Path(engine.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
