"""What holds for every page: it is sound HTML with nothing inline, for its reader only, and costs few queries."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.contrib.staticfiles import finders
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tests.webapp.support import RECIPE, make_run, make_user
from tests.webapp.ui import rows
from tests.webapp.ui.markup import Page
from webapp.accounts.models import Project, User
from webapp.accounts.services import create_token
from webapp.config.ids import new_id
from webapp.datasets.models import Dataset, Problem
from webapp.recipes.models import Recipe
from webapp.recipes.services import save_version
from webapp.runs.models import Run
from webapp.ui.frame import product_version

pytestmark = [pytest.mark.django_db]

CASES = {case["id"]: case for case in map(json.loads, Path("tests/cases/platform.jsonl").read_text().splitlines())}
NOW = timezone.now()
# Page -> the most queries that it may cost, however many rows there are.
PAGES = {
    "runs": 5,
    "run": 11,
    "trajectories": 5,
    "trajectory": 10,
    "raw": 6,
    "choose": 4,
    "new": 6,
    "like a run": 5,
    "datasets": 4,
    "dataset": 7,
    "recipes": 4,
    "recipe": 6,
    "tokens": 4,
    "sandbox": 4,
}


@pytest.fixture
def addresses(project: Project) -> dict[str, str]:
    """Every page with rows of all kinds behind it."""
    run = make_run(project, state="running", latest={"reward": 0.5, "engine.vllm-0.load": 0.5, "lr": None}, x=5)
    rows.finish_evaluation(run)
    rows.log(run, "hello")
    row = rows.make_trajectory(run)
    rows.make_group(row)
    recipe = Recipe.objects.get(name="smoke", project=None)
    dataset = Dataset.objects.create(
        project=project, name="sums", version=1, sha256="0" * 64, count=1, created_by=project.owner
    )
    Problem.objects.create(dataset=dataset, position=1, text="1+1?", answer="2")
    return {
        "runs": "/",
        "run": f"/runs/{run.pk}",
        "trajectories": f"/runs/{run.pk}/trajectories",
        "trajectory": f"/trajectories/{row.pk}",
        "raw": f"/trajectories/{row.pk}?raw=1",
        "choose": "/runs/new",
        "new": f"/runs/new?recipe={recipe.pk}",
        "like a run": f"/runs/new?run={run.pk}",
        "datasets": "/datasets",
        "dataset": f"/datasets/{dataset.pk}",
        "recipes": "/recipes",
        "recipe": f"/recipes/{recipe.pk}",
        "tokens": "/tokens",
        "sandbox": "/sandbox",
    }


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_sound_and_allows_nothing_inline(name: str, client: Client, addresses: dict[str, str]) -> None:
    response = client.get(addresses[name])

    page, policy = Page(response.text), response["Content-Security-Policy"].split("; ")
    assert response.status_code == 200
    assert page.offences() == []
    assert page.doubled_ids() == []
    assert page.broken_references() == []
    assert len(page.all("h1")) == 1
    assert page.one("title").text.endswith(" · Starloom")
    assert page.one("a", class_="skip-link")["href"] == "#content"
    assert page.one("main")["id"] == "content"
    assert {"script-src 'self'", "style-src 'self'"} <= set(policy)
    assert "unsafe" not in " ".join(policy)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_costs_few_queries_however_many_rows(
    name: str, client: Client, project: Project, addresses: dict[str, str]
) -> None:
    client.get(addresses[name])
    with CaptureQueriesContext(connection) as few:
        client.get(addresses[name])
    add_rows(project, addresses)
    with CaptureQueriesContext(connection) as many:
        response = client.get(addresses[name])
    assert response.status_code == 200
    assert len(few) <= PAGES[name], [query["sql"] for query in few.captured_queries]
    assert len(many) <= len(few), [query["sql"] for query in many.captured_queries]


def add_rows(project: Project, addresses: dict[str, str]) -> None:
    """Four more of everything, beside and below what there is."""
    run = Run.objects.get(pk=addresses["run"].rpartition("/")[2])
    row = run.trajectories.get()
    rows.add_turns(row, [("assistant", "more")] * 4, first=3)
    dataset = Dataset.objects.get()
    for number in range(2, 6):
        rows.finish_evaluation(make_run(project, state="finished", datasets={"rl": dataset.pk}))
        rows.make_trajectory(run)
        rows.add_call(row, turn=3, position=number)
        rows.log(run, "more")
        run.attempts.create(number=number)
        run.checkpoints.create(id=new_id("ckpt"), attempt=1, stage="rl", step=number, path=f"{number}", created_at=NOW)
        run.transitions.create(before="running", after="paused", actor="ada")
        save_version(user=project.owner, project=project, name=f"recipe {number}", toml=RECIPE)
        Dataset.objects.create(
            project=project, name="sums", version=number, sha256="1" * 64, count=0, created_by=project.owner
        )
        dataset.problems.create(position=number, text="1+1?", answer="2")
        create_token(user=project.owner, name=f"token {number}", scopes=["runs:read"])


def test_pages_are_for_people_who_are_logged_in(addresses: dict[str, str]) -> None:
    for address in addresses.values():
        response = Client().get(address)

        assert response.status_code == 302
        assert response["Location"].startswith("/login?next=/")


@pytest.mark.parametrize("case", [pytest.param(CASES["F041"], id="F041")])
def test_somebody_elses_things_are_not_there(case: dict[str, Any], project: Project, addresses: dict[str, str]) -> None:
    own = save_version(user=project.owner, project=project, name="mine", toml=RECIPE)
    shared = {"runs", "choose", "new", "datasets", "recipes", "recipe", "tokens", "sandbox"}
    private = [address for name, address in addresses.items() if name not in shared]
    private += [f"/recipes/{own.recipe_id}", f"/runs/new?recipe={own.recipe_id}", addresses["trajectory"] + "/text"]
    stranger = Client()
    stranger.force_login(make_user("eve"))

    for address in private:
        response = stranger.get(address)
        assert response.status_code in case["expected"]["status"]
        assert "Nothing here" in response.text
    assert len(private) == 9


def test_a_stranger_sees_none_of_it_in_lists(project: Project, addresses: dict[str, str], client: Client) -> None:
    save_version(user=project.owner, project=project, name="private recipe", toml=RECIPE)
    Run.objects.update(name="private run")
    Dataset.objects.update(name="private data")
    stranger = Client()
    stranger.force_login(make_user("eve"))

    for address in ("/", "/datasets", "/recipes", "/runs/new"):
        assert "private" not in stranger.get(address).text
        assert "private" in client.get(address).text


@pytest.mark.parametrize("case", [pytest.param(CASES["F019"], id="F019")])
def test_nul_in_an_address_breaks_nothing(case: dict[str, Any], client: Client, addresses: dict[str, str]) -> None:
    named = ("q", "state", "before", "stage", "group", "error_type", "step", "recipe", "run", "version", "dataset")
    for address in addresses.values():
        query = "&".join(f"{name}=%00" for name in named)
        assert client.get(f"{address.partition('?')[0]}?{query}").status_code in case["expected"]["status"]


@pytest.mark.parametrize(
    "address", ["/runs/%00", "/runs/run_1", "/runs/run_" + "z" * 26, "/trajectories/x'", "/nowhere"]
)
def test_an_address_that_leads_nowhere_is_told_kindly(address: str, client: Client) -> None:
    response = client.get(address)

    assert response.status_code == 404
    page = Page(response.text)
    assert page.one("h1").text == "Nothing here"
    assert page.offences() == []
    assert page.all("nav", aria_label="Main")


def test_the_navigation_says_where_one_is(client: Client, addresses: dict[str, str]) -> None:
    def current(address: str) -> list[str]:
        return [one.text for one in Page(client.get(address).text).all("a", aria_current="page")]

    assert current("/") == current("/runs/new") == current(addresses["trajectory"]) == ["Runs"]
    assert current(addresses["dataset"]) == ["Datasets"]
    assert current("/recipes") == ["Recipes"]
    assert current("/tokens") == ["API tokens"]


def test_the_frame_has_project_version_and_a_way_out(client: Client, user: User) -> None:
    page = Page(client.get("/").text)

    assert "Project Sums" in page.words
    assert f"Starloom {product_version()}" in page.text
    assert page.one("form", action="/logout")["method"] == "post"


def test_the_theme_is_kept_on_the_user(client: Client) -> None:
    assert Page(client.get("/").text).one("html").attributes == {"lang": "en", "data-theme": "auto"}

    assert client.post("/theme", {"theme": "dark"}).status_code == 204

    root = Page(client.get("/").text).one("html")
    assert (root["data-theme"], root["data-bs-theme"]) == ("dark", "dark")
    assert client.post("/theme", {"theme": "pink"}).status_code == 400
    assert client.get("/theme").status_code == 405


def test_icons_that_pages_use_are_in_the_sprite(client: Client, addresses: dict[str, str]) -> None:
    sprite = Path(finders.find("ui/icons.svg") or "").read_text()
    used = {
        one["href"].partition("#")[2]
        for address in addresses.values()
        for one in Page(client.get(address).text).all("use")
    }
    assert len(used) > 15
    assert [name for name in used if f'id="{name}"' not in sprite] == []
