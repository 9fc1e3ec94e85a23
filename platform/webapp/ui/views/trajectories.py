"""Trajectories of a run by filter, and one of them from prompt to verdict.

Next and previous stay within the filter that the reader came with. Leaves out what the filter means
(``trajectory_filters``) and how a transcript is laid out (``reading``).
"""

from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from engine.contract.trajectory import StopReason
from webapp.accounts import policies
from webapp.runs.models import Run
from webapp.trajectories.models import Group, Trajectory
from webapp.trajectories.queries import trajectory_list, transcript
from webapp.ui import trajectory_filters, wording
from webapp.ui.access import found, signed_in
from webapp.ui.inert import fold, one_line
from webapp.ui.paging import page
from webapp.ui.reading import plain_text, turns_of
from webapp.ui.trajectory_filters import Filter

PAGE_SIZE = 100
MOST_RAW_CHARACTERS = 1_000_000
# What programs of models raise most, offered while typing.
ERROR_TYPES = (
    "SyntaxError", "NameError", "TypeError", "ValueError", "IndexError", "KeyError", "AttributeError", "ImportError",
    "ModuleNotFoundError", "ZeroDivisionError", "RecursionError", "MemoryError", "timeout", "memory", "output_limit",
    "parse_error",
)  # fmt: skip


@signed_in
@require_safe
def trajectories(request: HttpRequest, run_id: str) -> HttpResponse:
    """The list. An unreadable filter shows what is wrong with it and no rows."""
    run = found(policies.visible(Run.objects.defer("toml"), request.user), run_id, "run")
    wanted = trajectory_filters.read(request.GET)
    shown = page(wanted.apply(_columns(run)), request.GET, PAGE_SIZE)
    context = {
        "run": run,
        "filter": wanted,
        "page": shown,
        "rows": [(row, _rule(run, row)) for row in shown.rows],
        "stages": [stage for stage in run.spec["stages"] if stage["kind"] != "sft"],
        "rewards": trajectory_filters.REWARDS,
        "errors": trajectory_filters.ERRORS,
        "kept": trajectory_filters.KEPT,
        "stops": [(str(reason), wording.STOP_REASONS[reason]) for reason in StopReason],
        "error_types": ERROR_TYPES,
        "any_at_all": bool(shown.rows) or run.trajectories.exists(),
    }
    return render(request, "ui/trajectories/list.html", context)


def _columns(run: Run) -> QuerySet[Trajectory]:
    """Rows with what the table shows: the reason, which is a word, and no texts."""
    return trajectory_list(run, history=True).defer(None).defer("problem", "gold", "answer")


def _stage(run: Run, name: str) -> dict[str, Any] | None:
    return next((stage for stage in run.spec["stages"] if stage["name"] == name), None)


def _rule(run: Run, row: Trajectory) -> str:
    right = (row.reward or 0) > 0
    return one_line(
        wording.selection_rule(_stage(run, row.stage), kept=row.kept, reason=row.kept_reason, right=right), 200
    )


@signed_in
@require_safe
def trajectory(request: HttpRequest, trajectory_id: str) -> HttpResponse:
    """One trajectory; ``?raw=1`` shows its text as it is, the other parameters are the filter to move in."""
    row = _visible(request, trajectory_id)
    read = transcript(row)
    context: dict[str, Any] = {"run": row.run, "t": row, "filter": trajectory_filters.read(request.GET)}
    if request.GET.get("raw"):
        text = plain_text(read.turns, row.problem)
        context |= {"text": text[:MOST_RAW_CHARACTERS], "cut": len(text) > MOST_RAW_CHARACTERS}
        return render(request, "ui/trajectories/raw.html", context)
    newer, older = _neighbours(row, context["filter"])
    context |= {
        "turns": turns_of(read.turns),
        "newer": newer,
        "older": older,
        "group": _group(row),
        "siblings": _siblings(row),
        "rule": _rule(row.run, row),
        "stop_words": wording.STOP_REASONS.get(row.stop_reason, row.stop_reason),
        "sampled_by": wording.sampled_by(row.policy_steps, row.response_tokens),
        "right_when_cut": row.stop_reason in wording.CUT and row.verdict == "correct",
        "problem": fold(row.problem),
        "gold": fold(row.gold),
        "answer": None if row.answer is None else fold(row.answer),
    }
    return render(request, "ui/trajectories/page.html", context)


@signed_in
@require_safe
def download(request: HttpRequest, trajectory_id: str) -> HttpResponse:
    """The whole text of a trajectory, as a file that no browser tries to show."""
    row = _visible(request, trajectory_id)
    text = plain_text(transcript(row).turns, row.problem)
    response = HttpResponse(text.encode("utf-8", "backslashreplace"), content_type="text/plain; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{row.pk}.txt"'
    response["X-Content-Type-Options"] = "nosniff"
    return response


def _visible(request: HttpRequest, trajectory_id: str) -> Trajectory:
    rows = Trajectory.objects.select_related("run").defer("run__toml")
    return found(policies.visible(rows, request.user, "run__project"), trajectory_id, "trajectory")


def _neighbours(row: Trajectory, wanted: Filter) -> tuple[str | None, str | None]:
    """Ids of the next newer and the next older trajectory of the run that fit the filter."""
    rows = wanted.apply(Trajectory.objects.filter(run=row.run)).values_list("pk", flat=True)
    newer = rows.filter(pk__gt=row.pk).order_by("pk").first()
    older = rows.filter(pk__lt=row.pk).order_by("-pk").first()
    return newer, older


def _group(row: Trajectory) -> Group | None:
    return Group.objects.filter(run=row.run, attempt=row.attempt, name=row.group_name).first()


def _siblings(row: Trajectory) -> list[Trajectory]:
    """The rollouts of the same group, this one among them."""
    rows = Trajectory.objects.filter(
        run=row.run, stage=row.stage, step=row.step, attempt=row.attempt, group_name=row.group_name
    )
    return list(rows.only("id", "replica", "reward", "kept", "advantage", "stop_reason").order_by("replica"))
