"""Writes what a batch adds, in bulk by COPY: points, log lines, groups, trajectories with their turns and tool calls.

Trajectories that are there already are skipped by a look-up: the run is locked, so nobody adds any meanwhile, and it
took less than a temporary table with ``ON CONFLICT`` (which also leaves dead rows in the catalogue for every batch).
Ids follow from what a row is, and sort by step: a database that is rebuilt from run folders has the same addresses.
Leaves out what the rows mean: ``fold.py``.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django.db import connection
from django.db.models import Model
from psycopg.types.json import Jsonb

from engine.contract.delivery import ShippedTrajectory
from engine.contract.events import GroupFinished
from engine.contract.trajectory import ToolCallRecord
from engine.interop.engine_timeline import Moment, moments, surplus
from webapp.config.ids import derived_id
from webapp.runs.models import Checkpoint, Run, StageRun
from webapp.telemetry.door import Unacceptable
from webapp.telemetry.fold import Fold, attempt_of, naming, when, x_of
from webapp.telemetry.models import EngineMoment, LogLine, MetricPoint
from webapp.trajectories.models import Group, ToolCall, Trajectory, Turn

Row = tuple[object, ...]

LONGEST_ERROR_TYPE = 200
"""A program names its exceptions as it likes, and the name is in an index, whose entries have a largest size."""


class Told(NamedTuple):
    """A trajectory with what follows from its place."""

    id: str
    attempt: int
    stage: StageRun
    trajectory: ShippedTrajectory


def copy_in(model: type[Model], columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Add rows by COPY. ``columns`` are names of the database; what is left out gets the database's default."""
    quote = connection.ops.quote_name
    table, names = quote(model._meta.db_table), ", ".join(map(quote, columns))
    copying = f"COPY {table} ({names}) FROM STDIN"
    with connection.wrap_database_errors, connection.cursor() as cursor, cursor.copy(copying) as copy:
        for row in rows:
            copy.write_row(row)


def place_id(prefix: str, run: Run, x: int, place: int, *facts: object) -> str:
    """The id of something of step ``x``: its time is made so that ids of a run sort by step and place."""
    return derived_id(prefix, run.created_at.timestamp() + x * 100 + min(place, 99_999) / 1000, run.pk, *facts)


def write(made: Fold, trajectories: Sequence[Told]) -> None:
    """Everything that ``made`` collected, and the trajectories."""
    supersede_steps(made)
    write_points(made)
    write_log(made)
    write_engine_moments(made)
    write_groups(made)
    write_checkpoints(made)
    write_trajectories(made, trajectories)


def supersede_steps(made: Fold) -> None:
    """What earlier attempts told of steps that this one does again; who saw any of it has to start anew."""
    if all(number >= made.attempt.number for number in made.attempts):
        return
    for stage, step in made.superseding:
        for model in (MetricPoint, Group, Trajectory):
            changed = model._default_manager.filter(
                run=made.run, stage=stage.name, step__gte=step, attempt__lt=made.attempt.number, superseded=False
            ).update(superseded=True)
            if changed:
                made.run.reset_revision = made.revision


_POINT = ("run_id", "revision", "attempt", "stage", "step", "x", "key", "value", "non_finite", "at", "superseded")


def write_points(made: Fold) -> None:
    """Of the points of one key, stage and step the one told last is shown; the others are history."""
    if not made.points:
        return
    number = made.attempt.number
    last = {(point.stage.name, point.step, point.key): place for place, point in enumerate(made.points)}
    shown = shown_points(made)
    replaced = [pk for identity, (pk, attempt) in shown.items() if identity in last and attempt <= number]
    MetricPoint.objects.filter(pk__in=replaced).update(superseded=True)
    later = {identity for identity, (_, attempt) in shown.items() if attempt > number}

    def row(place: int) -> Row:
        stage, step, key, value, non_finite, at = made.points[place]
        identity = (stage.name, step, key)
        past = last[identity] != place or identity in later or made.is_past(number, stage, step)
        facts = (made.run.pk, made.revision, number, stage.name, step, x_of(stage, step))
        return (*facts, key, value, non_finite, at, past)

    copy_in(MetricPoint, _POINT, map(row, range(len(made.points))))


def shown_points(made: Fold) -> dict[tuple[str, int, str], tuple[int, int]]:
    """What is shown where ``made`` has points too: (stage, step, key) -> (row, attempt)."""
    keys = {point.key for point in made.points}
    places = {x_of(point.stage, point.step) for point in made.points}
    found = MetricPoint.objects.filter(run=made.run, key__in=keys, x__in=places, superseded=False)
    rows = found.values_list("stage", "step", "key", "pk", "attempt")
    return {(stage, step, key): (pk, attempt) for stage, step, key, pk, attempt in rows}


_LOG_LINE = ("run_id", "revision", "attempt", "seq", "at", "level", "message")


def write_log(made: Fold) -> None:
    if made.log:
        facts = (made.run.pk, made.revision, made.attempt.number)
        rows = ((*facts, event.seq, when(event), body.level, body.message) for event, body in made.log)
        copy_in(LogLine, _LOG_LINE, rows)


_ENGINE_MOMENT = ("run_id", "revision", "attempt", "stage", "step", "at", "engines")


def write_engine_moments(made: Fold) -> None:
    """Add what the engines told, then thin the run's timeline."""
    if not made.engine_loads:
        return
    number, of_run = made.attempt.number, EngineMoment.objects.filter(run=made.run)
    row = of_run.filter(attempt=number).order_by("at", "id").last()
    last = None if row is None else Moment(number, row.stage, row.step, row.at.timestamp(), row.engines)
    told = moments(made.engine_loads, last)
    if row is not None and told[0] is last:  # the batch before ended within a moment
        of_run.filter(pk=row.pk).update(engines=row.engines, revision=made.revision)
        told = told[1:]
    facts = (made.run.pk, made.revision, number)
    new = ((*facts, m.stage, m.step, datetime.fromtimestamp(m.at, UTC), Jsonb(m.engines)) for m in told)
    copy_in(EngineMoment, _ENGINE_MOMENT, new)
    there = list(of_run.order_by("at", "id").values_list("pk", "at"))
    gone = [there[place][0] for place in surplus([at.timestamp() for _, at in there])]
    of_run.filter(pk__in=gone).delete()


_GROUP = (
    *("id", "run_id", "revision", "attempt", "stage", "step", "name", "problem_id", "rollouts", "left_out"),
    *("right", "kept", "outcome", "tool_calls", "tool_errors", "superseded"),
)


def write_groups(made: Fold) -> None:
    """A group that is told again is replaced: it is the same row with the same address."""
    if not made.groups:
        return
    Group.objects.filter(run=made.run, attempt=made.attempt.number, name__in=made.groups).delete()
    copy_in(Group, _GROUP, (group_row(made, group) for group in made.groups.values()))


def group_row(made: Fold, group: GroupFinished) -> Row:
    run, number, stage = made.run, made.attempt.number, made.stages[group.stage]
    pk = place_id("grp", run, x_of(stage, group.step), number_in_step(group.group), number, group.group)
    past = made.is_past(number, stage, group.step)
    told = (getattr(group, name if name != "name" else "group") for name in _GROUP[4:-1])
    return (pk, run.pk, made.revision, number, *told, past)


def number_in_step(group: str) -> int:
    """Groups are named <stage>/<step>/<number>; any other name sorts first."""
    last = group.rpartition("/")[2]
    return int(last) if last.isascii() and last.isdecimal() and len(last) < 10 else 0


def write_checkpoints(made: Fold) -> None:
    """One that is told again, after a kill between its event and its step's, is there already."""
    rows = [
        Checkpoint(
            id=place_id("ckp", made.run, x_of(made.stages[told.stage], told.step), 0, told.path),
            run=made.run,
            attempt=attempt_of(told.path),
            stage=told.stage,
            step=told.step,
            path=told.path,
            created_at=at,
        )
        for at, told in made.checkpoints
    ]
    Checkpoint.objects.bulk_create(rows, ignore_conflicts=True)


_OF_TRAJECTORY = (
    *("stage", "step", "replica", "problem_id", "problem", "gold", "stop_reason", "first_version", "last_version"),
    *("answer", "verdict", "reward", "reward_status", "u", "penalty", "advantage", "kept", "kept_reason", "seconds"),
    *("prompt_tokens", "response_tokens", "sampled_tokens", "file", "row"),
)
_MADE = ("policy_steps", "group_name", "assistant_turns", "tool_calls", "tool_errors", "superseded")
_TRAJECTORY = ("id", "run_id", "revision", "attempt", *_OF_TRAJECTORY, *_MADE)
_TURN = ("trajectory_id", "position", "role", "start", "end", "text")
_CALL = (
    *("id", "run_id", "trajectory_id", "turn", "position", "name", "arguments", "status", "response"),
    *("error_type", "queued_s", "wall_s"),
)


def write_trajectories(made: Fold, trajectories: Sequence[Told]) -> None:
    """Three COPYs: trajectories, their turns, their tool calls."""
    if not trajectories:
        return
    copy_in(Trajectory, _TRAJECTORY, (trajectory_row(made, told) for told in trajectories))
    copy_in(Turn, _TURN, (row for told in trajectories for row in turn_rows(told)))
    copy_in(ToolCall, _CALL, (row for told in trajectories for row in call_rows(made, told)))


def new_trajectories(made: Fold, shipped: Sequence[ShippedTrajectory]) -> list[Told]:
    """Those that are not there yet. Raises ``Unacceptable``."""
    files = {trajectory.file for trajectory in shipped}
    known = set(Trajectory.objects.filter(run=made.run, file__in=files).values_list("file", "row")) if files else set()
    new: list[Told] = []
    for place, trajectory in enumerate(shipped):
        if (trajectory.file, trajectory.row) not in known:
            known.add((trajectory.file, trajectory.row))
            with naming(f"/trajectories/{place}"):
                new.append(told(made, trajectory))
    return new


def told(made: Fold, trajectory: ShippedTrajectory) -> Told:
    """A file belongs to the attempt in its path, which may be an earlier one than the one that tells it."""
    stage = made.stage(trajectory.stage)
    with naming("/file"):
        attempt = attempt_of(trajectory.file)
        if attempt > made.attempt.number:
            raise Unacceptable({"": f"attempt {made.attempt.number} cannot tell a file of attempt {attempt}"})
    facts = (trajectory.file, trajectory.row)
    pk = place_id("traj", made.run, x_of(stage, trajectory.step), trajectory.row, *facts)
    return Told(pk, attempt, stage, trajectory)


def trajectory_row(made: Fold, told: Told) -> Row:
    trajectory = told.trajectory
    same = (finite(getattr(trajectory, name)) for name in _OF_TRAJECTORY)
    calls = [call for turn in trajectory.turns for call in turn.calls]
    assistant = sum(turn.role == "assistant" for turn in trajectory.turns)
    past = made.is_past(told.attempt, told.stage, trajectory.step)
    counted = (trajectory.group, assistant, len(calls), sum(call.failed for call in calls), past)
    steps = Jsonb(list(trajectory.policy_steps))
    return (told.id, made.run.pk, made.revision, told.attempt, *same, steps, *counted)


def finite(value: Any) -> Any:
    """A number that is none is none here too; the run folder has it as it was."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def turn_rows(told: Told) -> Iterator[Row]:
    for place, turn in enumerate(told.trajectory.turns):
        yield told.id, place, turn.role, turn.start, turn.end, turn.text


def call_rows(made: Fold, told: Told) -> Iterator[Row]:
    for turn, of_turn in enumerate(told.trajectory.turns):
        for place, call in enumerate(of_turn.calls):
            x = x_of(told.stage, told.trajectory.step)
            pk = place_id("tc", made.run, x, told.trajectory.row, told.id, turn, place)
            yield (pk, made.run.pk, told.id, turn, place, *call_columns(call))


def call_columns(call: ToolCallRecord) -> Row:
    error_type = call.error_type and call.error_type[:LONGEST_ERROR_TYPE]
    return (call.name, Jsonb(call.arguments), call.status, call.response, error_type, call.queued_s, call.wall_s)
