"""Takes in what engines tell: a batch becomes rows exactly once, all of it or nothing.

The run's row is locked for the transaction, so batches of a run come one after the other; runs never wait for each
other. An event is taken only when the one before it is there; what is there already is skipped, so a batch may be
sent again and cut anywhere. Leaves out HTTP (``views.py``), what may come in (``door.py``), what events mean
(``fold.py``) and how rows are written (``bulk.py``).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from django.db import transaction
from django.utils import timezone

from engine.contract.delivery import Answer, Batch
from engine.contract.events import Event, RunHeartbeat
from engine.interop.run_folder import batches
from webapp.runs import services
from webapp.runs.models import Attempt, Run
from webapp.telemetry import bulk
from webapp.telemetry.door import admit
from webapp.telemetry.fold import Fold, fold, when
from webapp.telemetry.throttle import Throttle

ANNOUNCE_PAUSE_S = 0.25


class Superseded(Exception):
    """Another launch of the run has taken over: the engine that speaks must end."""


class Gap(Exception):
    """Events are missing before those of the batch. ``cursor``: attempt -> seq of the last event that is there."""

    def __init__(self, cursor: Mapping[int, int]) -> None:
        super().__init__(f"events are missing; taken in so far, by attempt: {dict(cursor)}")
        self.cursor = dict(cursor)


# State changes are announced at once; numbers at most four times a second for each run.
announce_news = Throttle(lambda run_id: services.announce(run_id), ANNOUNCE_PAUSE_S)


def take_in(run_id: str, batch: Batch, *, launch: int | None) -> Answer:
    """Take in a batch that ``launch`` sent, or that comes from the run's folder (None).

    Raises ``Run.DoesNotExist``, ``Superseded``, ``Gap`` and ``door.Unacceptable``; nothing is changed then.
    """
    batch = admit(batch)
    with transaction.atomic():
        run = services.locked(run_id)
        refuse_superseded(run, launch)
        run.launches = max(run.launches, launch or 0)  # known to the token, but not to a database that was rebuilt
        made = Fold.of(run, batch.attempt)
        take(made, batch, live=launch is not None)
        return Answer(cursor=cursor_of(made.attempts.values()), commands=services.waiting_commands(run))


def answer(run_id: str, launch: int | None) -> Answer:
    """What a batch without anything would be answered. Raises ``Run.DoesNotExist``, ``Superseded``."""
    run = Run.objects.get(pk=run_id)
    refuse_superseded(run, launch)
    return Answer(cursor=cursor_of(run.attempts.all()), commands=services.waiting_commands(run))


def refuse_superseded(run: Run, launch: int | None) -> None:
    if launch is not None and launch < run.launches:
        raise Superseded(f"launch {launch} of {run.pk} was followed by launch {run.launches}")


def cursor_of(attempts: Iterable[Attempt]) -> dict[int, int]:
    return {attempt.number: attempt.last_seq for attempt in attempts if attempt.last_seq}


def take(made: Fold, batch: Batch, *, live: bool) -> None:
    """Fold what is new of a batch, write it, and save the run: as its next revision if there is anything to see."""
    state = made.run.state
    events = new_events(made, batch.events)
    trajectories = bulk.new_trajectories(made, batch.trajectories)
    fold(made, events)
    if events or trajectories:
        made.attempt.save()
    now = timezone.now()
    heard(made.run, now if live else max((min(when(event), now) for _, event in events), default=None))
    if trajectories or any(not isinstance(event.body, RunHeartbeat) for _, event in events):
        bulk.write(made, trajectories)
        save_stages(made)
        services.save_change(made.run, services.announce if made.run.state != state else announce_news)
    else:
        made.run.save(update_fields=["heartbeat_at", "launches", "attempt"])


def new_events(made: Fold, events: Sequence[Event]) -> list[tuple[int, Event]]:
    """The events that follow the last one that is there, with their places in the batch. Raises ``Gap``."""
    new = [(place, event) for place, event in enumerate(events) if event.seq > made.attempt.last_seq]
    if new and new[0][1].seq != made.attempt.last_seq + 1:
        raise Gap(cursor_of(made.attempts.values()))
    return new


def heard(run: Run, at: datetime | None) -> None:
    """The engine lived then."""
    if at is not None:
        run.heartbeat_at = max(run.heartbeat_at or at, at)


def save_stages(made: Fold) -> None:
    for name in made.touched:
        made.stages[name].save()


def take_in_folder(run_id: str) -> None:
    """Take in what the run's folder holds and is not there yet. Raises what ``take_in`` raises, but for ``Gap`` and
    ``Superseded``, and ``engine.interop.run_folder.RunFolderUnreadable``."""
    for _ in batches_taken_in(run_id):
        pass


def batches_taken_in(run_id: str) -> Iterator[Batch]:
    """The batches of the run's folder, each taken in when it is given out."""
    run = Run.objects.get(pk=run_id)
    for batch in batches(Path(run.folder), cursor_of(run.attempts.all())):
        take_in(run_id, batch, launch=None)
        yield batch
