"""A new run by hand: fields or TOML, errors where they are, one run however often Start is pressed."""

from collections.abc import Callable
from typing import Any

import pytest
from django.core import signing
from django.test import Client

from tests.webapp.support import RECIPE, make_project, make_run, make_user
from tests.webapp.ui.markup import Page
from webapp.accounts.models import Project, User
from webapp.datasets.models import Dataset
from webapp.recipes.models import Recipe
from webapp.recipes.services import parse_toml, save_version
from webapp.runs.models import Run

pytestmark = [pytest.mark.django_db]
STEPS = "/stages/1/steps"


@pytest.fixture
def recipe(project: Project) -> Recipe:
    return save_version(user=project.owner, project=project, name="mine", toml="# As I like it.\n" + RECIPE).recipe


@pytest.fixture
def entries(client: Client, recipe: Recipe) -> dict[str, str]:
    """What a browser would send if nothing were changed."""
    return entries_of(Page(client.get(f"/runs/new?recipe={recipe.pk}").text))


def entries_of(page: Page) -> dict[str, str]:
    """Names and values of the form, as a browser sends them without any button."""
    found = {}
    for one in page.elements:
        if one.tag == "input" and one.get("type") != "checkbox" and one.get("name"):
            found[one["name"]] = one.get("value")
        elif one.tag == "textarea":
            found[one["name"]] = one.text.removeprefix("\n").replace("\n", "\r\n")
    for one in page.all("input", type="checkbox"):
        if "checked" in one.attributes:
            found[one["name"]] = one["value"]
    return found | selected(page)


def selected(page: Page) -> dict[str, str]:
    """Selects come after their options, so the last chosen option before one is its value."""
    found, chosen, first = {}, None, None
    for one in page.elements:
        if one.tag == "option":
            first = one if first is None else first
            chosen = one if "selected" in one.attributes else chosen
        elif one.tag == "select":
            value = chosen or first
            found[one["name"]] = "" if value is None else value.attributes.get("value", value.text)
            chosen = first = None
    return found


def start(client: Client, entries: dict[str, str], **changes: str) -> Any:
    return client.post("/runs/new", entries | changes | {"start": "1"})


def test_first_one_chooses_among_recipes(client: Client, recipe: Recipe) -> None:
    page = Page(client.get("/runs/new").text)

    links = [one["href"] for one in page.all("a") if one.get("href").startswith("/runs/new?recipe=")]
    assert f"/runs/new?recipe={recipe.pk}" in links
    assert len(links) == Recipe.objects.count() >= 3
    assert "As I like it." in page.text


def test_an_unchanged_form_starts_the_recipe_as_it_was_written(
    client: Client,
    entries: dict[str, str],
    recipe: Recipe,
    queued_tasks: list[tuple[Any, ...]],
    django_capture_on_commit_callbacks: Callable[..., Any],
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        response = start(client, entries)

    run = Run.objects.get()
    version = recipe.versions.get()
    assert response["Location"] == f"/runs/{run.pk}"
    assert (run.name, run.digest, run.toml) == ("sample", version.digest, version.toml)
    assert run.recipe_version == version
    assert queued_tasks == [("start_run", run.pk)]


def test_a_changed_field_is_in_the_run(client: Client, entries: dict[str, str]) -> None:
    start(client, entries, **{STEPS: "25", "run_name": "longer"})

    run = Run.objects.get()
    assert run.spec["stages"][1]["steps"] == 25
    assert parse_toml(run.toml).digest == run.digest
    assert run.name == "longer"


def test_the_form_describes_every_field(client: Client, recipe: Recipe) -> None:
    page = Page(client.get(f"/runs/new?recipe={recipe.pk}").text)

    steps = page.by_id("field-stages-1-steps")
    assert steps.attributes | {"value": "10", "inputmode": "numeric", "name": STEPS} == steps.attributes
    assert "Rollout batches, each with its update. Required." in page.by_id("field-stages-1-steps-help").text
    assert "Default 12." in page.by_id("field-stages-1-problems_per_step-help").text
    assert page.by_id("field-stages-1-scale_by_informative")["type"] == "checkbox"
    assert page.offences() == []
    assert page.broken_references() == []
    assert page.doubled_ids() == []


def test_wrong_fields_are_told_beside_the_field_and_in_a_summary(client: Client, entries: dict[str, str]) -> None:
    wrong = {STEPS: "-3", "/stages/1/temperature": "hot <b>", "/learner/threads": "", "run_name": "keep me"}

    response = start(client, entries, **wrong)

    page = Page(response.text)
    assert response.status_code == 422
    assert Run.objects.count() == 0
    for pointer in (STEPS, "/stages/1/temperature", "/learner/threads"):
        name = "field" + pointer.replace("/", "-")
        field = page.by_id(name)
        assert field["value"] == wrong[pointer]
        assert field["aria-invalid"] == "true"
        assert f"{name}-error" in field["aria-describedby"].split()
        assert page.by_id(f"{name}-error").text.strip()
        assert len(page.all("a", href=f"#{name}")) == 1
    assert page.one("div", id="errors")["role"] == "alert"
    assert "3 things to mend" in page.by_id("errors").text
    assert page.by_id("run-name")["value"] == "keep me"
    assert page.offences() == []
    assert page.broken_references() == []


def test_a_part_with_an_error_is_open(client: Client, entries: dict[str, str]) -> None:
    page = Page(start(client, entries, **{"/learner/threads": "none"}).text)

    opened = [one.text.split()[0] for one in page.all("details") if "open" in one.attributes]
    assert opened == ["Recipe", "Learner"]


def test_what_was_mended_starts(client: Client, entries: dict[str, str]) -> None:
    again = entries_of(Page(start(client, entries, **{STEPS: "many", "run_name": "kept"}).text))

    assert start(client, again, **{STEPS: "7"}).status_code == 302
    assert Run.objects.get().spec["stages"][1]["steps"] == 7
    assert Run.objects.get().name == "kept"


def test_a_checkbox_can_be_switched_off(client: Client, entries: dict[str, str]) -> None:
    name = "/stages/1/scale_by_informative"
    assert entries[name] == "true"

    start(client, entries, **{name: "false"})

    assert Run.objects.get().spec["stages"][1]["scale_by_informative"] is False


def test_both_tabs_say_the_same_recipe(client: Client, entries: dict[str, str]) -> None:
    as_toml = Page(client.post("/runs/new", entries | {STEPS: "25", "to": "toml"}).text)
    toml = entries_of(as_toml)
    assert "steps = 25" in toml["toml"]
    assert toml["tab"] == "toml"

    changed = toml["toml"].replace("steps = 25", "steps = 30")
    as_form = entries_of(Page(client.post("/runs/new", toml | {"toml": changed, "to": "form"}).text))
    assert as_form[STEPS] == "30"
    assert as_form["tab"] == "form"

    start(client, as_form)
    assert Run.objects.get().spec["stages"][1]["steps"] == 30


def test_an_unchanged_recipe_keeps_its_comments_from_tab_to_tab(client: Client, entries: dict[str, str]) -> None:
    toml = entries_of(Page(client.post("/runs/new", entries | {"to": "toml"}).text))
    assert toml["toml"].startswith("# As I like it.")

    form = entries_of(Page(client.post("/runs/new", toml | {"to": "form"}).text))
    start(client, form)

    assert Run.objects.get().toml.startswith("# As I like it.")


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("steps = = 1", "line 1"),
        (RECIPE.replace("steps = 10", "steps = 0"), "/stages/1/steps"),
        (RECIPE.replace("steps = 10", "stepz = 10"), "did you mean steps"),
        ("", "required"),
        ("a\x00b = 1", "line 1"),
    ],
)
@pytest.mark.parametrize("button", [{"start": "1"}, {"to": "form"}])
def test_toml_that_cannot_be_stays_with_what_is_wrong(
    toml: str, said: str, button: dict[str, str], client: Client, user: User
) -> None:
    key = signing.dumps(["run_" + "0" * 26, user.pk], salt="starloom.new-run")
    sent = {"key": key, "tab": "toml", "toml": toml} | button

    page = Page(client.post("/runs/new", sent).text)

    assert said in page.by_id("errors").text
    assert page.by_id("toml").text.removeprefix("\n") == toml
    assert page.by_id("toml")["aria-describedby"] == "errors"
    assert Run.objects.count() == 0


def test_form_to_toml_with_a_wrong_field_stays_in_the_form(client: Client, entries: dict[str, str]) -> None:
    page = Page(client.post("/runs/new", entries | {STEPS: "many", "to": "toml"}).text)

    assert page.one("input", name="tab")["value"] == "form"
    assert page.by_id("field-stages-1-steps")["value"] == "many"
    assert page.by_id("field-stages-1-steps-error").text


def test_another_kind_shows_its_own_fields(client: Client, entries: dict[str, str]) -> None:
    kind = "/stages/1/downsampling/kind"
    assert "/stages/1/downsampling/eps" in entries

    response = client.post("/runs/new", entries | {kind: "uniform", "to": "form"}, headers={"HX-Trigger-Name": kind})

    page = Page(response.text)
    names = entries_of(page)
    assert "open" in page.by_id("part-stages-1").attributes
    assert "open" not in page.by_id("part-stages-0").attributes
    assert names[kind] == "uniform"
    assert "/stages/1/downsampling/eps" not in names
    assert "/stages/1/downsampling/min_per_class" in names


def test_start_pressed_twice_makes_one_run(client: Client, entries: dict[str, str]) -> None:
    first, second = start(client, entries), start(client, entries)

    assert first["Location"] == second["Location"] == f"/runs/{Run.objects.get().pk}"


def test_the_page_of_a_started_run_starts_another_only_after_saying_so(client: Client, entries: dict[str, str]) -> None:
    start(client, entries)

    again = start(client, entries, **{STEPS: "11"})
    assert Run.objects.count() == 1
    assert "has started sample before" in again.text

    start(client, entries_of(Page(again.text)))
    assert sorted(run.spec["stages"][1]["steps"] for run in Run.objects.all()) == [10, 11]


def test_a_key_of_somebody_else_or_of_nobody_starts_nothing(
    client: Client, entries: dict[str, str], project: Project
) -> None:
    foreign = signing.dumps(["run_" + "0" * 26, make_user("eve").pk], salt="starloom.new-run")

    for key in (foreign, "", "x" * 50, signing.dumps("?", salt="starloom.new-run")):
        response = start(client, entries, key=key)
        assert "look at it once more" in response.text.lower()
        assert Run.objects.count() == 0
    assert start(client, entries_of(Page(response.text))).status_code == 302


def test_problems_come_from_the_chosen_dataset(client: Client, entries: dict[str, str], project: Project) -> None:
    dataset = make_dataset(project)
    assert entries["dataset:rl"] == entries["dataset:eval"] == ""

    start(client, entries, **{"dataset:rl": dataset.pk})

    assert Run.objects.get().datasets == {"rl": dataset.pk}


def test_a_dataset_that_one_does_not_see_is_refused(client: Client, entries: dict[str, str]) -> None:
    foreign = make_dataset(make_project())

    response = start(client, entries, **{"dataset:rl": foreign.pk, "dataset:gone": foreign.pk})

    page = Page(response.text)
    assert response.status_code == 422
    assert "Dataset of rl: no such dataset" in page.by_id("errors").text
    assert foreign.name not in response.text
    assert Run.objects.count() == 0


def test_a_run_with_a_dataset_begins_at_its_page(client: Client, recipe: Recipe, project: Project) -> None:
    dataset = make_dataset(project)

    entries = entries_of(Page(client.get(f"/runs/new?recipe={recipe.pk}&dataset={dataset.pk}").text))

    assert (entries["dataset:rl"], entries["dataset:eval"]) == (dataset.pk, "")


def test_the_like_of_a_run_has_its_recipe_name_and_datasets(client: Client, project: Project) -> None:
    dataset = make_dataset(project)
    run = make_run(project, state="failed", name="first", datasets={"eval": dataset.pk})

    entries = entries_of(Page(client.get(f"/runs/new?run={run.pk}").text))

    assert entries["run_name"] == "first"
    assert entries["dataset:eval"] == dataset.pk
    assert entries[STEPS] == "10"


def test_an_older_version_can_be_run(client: Client, recipe: Recipe, project: Project) -> None:
    save_version(user=None, project=project, name="mine", toml=RECIPE.replace("steps = 10", "steps = 99"))

    newest = entries_of(Page(client.get(f"/runs/new?recipe={recipe.pk}").text))
    older = entries_of(Page(client.get(f"/runs/new?recipe={recipe.pk}&version=1").text))

    assert (newest[STEPS], older[STEPS]) == ("99", "10")


def make_dataset(project: Project) -> Dataset:
    return Dataset.objects.create(
        project=project, name="olympiad", version=1, sha256="0" * 64, count=3, created_by=project.owner
    )
