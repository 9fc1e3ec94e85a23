"""Reads trajectories: lists without any long text, and one as a whole in three queries. Leaves out tokens, which lie
in the run folder, and who may see what (``accounts.policies``)."""

from dataclasses import dataclass

from django.db.models import QuerySet

from webapp.runs.models import Run
from webapp.trajectories.models import ToolCall, Trajectory, Turn

LONG = ("problem", "gold", "kept_reason")


def trajectory_list(run: Run, *, history: bool = False) -> QuerySet[Trajectory]:
    """The run's trajectories in the order of their steps, long texts left out. ``history``: also those of steps that
    a later attempt did again."""
    rows = Trajectory.objects.filter(run=run).defer(*LONG)
    return rows if history else rows.filter(superseded=False)


@dataclass(frozen=True, slots=True)
class Transcript:
    """One trajectory with its turns in order, each with the tool calls that it made."""

    trajectory: Trajectory
    turns: list[tuple[Turn, list[ToolCall]]]


def transcript(trajectory: Trajectory) -> Transcript:
    """Two queries besides the trajectory's own."""
    made: dict[int, list[ToolCall]] = {}
    for call in trajectory.calls.all():
        made.setdefault(call.turn, []).append(call)
    return Transcript(trajectory, [(turn, made.get(turn.position, [])) for turn in trajectory.turns.all()])
