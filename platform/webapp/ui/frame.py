"""What every page shows around its content: navigation, project, theme, version.

Leaves out the look of it: ``templates/ui/base.html``.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from django.http import HttpRequest

from webapp.accounts import policies
from webapp.accounts.models import User
from webapp.config.paths import ROOT


@dataclass(frozen=True, slots=True)
class Place:
    """An entry of the navigation."""

    label: str
    address: str
    icon: str
    current: bool


@dataclass(frozen=True, slots=True)
class Frame:
    places: tuple[Place, ...]
    project: str
    theme: str
    version: str


# Label, address, icon, and the beginnings of addresses that belong to it.
_PLACES = (
    ("Runs", "/", "list-details", ("/runs", "/trajectories")),
    ("Datasets", "/datasets", "database", ("/datasets",)),
    ("Recipes", "/recipes", "notebook", ("/recipes",)),
    ("Sandbox", "/sandbox", "tool", ("/sandbox",)),
    ("API tokens", "/tokens", "key", ("/tokens",)),
    ("Setup check", "/setup", "checkup-list", ("/setup",)),
    ("API docs", "/api/docs", "api", ("/api",)),
)


def frame_of(request: HttpRequest) -> Frame:
    """The frame for this request; somebody who is not logged in has no places to go to."""
    user = request.user
    if not isinstance(user, User):
        return Frame((), "", "auto", product_version())
    project = policies.projects(user).filter(owner=user).first()
    return Frame(_places(request.path), project.name if project else "", user.theme, product_version())


def _places(path: str) -> tuple[Place, ...]:
    return tuple(
        Place(label, address, icon, path == address or path.startswith(below))
        for label, address, icon, below in _PLACES
    )


@cache
def product_version() -> str:
    """As installed, else as the clone says."""
    try:
        return version("starloom")
    except PackageNotFoundError:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        return str(project["project"]["version"])
