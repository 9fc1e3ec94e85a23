"""Recipes: the built-in ones and one's own, each with its versions; another version is saved from TOML.

Leaves out the form that changes single fields (``new_run.py``) and the rules (``recipes.services``).
"""

from django import forms
from django.db.models import Count, Max
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from webapp.accounts import policies
from webapp.accounts.services import default_project
from webapp.recipes import services
from webapp.recipes.models import Recipe, RecipeVersion
from webapp.runs.models import Run
from webapp.runs.services import WrongFields
from webapp.ui.access import found, signed_in, user_of
from webapp.ui.views.accounts import control

SHOWN_RUNS = 20


class VersionForm(forms.Form):
    name = forms.CharField(max_length=80, widget=control(autocomplete="off"))
    toml = forms.CharField(
        label="Recipe as TOML",
        strip=False,
        widget=forms.Textarea(attrs={"class": "form-control code-area", "rows": "24", "spellcheck": "false"}),
    )


@signed_in
@require_safe
def recipes(request: HttpRequest) -> HttpResponse:
    """All recipes that the user sees."""
    rows = policies.visible_recipes(Recipe.objects.filter(archived_at__isnull=True), request.user)
    counted = rows.annotate(latest=Max("versions__number"), used=Count("versions__runs", distinct=True))
    context = {
        "own": [recipe for recipe in counted if not recipe.built_in],
        "built_in": [recipe for recipe in counted if recipe.built_in],
    }
    return render(request, "ui/recipes/list.html", context)


@signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def recipe(request: HttpRequest, recipe_id: str) -> HttpResponse:
    """One recipe; ``?version=3`` shows an older version. A POST saves another version, of one's own recipe."""
    row = found(policies.visible_recipes(Recipe.objects.all(), request.user), recipe_id, "recipe")
    versions = list(row.versions.defer("spec").select_related("created_by"))
    shown = _chosen(versions, request.GET.get("version", ""))
    name = f"my-{row.name}"[:80] if row.built_in else row.name
    form = VersionForm(request.POST or None, initial={"name": name, "toml": shown.toml if shown else ""})
    wrong: dict[str, str] = {}
    if request.method == "POST" and form.is_valid():
        try:
            made = services.save_version(
                user=user_of(request), project=default_project(user_of(request)), **form.cleaned_data
            )
            return redirect("recipe", made.recipe_id)
        except WrongFields as error:
            wrong = error.errors
    context = {
        "recipe": row,
        "versions": versions,
        "shown": shown,
        "form": form,
        "wrong": wrong,
        "runs": _runs(request, row),
    }
    return render(request, "ui/recipes/page.html", context, status=422 if wrong or form.errors else 200)


def _chosen(versions: list[RecipeVersion], number: str) -> RecipeVersion | None:
    """The version of this number, else the newest."""
    named = [version for version in versions if str(version.number) == number]
    return next(iter(named or versions), None)


def _runs(request: HttpRequest, row: Recipe) -> list[Run]:
    rows = policies.visible(Run.objects.filter(recipe_version__recipe=row), request.user)
    return list(rows.select_related("recipe_version").defer("spec", "toml", "recipe_version__spec")[:SHOWN_RUNS])
