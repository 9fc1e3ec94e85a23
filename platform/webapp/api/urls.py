"""Addresses of REST: everything lies under ``/api/v1/``, its browser beside it. What is not there is a problem, too.

Ids hold no characters that could surprise a database: other addresses do not exist.
"""

from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, URLResolver, include, path, register_converter
from django.urls.converters import StringConverter
from django.views.decorators.csrf import csrf_exempt

from webapp.api.problems import problem
from webapp.api.views import accounts, datasets, progress, recipes, runs, sandbox, schema, trajectories
from webapp.telemetry.views import events


class IdConverter(StringConverter):
    """A public id, such as ``run_01k3...``."""

    regex = "[a-z]{2,5}_[0-9a-z]{26}"


class CommandIdConverter(StringConverter):
    """An id of a command; other words in its place are kinds of commands."""

    regex = "cmd_[0-9a-z]{26}"


class NumberConverter(StringConverter):
    """A small whole number."""

    regex = "[0-9]{1,9}"


register_converter(IdConverter, "api_id")
register_converter(CommandIdConverter, "api_command_id")
register_converter(NumberConverter, "api_number")


@csrf_exempt
def nothing_here(request: HttpRequest, **rest: str) -> HttpResponse:
    said = "There is no such address; the ones that there are stand in /api/v1/schema."
    return problem(request, 404, "Not found", said, "not_found")


app_name = "api"
Routes = list[URLPattern | URLResolver]

of_a_run: Routes = [
    path("commands", runs.CommandList.as_view(), name="commands"),
    path("commands/<api_command_id:command_id>", runs.CommandView.as_view(), name="command"),
    path("commands/<slug:kind>", runs.SendCommand.as_view(), name="send_command"),
    path("series", progress.SeriesView.as_view(), name="series"),
    path("engine-load", progress.EngineLoadView.as_view(), name="engine_load"),
    path("charts", progress.ChartsView.as_view(), name="charts"),
    path("updates", progress.UpdatesView.as_view(), name="updates"),
    path("logs", progress.LogsView.as_view(), name="logs"),
    path("groups", trajectories.GroupList.as_view(), name="groups"),
    path("trajectories", trajectories.TrajectoryList.as_view(), name="trajectories"),
    path("export", trajectories.ExportView.as_view(), name="export"),
    path("events", events, name="events"),
]

v1: Routes = [
    path("runs", runs.RunList.as_view(), name="runs"),
    path("runs/<api_id:run_id>", runs.RunView.as_view(), name="run"),
    path("runs/<api_id:run_id>/", include(of_a_run)),
    path("trajectories/<api_id:trajectory_id>", trajectories.TrajectoryView.as_view(), name="trajectory"),
    path("tool-calls/<api_id:call_id>", trajectories.ToolCallView.as_view(), name="tool_call"),
    path("recipes", recipes.RecipeList.as_view(), name="recipes"),
    path("recipes/<api_id:recipe_id>", recipes.RecipeView.as_view(), name="recipe"),
    path("recipes/<api_id:recipe_id>/versions", recipes.VersionList.as_view(), name="recipe_versions"),
    path(
        "recipes/<api_id:recipe_id>/versions/<api_number:number>", recipes.VersionView.as_view(), name="recipe_version"
    ),
    path("datasets", datasets.DatasetList.as_view(), name="datasets"),
    path("datasets/<api_id:dataset_id>", datasets.DatasetView.as_view(), name="dataset"),
    path("tokens", accounts.TokenList.as_view(), name="tokens"),
    path("tokens/<api_id:token_id>", accounts.TokenView.as_view(), name="token"),
    path("projects", accounts.ProjectList.as_view(), name="projects"),
    path("sandbox", sandbox.SandboxView.as_view(), name="sandbox"),
    path("schema", schema.SchemaView.as_view(), name="schema"),
]

urlpatterns: Routes = [
    path("v1/", include(v1)),
    path("docs", schema.docs, name="docs"),
    path("", nothing_here),
    path("<path:rest>", nothing_here),
]
