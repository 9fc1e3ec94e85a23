"""Recipes as TOML from people and from the engine's presets: read, refused with the line, kept as versions."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from django.core.management.sql import emit_post_migrate_signal
from django.db import connection

from tests.webapp.support import RECIPE, make_project
from webapp.recipes import services
from webapp.recipes.models import Recipe, RecipeVersion
from webapp.runs.services import WrongFields


def errors_of(toml: str) -> dict[str, str]:
    with pytest.raises(WrongFields) as caught:
        services.parse_toml(toml)
    return caught.value.errors


# --- reading


def test_a_recipe_is_read() -> None:
    assert services.parse_toml(RECIPE).name == "sample"


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ('name = "a"\nseed 3\n', "line 2, column 6: Expected '=' after a key"),
        ('name = "a"\nname = "b"\n', "line 2, column 11: Cannot overwrite a value"),
        ("name = ", "end of the text: Invalid value"),
        ('name = "\x00"', "line 1, column 9: Illegal character"),
        ("seed = " + "9" * 5000, "holds a value that cannot be"),
        ("at = 2026-02-30", "line 1, column 6: Invalid date"),
        ("notes = " + "[" * 100_000, "is nested too deeply"),
        ("# \ud800", "is not text: lone surrogate at character 3"),
        ("#" * (services.LONGEST + 1), "is longer than 262,144 characters"),
    ],
)
def test_text_that_is_no_toml_is_told_with_its_line(toml: str, said: str) -> None:
    errors = errors_of(toml)
    assert list(errors) == ["/"]
    assert errors["/"].startswith(said)


def test_wrong_fields_are_told_by_pointer() -> None:
    toml = RECIPE.replace("steps = 4", "steps = 0").replace("count = 8", "count = 1979-05-27")
    assert errors_of(toml).keys() == {"/stages/0/steps", "/stages/2/count"}


# --- versions


@pytest.fixture
def project(db: None) -> Any:
    return make_project()


def save(project: Any, toml: str = RECIPE, name: str = "mine") -> RecipeVersion:
    return services.save_version(user=project.owner, project=project, name=name, toml=toml)


def test_a_version_keeps_what_was_written_and_what_it_means(project: Any) -> None:
    version = save(project, "# What it is for.\n" + RECIPE)
    assert (version.number, version.recipe.name, version.created_by) == (1, "mine", project.owner)
    assert version.toml.startswith("# What it is for.\n")
    assert version.spec["stages"][1]["rollouts_per_problem"] == 4
    assert version.spec["learner"]["threads"] == 1, "defaults are filled in"
    assert version.digest == services.parse_toml(RECIPE).digest
    assert version.recipe.description == "What it is for."


def test_a_changed_recipe_is_the_next_version_and_an_equal_one_the_same(project: Any) -> None:
    first = save(project)
    assert save(project, "\n\n" + RECIPE) == first
    second = save(project, RECIPE.replace("steps = 4", "steps = 5"))
    assert (second.recipe, second.number) == (first.recipe, 2)
    assert save(project).number == 3, "going back is a version, too"


def test_a_recipe_without_a_comment_keeps_its_description(project: Any) -> None:
    save(project, "# Said before.\n" + RECIPE)
    assert save(project, RECIPE.replace("steps = 4", "steps = 5")).recipe.description == "Said before."


def test_saving_an_archived_recipe_brings_it_back(project: Any) -> None:
    recipe = save(project).recipe
    Recipe.objects.filter(pk=recipe.pk).update(archived_at=recipe.created_at)
    save(project)
    recipe.refresh_from_db()
    assert recipe.archived_at is None


def test_projects_do_not_share_names(project: Any) -> None:
    assert save(project).recipe != save(make_project()).recipe


@pytest.mark.parametrize("name", ["", "  ", "x" * 81, "a\0b"])
def test_a_name_that_cannot_be_is_refused(project: Any, name: str) -> None:
    with pytest.raises(WrongFields) as caught:
        save(project, name=name)
    assert caught.value.errors.keys() == {"/name"}


def test_a_wrong_recipe_leaves_nothing(project: Any) -> None:
    with pytest.raises(WrongFields):
        save(project, "name = 3", name="other")
    assert not Recipe.objects.filter(name="other").exists()


# --- presets


@pytest.fixture
def presets(tmp_path: Path) -> Path:
    folder = tmp_path / "recipes"
    shutil.copytree(services.PRESETS, folder)
    return folder


@pytest.mark.django_db
def test_presets_are_there_after_migrating() -> None:
    built_in = {recipe.name: recipe for recipe in Recipe.objects.filter(project=None)}
    assert built_in.keys() == {path.stem for path in services.PRESETS.glob("*.toml")}
    assert all(recipe.built_in and recipe.description for recipe in built_in.values())
    assert built_in["demo"].description.startswith("A tiny model learns to use Python")


@pytest.mark.django_db
def test_loading_presets_again_changes_nothing() -> None:
    before = list(RecipeVersion.objects.values_list("pk", flat=True))
    services.load_presets()
    assert list(RecipeVersion.objects.values_list("pk", flat=True)) == before


@pytest.mark.django_db
def test_a_changed_preset_is_a_new_version_and_its_comment_a_new_description(presets: Path) -> None:
    smoke = presets / "smoke.toml"
    smoke.write_text("# Another description.\n\n" + smoke.read_text().replace("steps = 150", "steps = 151"))
    services.load_presets(presets)
    recipe = Recipe.objects.get(project=None, name="smoke")
    assert (recipe.versions.count(), recipe.description) == (2, "Another description.")
    assert Recipe.objects.get(project=None, name="demo").versions.count() == 1


@pytest.mark.django_db
def test_a_preset_that_is_gone_is_archived_until_it_is_back(presets: Path) -> None:
    demo = (presets / "demo.toml").rename(presets / "demo.gone")
    services.load_presets(presets)
    assert list(Recipe.objects.filter(project=None, archived_at=None).values_list("name", flat=True)) == ["smoke"]
    demo.rename(presets / "demo.toml")
    services.load_presets(presets)
    assert Recipe.objects.filter(project=None, archived_at=None).count() == 2


@pytest.mark.django_db
def test_a_wrong_preset_names_its_file(presets: Path) -> None:
    (presets / "wrong.toml").write_text("name = 3")
    with pytest.raises(WrongFields) as caught:
        services.load_presets(presets)
    assert caught.value.__notes__ == [f"in the preset {presets / 'wrong.toml'}"]


@pytest.mark.django_db
def test_presets_wait_for_the_recipes_table() -> None:
    """A migration of other apps, or backwards, ends without one."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE recipes_recipe RENAME TO elsewhere")
    emit_post_migrate_signal(0, False, "default")
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE elsewhere RENAME TO recipes_recipe")
        cursor.execute("TRUNCATE recipes_recipe CASCADE")
    emit_post_migrate_signal(0, False, "default")
    assert Recipe.objects.filter(project=None).count() == 2
