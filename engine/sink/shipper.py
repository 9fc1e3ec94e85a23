"""Sends a run's events to a platform while the run goes on, from a thread of its own. Training never waits for it.

The event log in the run folder is the spool: what earlier attempts left unsent goes first, then this attempt as it
grows. A platform that is down is tried again and again with growing pauses, and what it missed is sent afterwards; a
restarted one says where it stands (409 ``gap``). An empty batch every two seconds asks for commands, which are handed
over only with answers to this attempt's own events: before that, the answer to an old command may not be there yet.
Leaves out HTTP (``platform_client.py``) and reading the folder (``engine.interop.run_folder``).
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeVar

from engine.contract.commands import Command
from engine.contract.delivery import Answer, Batch
from engine.contract.events import Event, LogLine
from engine.interop.run_folder import Limits, RunFolderReader
from engine.sink.event_log import EventLog
from engine.sink.platform_client import Dismissed, Gap, PlatformClient, Refused, Undelivered
from engine.sink.run_folder import RunFolder

T = TypeVar("T")

TELL_AFTER = 3
"""Failures in a row before the log says so: a platform that restarts is no news."""

GAPS = 3
"""Gaps in a row that are mended at once; more of them are a fault, and wait like any other."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pace:
    """How often a shipper sends. Seconds."""

    least_gap_s: float = 0.5
    heartbeat_s: float = 2.0
    first_pause_s: float = 0.5
    longest_pause_s: float = 15.0
    longest_asked_pause_s: float = 60.0
    flush_s: float = 30.0

    def pause(self, failures: int, asked: float | None) -> float:
        """How long to wait after so many failures in a row; ``asked``: what the platform wants at least."""
        most = min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(failures - 1, 20))
        return max(most * random.uniform(0.5, 1.0), min(asked or 0.0, self.longest_asked_pause_s))


class _GivenUp(Exception):
    """The run has ended and the time for what was left is over."""


class Shipper:
    """Ships one attempt, from ``start`` to ``finish``; then ``delivered`` says whether the platform has everything."""

    def __init__(
        self, folder: RunFolder, client: PlatformClient, *, pace: Pace | None = None, limits: Limits | None = None
    ) -> None:
        self.pace = pace or Pace()
        self.delivered = False
        self._folder = folder
        self._client = client
        self._limits = limits
        self._written = 0
        self._news = threading.Event()
        self._finishing = threading.Event()
        self._abandoned = threading.Event()
        self._deadline = float("inf")
        self._failures = 0
        self._gaps = 0
        self._told_failing = False
        self._refused = False

    def start(
        self,
        log: EventLog,
        *,
        on_command: Callable[[Command], object],
        on_dismissed: Callable[[str], object],
        on_end: Callable[[], object] = lambda: None,
    ) -> None:
        """Begin to ship. The callbacks are called from the shipper's thread."""
        self._log = log
        self._on_command, self._on_dismissed, self._on_end = on_command, on_dismissed, on_end
        log.subscribe(self.notice)
        self._written = max(self._written, log.last_seq)
        # A daemon: a platform that never answers must not keep the process.
        threading.Thread(target=self._run, name="shipper", daemon=True).start()

    def notice(self, event: Event) -> None:
        """Subscriber of the event log."""
        self._written = event.seq
        self._news.set()

    def finish(self) -> None:
        """Nothing more will be written: send what is left, for ``flush_s`` seconds at most, and end."""
        self._deadline = time.monotonic() + self.pace.flush_s
        self._finishing.set()
        self._news.set()

    def abandon(self) -> None:
        """End now, whatever is left."""
        self._deadline = 0.0
        self._abandoned.set()
        self._finishing.set()
        self._news.set()

    def _run(self) -> None:
        try:
            self._ship()
        except _GivenUp:
            pass  # `delivered` says it, and the command line says what to do
        except Dismissed as error:
            self._on_dismissed(str(error))
        except Exception as error:
            _log.debug("shipping failed", exc_info=error)
            self._say("error", f"nothing more is sent to the platform, the run goes on: {error!r}")
        finally:
            self._client.close()
            self._on_end()

    def _ship(self) -> None:
        cursor = self._patiently(self._client.cursor)
        self._refuse_older_copy(cursor)
        self._reader = RunFolderReader(
            self._folder.path, cursor, limits=self._limits, on_problem=lambda problem: self._say("warning", problem)
        )
        while True:
            finishing, written = self._finishing.is_set(), self._written
            self._news.clear()
            if not self._send_what_is_there(written):
                continue
            if self._told_failing and not self._refused:
                self._told_failing = False
                self._say_of_shipping("info", "the platform has everything again")
            if not finishing:
                self._rest()
            elif self._written == written:
                self.delivered = not self._refused
                return

    def _refuse_older_copy(self, cursor: Mapping[int, int]) -> None:
        """Our attempt has just begun. If the platform has heard of it, the folder is the copy of an older state."""
        known = max((attempt for attempt, seq in cursor.items() if seq), default=0)
        if known >= self._log.attempt:
            marker = self._folder.attempt(known)
            raise Dismissed(
                f"the platform has events of attempt {known} and this is attempt {self._log.attempt}, just begun: the "
                f"folder is an older copy, and two histories must not be mixed; make the empty folder {marker} and "
                "resume, then the next attempt gets a number of its own"
            )

    def _rest(self) -> None:
        """Until there is news or a heartbeat is due, but not so short that every event is a request."""
        self._finishing.wait(self.pace.least_gap_s)
        self._news.wait(max(0.0, self.pace.heartbeat_s - self.pace.least_gap_s))

    def _send_what_is_there(self, written: int) -> bool:
        """Send events up to ``written``, or an empty batch if that is nothing. False if it has to be begun anew."""
        sent = False
        try:
            for batch in self._new_batches(written):
                self._deliver(batch)
                sent = True
                if self._refused:
                    break
            if not sent:
                self._deliver(Batch(attempt=self._log.attempt))
        except Gap as gap:
            self._mend(gap)
            return False
        except OSError as error:
            self._pause(Undelivered(f"the run folder cannot be read: {error}"))
            return False
        return True

    def _new_batches(self, written: int) -> Iterator[Batch]:
        return iter(()) if self._refused else self._reader.batches({self._log.attempt: written})

    def _mend(self, gap: Gap) -> None:
        """Go back to where the platform stands."""
        self._gaps += 1
        if self._gaps > GAPS:
            self._pause(Undelivered(f"{self._client.url}: asks again and again for events behind {gap.cursor}"))
        self._reader.rewind(gap.cursor)

    def _deliver(self, batch: Batch) -> None:
        """Send a batch, in parts if the platform refuses the whole."""
        try:
            answer = self._patiently(lambda: self._client.post(batch))
        except Refused as error:
            parts = split(batch)
            if not parts:
                self._stop_shipping(batch, error)
            for part in parts:
                if not self._refused:
                    self._deliver(part)
        else:
            self._gaps = 0
            self._hand_over(batch, answer)

    def _hand_over(self, batch: Batch, answer: Answer) -> None:
        if batch.attempt == self._log.attempt:
            for command in answer.commands:
                self._on_command(command)

    def _stop_shipping(self, batch: Batch, error: Refused) -> None:
        """Something that the platform will never take: nothing behind it can be taken either. Commands still come."""
        if self._refused or not (batch.events or batch.trajectories):
            raise RuntimeError(f"the platform refuses even an empty batch: {error}")
        self._refused = True
        what = ", ".join(
            [f"event {event.seq} ({event.body.type}) of attempt {event.attempt}" for event in batch.events]
            + [f"row {each.row} of {each.file}" for each in batch.trajectories]
        )
        self._say(
            "error",
            f"the platform refuses {what}: {error}. Nothing more is sent to it; the run goes on, and its folder has "
            "everything: have it ingested when the platform is mended",
        )

    def _patiently(self, call: Callable[[], T]) -> T:
        """What ``call`` gives, however long the platform is away."""
        while True:
            if time.monotonic() >= self._deadline:
                raise _GivenUp
            try:
                result = call()
            except Undelivered as error:
                self._pause(error)
            else:
                self._failures = 0
                return result

    def _pause(self, error: Undelivered) -> None:
        self._failures += 1
        if self._failures == TELL_AFTER and not self._told_failing:
            self._told_failing = True
            self._say_of_shipping("warning", f"shipping fails, the run goes on and is sent later: {error}")
        pause = self.pace.pause(self._failures, error.retry_after)
        if not self._finishing.is_set():
            self._finishing.wait(pause)
        else:
            left = self._deadline - time.monotonic()
            self._abandoned.wait(max(0.0, min(pause, left, 4 * self.pace.first_pause_s)))

    def _say_of_shipping(self, level: Literal["info", "warning"], message: str) -> None:
        """How shipping goes is of no interest behind the run's last word."""
        if not self._finishing.is_set():
            self._say(level, message)

    def _say(self, level: Literal["info", "warning", "error"], message: str) -> None:
        with suppress(OSError):  # a full disk, which the run itself is about to tell; a log that was closed meanwhile
            if not self._abandoned.is_set():
                self._log.append(LogLine(level=level, message=message))


def split(batch: Batch) -> tuple[Batch, ...]:
    """Two batches that say the same in the same order; nothing for one that cannot be parted."""
    events, trajectories = batch.events, batch.trajectories
    if len(trajectories) > 1 or (trajectories and events):
        half = (len(trajectories) + 1) // 2
        first, second = trajectories[:half], trajectories[half:]
        return (
            Batch(attempt=batch.attempt, trajectories=first),
            Batch(attempt=batch.attempt, events=events, trajectories=second),
        )
    if len(events) > 1:
        half = len(events) // 2
        return tuple(Batch(attempt=batch.attempt, events=part) for part in (events[:half], events[half:]))
    return ()
