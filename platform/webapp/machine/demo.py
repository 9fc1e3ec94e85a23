"""`up --demo`: a login, made once, and the demo recipe as a run.

Leaves out saying it on the terminal: the password is returned, once, and kept nowhere but as Django keeps passwords.
"""

import secrets
from dataclasses import dataclass

from engine.contract.job import Recipe as EngineRecipe
from webapp.accounts import services as accounts
from webapp.accounts.models import User
from webapp.recipes.models import Recipe, RecipeVersion
from webapp.runs import services
from webapp.runs.models import Run
from webapp.runs.states import LIVING

USERNAME, RECIPE = "admin", "demo"


@dataclass(frozen=True)
class Demo:
    """What a person needs to watch it. Without a password: that login was there before."""

    run_id: str
    username: str
    password: str | None


def begin() -> Demo:
    """Make the login where there is no user; start the demo recipe where no run of it lives."""
    password = first_login()
    user = User.objects.filter(is_superuser=True, is_active=True).order_by("pk").first()
    if user is None:
        raise services.Refused("there is no administrator: make one with `python manage.py createsuperuser`")
    return Demo(living_run(user).pk, user.username, password)


def first_login() -> str | None:
    """The password of the login that was made, None where there is one already."""
    if User.objects.exists():
        return None
    password = secrets.token_urlsafe(12)
    accounts.create_first_user(username=USERNAME, password=password)
    return password


def living_run(user: User) -> Run:
    version = RecipeVersion.objects.filter(recipe=Recipe.objects.get(project=None, name=RECIPE)).latest("number")
    found = Run.objects.filter(recipe_version__recipe=version.recipe_id, state__in=LIVING).first()
    return found or services.create_run(
        user=user,
        project=accounts.default_project(user),
        recipe=EngineRecipe.model_validate(version.spec),
        toml=version.toml,
        version=version,
    )
