"""A new run: choose a recipe, look at it as fields or as TOML, start.

One view, one form. Every answer to it is the whole page, of which htmx takes what it replaces; without scripts the same
buttons work. The run's id is given out with the page and signed: however often Start is pressed, there is one run.
Leaves out the draft itself (``ui.drafts``) and the rules (``runs.services``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from django.contrib import messages
from django.core import signing
from django.db.models import Count, Max
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from engine.contract.job import Recipe as RecipeSpec
from webapp.accounts import policies
from webapp.accounts.models import User
from webapp.accounts.services import default_project
from webapp.config.ids import new_id
from webapp.datasets.models import Dataset
from webapp.recipes.models import Recipe, RecipeVersion
from webapp.runs.models import Run
from webapp.runs.services import WrongFields, create_run
from webapp.ui import api_calls, drafts
from webapp.ui.access import found, signed_in, user_of
from webapp.ui.drafts import Draft, Tab
from webapp.ui.queries import cleaned, plain

_SALT = "starloom.new-run"
_DATASET = "dataset:"
LONGEST_NAME = 120
MOST_DATASETS = 200


@dataclass(frozen=True)
class Asked:
    """All that a page of a new run holds."""

    draft: Draft
    name: str
    version: RecipeVersion | None
    datasets: Mapping[str, str]
    key: str


@signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def new_run(request: HttpRequest) -> HttpResponse:
    """Without a recipe, the choice of one."""
    if request.method == "POST":
        return _posted(request)
    asked = _from_address(request)
    return _choose(request) if asked is None else _show(request, asked)


def _from_address(request: HttpRequest) -> Asked | None:
    """``?recipe=``, with ``version=`` or not, or ``?run=`` to do the like of a run again."""
    user = user_of(request)
    if again := plain(request, "run"):
        run = found(policies.visible(Run.objects.all(), user), again, "run")
        return Asked(Draft("form", run.toml), run.name, run.recipe_version, run.datasets, _fresh_key(user))
    if not (chosen := plain(request, "recipe")):
        return None
    recipe = found(policies.visible_recipes(Recipe.objects.all(), user), chosen, "recipe")
    number = plain(request, "version")
    versions = list(recipe.versions.all())
    version = next((each for each in versions if str(each.number) == number), versions[0])
    draft = Draft("form", version.toml)
    return Asked(draft, "", version, _wished_dataset(request, draft), _fresh_key(user))


def _wished_dataset(request: HttpRequest, draft: Draft) -> dict[str, str]:
    """``?dataset=``: for the stages that learn; what they are examined on stays what it is."""
    learning = [stage["name"] for stage in draft.data.get("stages", ()) if stage.get("kind") == "rl"]
    wish = plain(request, "dataset")
    return dict.fromkeys(learning, wish) if wish else {}


def _choose(request: HttpRequest) -> HttpResponse:
    rows = policies.visible_recipes(Recipe.objects.filter(archived_at__isnull=True), request.user)
    counted = rows.annotate(latest=Max("versions__number"), used=Count("versions__runs", distinct=True))
    context = {
        "recipes": counted.filter(latest__isnull=False).order_by("project", "name"),
        "dataset": plain(request, "dataset"),
    }
    return render(request, "ui/runs/choose.html", context)


def _posted(request: HttpRequest) -> HttpResponse:
    asked = _read(request)
    if "start" in request.POST:
        return _start(request, asked)
    tab: Tab = "toml" if request.POST.get("to") == "toml" else "form"
    turned = replace(asked.draft.turned_to(tab), touched=request.headers.get("HX-Trigger-Name", ""))
    return _show(request, replace(asked, draft=turned))


def _read(request: HttpRequest) -> Asked:
    posted, user = request.POST, user_of(request)
    seen = policies.visible_recipes(Recipe.objects.all(), user)
    chosen = {
        name.removeprefix(_DATASET): cleaned(wish)
        for name, wish in posted.items()
        if name.startswith(_DATASET) and isinstance(wish, str) and wish
    }
    return Asked(
        draft=drafts.read({name: text for name, text in posted.items() if isinstance(text, str)}),
        name=cleaned(posted.get("run_name", "")),
        version=RecipeVersion.objects.filter(pk=cleaned(posted.get("version", "")), recipe__in=seen).first(),
        datasets=chosen,
        key=posted.get("key", ""),
    )


def _start(request: HttpRequest, asked: Asked) -> HttpResponse:
    """The run, or the page again with everything that is wrong with it."""
    user = user_of(request)
    run_id = _run_id(asked.key, user)
    if run_id is None:
        messages.error(request, "This page was not yours or is too old. Look at it once more, then press Start.")
        return _show(request, replace(asked, key=_fresh_key(user)))
    try:
        recipe, toml = asked.draft.outcome()
        datasets = _datasets(user, asked)
        run = create_run(
            user=user,
            project=default_project(user),
            recipe=recipe,
            toml=toml,
            name=_name(asked),
            version=asked.version,
            datasets=datasets,
            run_id=run_id,
        )
    except WrongFields as wrong:
        return _show(request, replace(asked, draft=asked.draft.with_errors(wrong.errors)))
    if not _is_of(run, recipe, asked):
        return _started_before(request, asked, run)
    return redirect("run", run.pk)


def _name(asked: Asked) -> str:
    if len(asked.name) > LONGEST_NAME:
        raise WrongFields({"/run_name": f"expected at most {LONGEST_NAME} characters"})
    return asked.name


def _is_of(run: Run, recipe: RecipeSpec, asked: Asked) -> bool:
    """Whether the run is what this page asks for: its key may have made another one before."""
    same_name = run.name == (asked.name or recipe.name)
    return run.digest == recipe.digest and same_name and run.datasets == dict(asked.datasets)


def _started_before(request: HttpRequest, asked: Asked, run: Run) -> HttpResponse:
    messages.warning(
        request, f"This page has started {run.name} before, with other entries. Press Start to start another run."
    )
    return _show(request, replace(asked, key=_fresh_key(user_of(request))))


def _datasets(user: User, asked: Asked) -> dict[str, Dataset]:
    """Stage -> dataset, of those that the user sees. Raises ``WrongFields``."""
    seen = policies.visible(Dataset.objects.all(), user).in_bulk(list(asked.datasets.values()))
    wrong = {f"/datasets/{stage}": "no such dataset" for stage, wish in asked.datasets.items() if wish not in seen}
    if wrong:
        raise WrongFields(wrong)
    return {stage: seen[wish] for stage, wish in asked.datasets.items()}


def _show(request: HttpRequest, asked: Asked) -> HttpResponse:
    user = user_of(request)
    context = {
        "asked": asked,
        "draft": asked.draft,
        "choices": [(stage, asked.datasets.get(stage, "")) for stage in asked.draft.stages],
        "datasets": _choices(user, asked),
        "longest_name": LONGEST_NAME,
        "curl": api_calls.create_run(request, asked.version.pk) if asked.version else "",
    }
    wrong = bool(asked.draft.errors) and not request.headers.get("HX-Request")
    return render(request, "ui/runs/new.html", context, status=422 if wrong else 200)


def _choices(user: User, asked: Asked) -> list[Dataset]:
    """The newest datasets, and in any case those that are chosen."""
    seen = policies.visible(Dataset.objects.all(), user)
    newest = list(seen.filter(archived_at__isnull=True)[:MOST_DATASETS])
    missing = set(asked.datasets.values()) - {dataset.pk for dataset in newest}
    return newest + (list(seen.filter(pk__in=missing)) if missing else [])


def _fresh_key(user: User) -> str:
    return signing.dumps([new_id("run"), user.pk], salt=_SALT)


def _run_id(key: str, user: User) -> str | None:
    """The id that was given out with the page, to this user."""
    try:
        run_id, owner = signing.loads(key, salt=_SALT)
    except (signing.BadSignature, ValueError, TypeError):
        return None
    return str(run_id) if owner == user.pk else None
