"""The states of a run and the ways between them. Pure: no database, no clock.

    queued -> starting -> running <-> pausing -> paused -> running
                             |            any living state -> stopping -> stopped
                             +-> finished                  +-> failed
    stopped, failed -> queued (resume: another attempt of the same run)

Leaves out who changes a state and how it is recorded: ``services.py``.
"""

from django.db import models


class State(models.TextChoices):
    """Where a run stands."""

    queued = "queued"
    starting = "starting"
    running = "running"
    pausing = "pausing"
    paused = "paused"
    stopping = "stopping"
    stopped = "stopped"
    finished = "finished"
    failed = "failed"


ENDED = frozenset({State.stopped, State.finished, State.failed})
LIVING = frozenset(State) - ENDED
WITH_ENGINE = LIVING - {State.queued}

_ENDS = {State.stopping, State.stopped, State.finished, State.failed}
_WAYS: dict[State, set[State]] = {
    State.queued: {State.starting, State.stopped, State.failed},
    State.starting: {State.running, *_ENDS},
    State.running: {State.pausing, State.paused, *_ENDS},
    State.pausing: {State.paused, State.running, *_ENDS},
    State.paused: {State.running, *_ENDS},
    State.stopping: {State.stopped, State.finished, State.failed},
    State.stopped: {State.queued},
    State.failed: {State.queued},
    State.finished: set(),
}
# What an engine tells is true whatever we thought: it may have been resumed by hand, or reported lost and yet live.
_HEARD = {State.running, State.paused, State.stopped, State.finished, State.failed}

# Command -> the states in which it makes sense.
ALLOWED: dict[str, frozenset[State]] = {
    "pause": frozenset({State.starting, State.running}),
    "resume": frozenset({State.pausing, State.paused, State.stopped, State.failed}),
    "stop": frozenset({State.queued, State.starting, State.running, State.pausing, State.paused}),
    "checkpoint": frozenset({State.running}),
    "kill": frozenset(WITH_ENGINE),
}


def may_change(before: State, after: State, *, heard: bool = False) -> bool:
    """Whether a run may go from ``before`` to ``after``; ``heard``: because its engine says so."""
    return after in _WAYS[before] or (heard and after in _HEARD and before != after)


def allowed_commands(state: State) -> list[str]:
    """What may be asked of a run in this state."""
    return [kind for kind, states in ALLOWED.items() if state in states]
