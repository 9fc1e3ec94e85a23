"""The list of runs and the page of one."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from tests.webapp.support import make_run
from tests.webapp.ui import rows
from tests.webapp.ui.markup import Page
from webapp.accounts.models import Project
from webapp.recipes.models import RecipeVersion
from webapp.runs.models import Run
from webapp.runs.states import State, allowed_commands
from webapp.ui.views import runs as views
from webapp.ui.wording import NOTHING

pytestmark = [pytest.mark.django_db]
CASES = {case["id"]: case for case in map(json.loads, Path("tests/cases/platform.jsonl").read_text().splitlines())}
LATEST = {"reward": 0.4375, "tool_error_rate": 0.213, "response_tokens": 88.4}


def names(response: Any) -> list[str]:
    page = Page(response.text)
    return [one.text for one in page.all("a") if one.get("id").startswith("link-run_")]


def test_an_empty_list_teaches_how_to_start(client: Client) -> None:
    page = Page(client.get("/").text)

    version = RecipeVersion.objects.filter(recipe__name="demo").first()
    assert version is not None
    assert page.one("h2").text == "No runs yet"
    assert page.all("a", href="/runs/new")
    assert f'{{"recipe_version": "{version.pk}"}}' in page.by_id("first-run-curl").text
    assert page.by_id("first-run-cli").text == "python -m engine run engine/recipes/demo.toml --out runs/demo"


def test_a_row_says_where_a_run_stands(client: Client, project: Project) -> None:
    run = make_run(project, state="running", stage="rl", step=3, x=7, latest=LATEST)
    rows.finish_evaluation(run)

    cells = [one for one in Page(client.get("/").text).all("td") if one.get("data-label")]

    assert [" ".join(one.text.split()) for one in cells][:9] == [
        "running", "sample", "of its own", "rl", "7 / 14 7", "0.438", "50.0%", "21.3%", "88.4",
    ]  # fmt: skip


def test_a_run_without_figures_has_dashes_not_zeros(client: Client, project: Project) -> None:
    make_run(project)

    cells = [one.text.strip() for one in Page(client.get("/").text).all("td", class_="num")]
    assert cells == [NOTHING] * 4


def test_a_figure_that_is_no_number_is_said(client: Client, project: Project) -> None:
    make_run(project, latest={"reward": None, "tool_error_rate": 0.0})

    cells = [one.text.strip() for one in Page(client.get("/").text).all("td", class_="num")]
    assert cells[0] == NOTHING
    assert cells[2] == "0.0%"


def test_the_list_is_filtered_by_state_and_text(client: Client, project: Project) -> None:
    make_run(project, state="running", name="first try")
    make_run(project, state="failed", name="second try")
    by_id = make_run(project, state="finished", name="third")

    assert names(client.get("/?state=running")) == ["first try"]
    assert names(client.get("/?state=living")) == ["first try"]
    assert names(client.get("/?q=TRY")) == ["second try", "first try"]
    assert names(client.get(f"/?q={by_id.pk}")) == ["third"]
    assert names(client.get("/?state=failed&q=first")) == []


def test_a_filter_without_matches_offers_to_clear_it(client: Client, project: Project) -> None:
    make_run(project)

    page = Page(client.get("/?q=nothing+like+it").text)

    assert "No run matches this filter." in page.text
    assert page.one("input", name="q")["value"] == "nothing like it"


@pytest.mark.parametrize("case", [pytest.param(CASES["F027"], id="F027")])
def test_paging_shows_every_run_once_while_runs_are_made(
    case: dict[str, Any], client: Client, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "PAGE_SIZE", 3)
    for number in range(8):
        make_run(project, name=f"run {number}")
    seen, address = [], "/"
    while address:
        page = client.get(address)
        seen += names(page)
        make_run(project, name="meanwhile")
        older = Page(page.text).all("a", rel="next")
        address = "/" + older[0]["href"] if older else ""

    assert seen == [f"run {number}" for number in reversed(range(8))]
    assert len(seen) - len(set(seen)) == case["expected"]["duplicates"]


def test_paging_back_leads_to_where_one_came_from(
    client: Client, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "PAGE_SIZE", 2)
    for number in range(5):
        make_run(project, name=f"run {number}")
    first = client.get("/?q=run")
    second = client.get("/" + Page(first.text).one("a", rel="next")["href"])

    back = client.get("/" + Page(second.text).one("a", rel="prev")["href"])

    assert names(back) == names(first) == ["run 4", "run 3"]


def test_the_list_asks_again_only_while_a_run_lives(client: Client, project: Project) -> None:
    run = make_run(project, state="running")
    body = Page(client.get("/?state=").text).by_id("run-rows")
    assert body["hx-trigger"] == "every 5s"
    assert body["hx-get"] == "/?state="

    Run.objects.filter(pk=run.pk).update(state="finished")

    part = client.get(body["hx-get"], headers={"HX-Request": "true", "HX-Target": "run-rows"})
    assert part.text.strip().startswith("<tbody")
    assert "hx-trigger" not in Page(part.text).by_id("run-rows").attributes


@pytest.mark.parametrize("state", State.values)
def test_a_runs_page_has_its_state_in_words_and_what_may_be_asked_of_it(
    state: str, client: Client, project: Project
) -> None:
    run = make_run(project, state=state, stage="rl", x=7)

    page = Page(client.get(f"/runs/{run.pk}").text)

    assert page.one("sl-run").attributes == {"run-id": run.pk, "cursor": str(run.revision)}
    assert page.one("span", data_field="state").attributes == {
        "class": "state",
        "data-state": state,
        "data-field": "state",
    }
    notes = {one["data-for"] for one in page.elements if one.get("data-for")}
    assert state in notes | {"running", "finished"}
    assert page.one("div", class_="state-notes")["data-state"] == state
    buttons = [one for one in page.all("button") if one.get("data-command")]
    enabled = {one["data-command"] for one in buttons if "disabled" not in one.attributes}
    assert enabled == set(allowed_commands(State(state)))
    progress = page.one("progress", data_role="progress")
    assert (progress["value"], progress["max"]) == ("7", "14")


def test_a_failed_run_says_why_and_what_to_do(client: Client, project: Project) -> None:
    run = make_run(project, state="failed", state_reason="EngineUnavailable: no kernel image")
    rows.log(run, "loading", "no kernel image <b>", level="error")

    page = Page(client.get(f"/runs/{run.pk}").text)

    alert = page.one("div", data_for="failed")
    assert alert["role"] == "alert"
    assert "EngineUnavailable: no kernel image" in alert.text
    assert "error no kernel image <b>" in alert.text
    assert "Resume" in alert.text


def test_figures_of_evaluations_stand_in_a_table(client: Client, project: Project) -> None:
    run = make_run(project, state="finished")
    rows.finish_evaluation(
        run, **{"pass@1_greedy": 0.625, "tool_error_rate": 0.1, "response_tokens": 91.25, "truncated_share": 0.0}
    )

    page = Page(client.get(f"/runs/{run.pk}").text)

    cells = [" ".join(one.text.split()) for one in page.all("td", class_="num") if one.get("data-label")]
    assert cells == ["50.0% ± 10.0%", "62.5%", "10.0%", "91.2", "0.0%"]
    assert page.all("a", href=f"/runs/{run.pk}/trajectories?stage=eval")


def test_latest_values_are_there_without_any_script(client: Client, project: Project) -> None:
    run = make_run(project, state="running", latest=LATEST | {"engine.vllm-0.load": 0.25, "lr": None})

    page = Page(client.get(f"/runs/{run.pk}").text)

    values = [one for one in page.all("dd") if one.get("data-field").startswith("latest.")]
    shown = {one["data-field"]: (one.text, one["data-format"]) for one in values}
    assert shown["latest.reward"] == ("0.438", "number")
    assert shown["latest.tool_error_rate"] == ("21.3%", "percent")
    assert shown["latest.engine.vllm-0.load"] == ("0.25", "number")
    assert shown["latest.lr"] == (NOTHING, "number")


def test_history_recipe_and_calls_are_on_the_page(client: Client, project: Project) -> None:
    run = make_run(project, state="running")
    run.transitions.create(before="running", after="paused", reason="lunch", actor="ada")
    run.checkpoints.create(
        id="ckpt_1", attempt=1, stage="sft", step=4, path="checkpoints/1/sft-4", created_at=run.created_at
    )

    page = Page(client.get(f"/runs/{run.pk}").text)

    assert "paused ada lunch" in page.words
    assert "checkpoints/1/sft-4" in page.words
    assert 'kind = "tiny-qwen3"' in page.words
    assert f"/api/v1/runs/{run.pk}/updates?since=0" in page.by_id("api-call-text").text


@pytest.mark.parametrize("case", [pytest.param(CASES["F077"], id="F077")])
def test_a_name_is_text(case: dict[str, Any], client: Client, project: Project) -> None:
    name = case["input"]["run_name"]
    run = make_run(project, state="failed", name=name, state_reason=name, stage=name[:50])

    for address in ("/", f"/runs/{run.pk}", f"/runs/{run.pk}/trajectories"):
        page = Page(client.get(address).text)
        assert page.offences() == []
        assert name in page.text
        assert [one for one in page.all("img") if one.get("src") == "x"] == []
