"""The process of one learner rank: ``python -m engine.learner.rank_worker RANK WORLD SCRATCH FD``.

It opens its rank of the learner, which meets the others over a file in SCRATCH, then does one call after the other and
answers over file descriptor FD. A thread of its own listens: when the controller is gone, however it died, the process
ends at once, also inside a collective, and takes along what it started. Leaves out the controller's side: ``ranks.py``.
"""

import faulthandler
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread

from engine.environment import prepare_environment
from engine.learner.base import Learner, Saving
from engine.learner.opening import Opening, open_here
from engine.learner.rank_messages import Answer, Call, Failure, decoded, encoded

_LOOK_S = 1.0
"""Seconds between looks whether the controller is alive, for the case that a process it forked holds its end too."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Which rank this process is, and where the others are met."""

    rank: int
    world: int
    scratch: Path

    @property
    def address(self) -> str:
        return f"file://{self.scratch}/rendezvous"


def open_rank(seat: Seat, opening_json: str) -> Learner:
    """This process's rank, its process group joined. Variables are set before torch is imported, which reads them."""
    opening = Opening.model_validate_json(opening_json)
    os.environ["OMP_NUM_THREADS"] = str(opening.resources.threads)
    os.environ["LOCAL_RANK"] = str(seat.rank)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
    prepare_environment()
    from engine.learner import distributed

    distributed.join(seat.rank, seat.world, seat.address)
    return open_here(opening)


def run(arguments: Sequence[str], opens: Callable[[Seat, str], Learner]) -> None:
    """Serve until the controller says ``close``, or is gone."""
    faulthandler.enable()
    rank, world, scratch, descriptor = arguments
    seat = Seat(int(rank), int(world), Path(scratch))
    os.set_inheritable(int(descriptor), False)  # what we start must not keep the connection open
    connection = Connection(int(descriptor))
    calls: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=_listen, args=(connection, calls, seat.scratch), daemon=True).start()
    _Server(connection, calls, seat).serve(opens)


def _listen(connection: Connection, calls: "SimpleQueue[bytes]", scratch: Path) -> None:
    """Hand calls on unread; without a controller end this process group, which is ours alone."""
    owner = os.getppid()
    try:
        while connection.poll(_LOOK_S) or os.getppid() == owner:
            if connection.poll():
                calls.put(connection.recv_bytes())
    except (EOFError, OSError):
        pass
    shutil.rmtree(scratch, ignore_errors=True)
    os.killpg(os.getpid(), signal.SIGKILL)


class _Server:
    """Does the calls, on the thread that it is served from. Whatever a call raises is the controller's to raise."""

    def __init__(self, connection: Connection, calls: "SimpleQueue[bytes]", seat: Seat) -> None:
        self._connection = connection
        self._calls = calls
        self._seat = seat
        self._sending = Lock()

    def serve(self, opens: Callable[[Seat, str], Learner]) -> None:
        call = self._next()
        try:
            learner = opens(self._seat, *call.arguments)
        except Exception as error:
            self._send(Answer(call.number, failure=Failure.of(error)))
            self._next()  # none comes: the controller ends all ranks
            return
        self._send(Answer(call.number))
        while call.method != "close":
            call = self._next()
            self._do(learner, call)

    def _next(self) -> Call:
        call: Call = decoded(self._calls.get())
        return call

    def _do(self, learner: Learner, call: Call) -> None:
        try:
            value = getattr(learner, call.method)(*call.arguments, **call.named)
        except Exception as error:
            self._send(Answer(call.number, failure=Failure.of(error)))
            return
        if call.method == "save":
            Thread(target=self._tell_written, args=(call.number, value)).start()
            value = None
        self._send(Answer(call.number, value if self._seat.rank == 0 else None))

    def _tell_written(self, number: int, saving: Saving) -> None:
        """The second answer, from a thread: the next call does not wait for it."""
        failure = None
        try:
            saving.wait()
        except Exception as error:
            failure = Failure.of(error)
        self._send(Answer(number, failure=failure, written=True))

    def _send(self, answer: Answer) -> None:
        with self._sending:
            self._connection.send_bytes(encoded(answer))


if __name__ == "__main__":
    run(sys.argv[1:], open_rank)
