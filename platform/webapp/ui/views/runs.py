"""The list of runs and the page of one run, each with real values before any script has run.

What lives on them afterwards is the front end's (``frontend/src/run.ts``) and htmx's. Leaves out starting a run:
``new_run.py``.
"""

from dataclasses import dataclass
from typing import Any

from django.db.models import Prefetch, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from webapp.accounts import policies
from webapp.datasets.models import Dataset
from webapp.recipes.models import Recipe, RecipeVersion
from webapp.runs.models import Run, StageRun
from webapp.runs.queries import run_summary
from webapp.runs.states import ENDED, LIVING, State
from webapp.telemetry.models import LogLine
from webapp.ui import api_calls, wording
from webapp.ui.access import found, signed_in
from webapp.ui.paging import page
from webapp.ui.queries import plain

PAGE_SIZE = 50
LOG_EXCERPT = 12
POLL = "every 5s"
# Asked for in one page: what a page of everything would cost.
MOST_CHECKPOINTS = 100

FILTER_STATES = (("living", "not ended"), *((str(state), str(state)) for state in State))


@dataclass(frozen=True, slots=True)
class Listed:
    """A row of the list: the run with the figures that lists show."""

    run: Run
    reward: float | None
    pass_at_1: float | None
    tool_error_rate: float | None
    response_tokens: float | None


@signed_in
@require_safe
def run_list(request: HttpRequest) -> HttpResponse:
    """All runs that the user sees; htmx asks for the table's body alone."""
    state, text = plain(request, "state"), plain(request, "q")
    shown = page(_matching(request, state, text), request.GET, PAGE_SIZE)
    lives = any(run.state in LIVING for run in shown.rows)
    context = {
        "page": shown,
        "rows": [_listed(run) for run in shown.rows],
        "poll": POLL if lives else "",
        "state": state,
        "q": text,
        "states": FILTER_STATES,
        "filtered": bool(state or text),
    }
    if request.headers.get("HX-Target") == "run-rows":
        return render(request, "ui/runs/rows.html", context)
    if not shown.rows and not context["filtered"]:
        context["curl"] = api_calls.create_run(request, _some_version(request))
    return render(request, "ui/runs/list.html", context)


def _some_version(request: HttpRequest) -> str:
    """A version to start with, for the example of an empty list."""
    seen = policies.visible_recipes(Recipe.objects.all(), request.user)
    versions = RecipeVersion.objects.filter(recipe__in=seen).order_by("recipe__name", "-number")
    return versions.values_list("pk", flat=True).first() or "rcv_…"


def _matching(request: HttpRequest, state: str, text: str) -> QuerySet[Run]:
    rows = policies.visible(Run.objects.filter(archived_at__isnull=True), request.user)
    if state == "living":
        rows = rows.filter(state__in=LIVING)
    elif state:
        rows = rows.filter(state=state)
    if text:
        rows = rows.filter(Q(name__icontains=text) | Q(pk=text) | Q(recipe_version__recipe__name__icontains=text))
    evaluated = StageRun.objects.filter(kind="eval", finished_at__isnull=False)
    return (
        rows.select_related("created_by", "recipe_version__recipe")
        .prefetch_related(Prefetch("stages", queryset=evaluated, to_attr="evaluated"))
        .defer("spec", "toml", "recipe_version__toml", "recipe_version__spec")
    )


def _listed(run: Run) -> Listed:
    """Training figures from the last step, pass@1 from the last evaluation that has one."""
    evaluations: list[StageRun] = getattr(run, "evaluated", [])
    scores = [stage.metrics["pass@1"] for stage in evaluations if stage.metrics.get("pass@1") is not None]
    latest = run.latest
    return Listed(
        run=run,
        reward=latest.get("reward"),
        pass_at_1=scores[-1] if scores else None,
        tool_error_rate=latest.get("tool_error_rate"),
        response_tokens=latest.get("response_tokens"),
    )


@signed_in
@require_safe
def run_page(request: HttpRequest, run_id: str) -> HttpResponse:
    """One run: where it stands, what it measured, what can be asked of it."""
    rows = policies.visible(Run.objects.all(), request.user)
    run = found(rows.select_related("created_by", "project", "recipe_version__recipe"), run_id, "run")
    summary = run_summary(run)
    stages = list(run.stages.all())
    context = {
        "run": run,
        "summary": summary,
        "allowed": set(summary["allowed_commands"]),
        "ended": run.state in ENDED,
        "stages": stages,
        "marks": _marks(stages),
        "evaluations": [stage for stage in stages if stage.kind == "eval"],
        "metrics": _metrics(run.latest),
        "log": _last_lines(run),
        "checkpoints": list(run.checkpoints.order_by("-id")[:MOST_CHECKPOINTS]),
        "attempts": list(run.attempts.all()),
        "transitions": list(run.transitions.all()),
        "datasets": _datasets(run),
        "curl": api_calls.follow_run(request, run.pk),
        "changed": run.recipe_version is not None and run.recipe_version.digest != run.digest,
    }
    return render(request, "ui/runs/page.html", context)


def _metrics(latest: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(key, label, value), known ones first, in their order."""
    known = [key for key in wording.METRICS if key in latest]
    others = sorted(key for key in latest if key not in wording.METRICS)
    return [
        (key, wording.METRICS.get(key, (key, ""))[0], wording.said(key, latest[key]))
        for key in (*known, *others)
        if latest[key] is None or isinstance(latest[key], int | float)
    ]


def _marks(stages: list[StageRun]) -> list[StageRun]:
    """Stages that take steps: their shares of the progress bar."""
    return [stage for stage in stages if stage.kind != "eval"]


def _last_lines(run: Run) -> list[LogLine]:
    lines = LogLine.objects.filter(run=run).order_by("-attempt", "-seq")[:LOG_EXCERPT]
    return list(lines)[::-1]


def _datasets(run: Run) -> list[tuple[str, Any]]:
    """(stage, dataset) of the stages whose problems come from one."""
    if not run.datasets:
        return []
    rows = Dataset.objects.in_bulk(list(run.datasets.values()))
    return [(stage, rows.get(dataset)) for stage, dataset in run.datasets.items()]
