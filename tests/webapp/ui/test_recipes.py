"""Recipes: the built-in ones, and versions of one's own saved from TOML."""

import pytest
from django.test import Client

from tests.webapp.support import RECIPE, make_run
from tests.webapp.ui.markup import Page
from webapp.accounts.models import Project
from webapp.recipes.models import Recipe
from webapp.recipes.services import save_version

pytestmark = [pytest.mark.django_db]


def built_in() -> Recipe:
    return Recipe.objects.get(name="smoke", project=None)


def test_the_list_has_what_is_built_in_and_what_is_ones_own(client: Client, project: Project) -> None:
    save_version(user=project.owner, project=project, name="mine", toml=RECIPE)

    page = Page(client.get("/recipes").text)

    titles = [one.text for one in page.all("a") if one.get("href").startswith("/recipes/rcp_")]
    assert titles[0] == "mine"
    assert {"demo", "smoke"} <= set(titles[1:])


def test_a_built_in_recipe_is_shown_and_saved_under_another_name(client: Client, project: Project) -> None:
    page = Page(client.get(f"/recipes/{built_in().pk}").text)
    assert 'kind = "tiny-qwen3"' in page.one("div", class_="code-block").text
    assert page.by_id("id_name")["value"] == "my-smoke"
    toml = page.by_id("id_toml").text

    response = client.post(f"/recipes/{built_in().pk}", {"name": "my-smoke", "toml": toml + "\n# mine"})

    made = Recipe.objects.get(name="my-smoke")
    assert response["Location"] == f"/recipes/{made.pk}"
    assert made.project == project
    assert made.versions.get().toml.endswith("# mine")


def test_another_version_of_ones_own(client: Client, project: Project) -> None:
    recipe = save_version(user=project.owner, project=project, name="mine", toml=RECIPE).recipe

    client.post(f"/recipes/{recipe.pk}", {"name": "mine", "toml": RECIPE.replace("steps = 10", "steps = 11")})

    assert [version.number for version in recipe.versions.all()] == [2, 1]
    assert "steps = 11" in client.get(f"/recipes/{recipe.pk}").text
    older = Page(client.get(f"/recipes/{recipe.pk}?version=1").text)
    assert "steps = 10" in older.one("div", class_="code-block").text
    assert older.all("a", href=f"/runs/new?recipe={recipe.pk}&version=1")


def test_toml_that_cannot_be_is_told_and_kept(client: Client, project: Project) -> None:
    wrong = RECIPE.replace("steps = 10", "steps = 0")

    response = client.post(f"/recipes/{built_in().pk}", {"name": "mine", "toml": wrong})

    page = Page(response.text)
    assert response.status_code == 422
    assert "/stages/1/steps" in page.by_id("toml-errors").text
    assert page.by_id("id_toml").text == wrong
    assert page.by_id("id_toml")["aria-describedby"] == "toml-errors"
    assert page.by_id("id_name")["value"] == "mine"
    assert not Recipe.objects.filter(name="mine").exists()


def test_a_recipe_names_its_runs(client: Client, project: Project) -> None:
    version = built_in().versions.get()
    make_run(project, name="a run of it", recipe_version=version)

    assert "a run of it v1" in Page(client.get(f"/recipes/{built_in().pk}").text).words
