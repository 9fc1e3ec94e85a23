"""Recipes: reading TOML, saving versions, the built-in presets. Leaves out the form (``forms.py``), the writing of
TOML (``toml_text.py``) and what a recipe may be: ``engine.contract.job`` and ``runs.services.check_recipe``.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

from django.apps import AppConfig
from django.db import connection, transaction
from django.utils import timezone

import engine
from engine.contract.job import Recipe as RecipeSpec
from webapp.accounts.models import Project, User
from webapp.recipes.models import Recipe, RecipeVersion
from webapp.recipes.pointers import WHOLE
from webapp.recipes.toml_text import description_of
from webapp.runs.services import WrongFields, check_recipe

PRESETS = Path(engine.__file__).parent / "recipes"
LONGEST = 256 * 1024
"""Characters of TOML."""

_AT = re.compile(r"(?P<what>.*) \(at (?:(?P<place>line \d+, column \d+)|(?P<end>end of document))\)", re.DOTALL)


def parse_toml(text: str) -> RecipeSpec:
    """The recipe that the TOML says. Raises ``WrongFields``: with ``/`` and the line where it is no TOML, else with
    a pointer for every wrong field."""
    return check_recipe(read_toml(text))


def read_toml(text: str) -> dict[str, Any]:
    """The data in the TOML, as yet unjudged. Raises ``WrongFields`` with ``/`` and the line."""
    if len(text) > LONGEST:
        raise WrongFields({WHOLE: f"is longer than {LONGEST:,} characters"})
    try:
        text.encode()
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise WrongFields({WHOLE: _with_line(str(error))}) from error
    except UnicodeEncodeError as error:
        raise WrongFields({WHOLE: f"is not text: lone surrogate at character {error.start + 1}"}) from error
    except RecursionError as error:
        raise WrongFields({WHOLE: "is nested too deeply"}) from error
    except ValueError as error:  # a number of thousands of digits, a 13th month
        raise WrongFields({WHOLE: f"holds a value that cannot be: {error}"}) from error


def _with_line(said: str) -> str:
    found = _AT.fullmatch(said)
    if found is None:
        return f"is not TOML: {said}"
    return f"{found['place'] or 'end of the text'}: {found['what']}"


def save_version(*, user: User | None, project: Project | None, name: str, toml: str) -> RecipeVersion:
    """A version of the project's recipe of that name, which is made where there is none. The same recipe as in the
    latest version is that version. ``project`` None: built in. Raises ``WrongFields``."""
    name = name.strip()
    if not 1 <= len(name) <= 80 or "\0" in name:
        raise WrongFields({"/name": "expected a name of 1 to 80 characters"})
    spec = parse_toml(toml)
    with transaction.atomic():
        made, _ = Recipe.objects.get_or_create(project=project, name=name)
        recipe = Recipe.objects.select_for_update().get(pk=made.pk)
        _describe(recipe, toml)
        latest = recipe.versions.first()
        if latest is not None and latest.digest == spec.digest:
            return latest
        return RecipeVersion.objects.create(
            recipe=recipe,
            number=latest.number + 1 if latest else 1,
            toml=toml,
            spec=spec.model_dump(mode="json"),
            digest=spec.digest,
            created_by=user,
        )


def _describe(recipe: Recipe, toml: str) -> None:
    """What the TOML says of itself; one without a comment leaves what was said before. A saved recipe is in use."""
    recipe.description = description_of(toml) or recipe.description
    recipe.archived_at = None
    recipe.save(update_fields=["description", "archived_at"])


def load_presets(folder: Path = PRESETS) -> list[RecipeVersion]:
    """Make the built-in recipes what the engine's presets are: a changed preset is a new version, one that is gone is
    archived. Safe to repeat."""
    versions = [_load_preset(file) for file in sorted(folder.glob("*.toml"))]
    gone = Recipe.objects.filter(project=None, archived_at=None).exclude(pk__in=[each.recipe_id for each in versions])
    gone.update(archived_at=timezone.now())
    return versions


def _load_preset(file: Path) -> RecipeVersion:
    toml = file.read_text(encoding="utf-8")
    try:
        return save_version(user=None, project=None, name=parse_toml(toml).name, toml=toml)
    except WrongFields as error:
        error.add_note(f"in the preset {file}")
        raise


def load_presets_after_migration(sender: AppConfig, using: str, **kwargs: object) -> None:
    """Receiver of ``post_migrate``, which comes after a migration backwards, too: then there is no table."""
    if using == "default" and Recipe._meta.db_table in connection.introspection.table_names():
        load_presets()
