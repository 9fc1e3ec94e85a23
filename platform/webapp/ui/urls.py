"""Addresses of the pages. Ids are matched by their shape, so that nothing else reaches a view."""

from django.contrib.auth.views import LogoutView
from django.urls import URLPattern, URLResolver, path, register_converter

from webapp.ui.views import accounts, datasets, health, new_run, recipes, runs, sandbox, trajectories


class IdConverter:
    """``run_01k3…``: a prefix and a ULID."""

    regex = "[a-z]{2,5}_[0-9a-z]{26}"

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value


register_converter(IdConverter, "id")

urlpatterns: list[URLPattern | URLResolver] = [
    path("", runs.run_list, name="runs"),
    path("setup", accounts.setup, name="setup"),
    path("login", accounts.LogIn.as_view(), name="login"),
    path("logout", LogoutView.as_view(http_method_names=["post", "options"]), name="logout"),
    path("theme", accounts.theme, name="theme"),
    path("tokens", accounts.tokens, name="tokens"),
    path("tokens/<id:token_id>/revoke", accounts.revoke, name="revoke-token"),
    path("runs/new", new_run.new_run, name="new-run"),
    path("runs/<id:run_id>", runs.run_page, name="run"),
    path("runs/<id:run_id>/trajectories", trajectories.trajectories, name="trajectories"),
    path("trajectories/<id:trajectory_id>", trajectories.trajectory, name="trajectory"),
    path("trajectories/<id:trajectory_id>/text", trajectories.download, name="trajectory-text"),
    path("datasets", datasets.datasets, name="datasets"),
    path("datasets/<id:dataset_id>", datasets.dataset, name="dataset"),
    path("recipes", recipes.recipes, name="recipes"),
    path("recipes/<id:recipe_id>", recipes.recipe, name="recipe"),
    path("sandbox", sandbox.sandbox, name="sandbox"),
    path("healthz", health.healthz, name="healthz"),
]
