"""What people do with Starloom, in a real browser on a real platform: one test a journey.

`test_a_run_...` is the long one: the smoke recipe with real DeepSpeed and sandbox, started, watched, paused, resumed,
stopped and resumed again, after which page, REST, Postgres and run folder say the same. With real vLLM it takes
minutes and is for ``make test-long``; pages cannot tell it from the scripted engine, which the others use as well.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import PageProblems
from tests.stack import PASSWORD, Stack, assert_agreement

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SMOKE_STEPS = {"sft": 150, "rl": 12}
# The smoke recipe without what takes minutes: sampling by a model that was trained for it.
SCRIPTED = {
    'kind = "tiny-qwen3"': 'kind = "tiny-qwen3"\n[rollout]\nkind = "scripted"',
    "steps = 150": "steps = 6",
    "steps = 12": "steps = 24\nmax_logprob_gap = 1e9",
    "max_response_tokens = 128": "max_response_tokens = 300",
}
SCRIPTED_STEPS = {"sft": 6, "rl": 24}


@pytest.fixture
def base_url(platform_stack: Stack) -> str:
    return platform_stack.url


@pytest.fixture
def logged_in(page: Page) -> Page:
    page.goto("/login")
    page.get_by_label("Username").fill("admin")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_url(re.compile(r"/$"))
    return page


def state(page: Page, name: str, seconds: float = 60) -> None:
    """The page itself comes to show the state: nothing is loaded anew."""
    expect(page.locator("h1 ~ p [data-field=state]")).to_have_text(name, timeout=seconds * 1000)


def drawn(page: Page, chart: str, trace: int = 0) -> dict[int, float | None]:
    """x -> y of what a chart draws now."""
    page.locator(f"[data-chart='{chart}']").scroll_into_view_if_needed()
    points = page.evaluate(
        """([chart, trace]) => {
            const figure = document.querySelector(`[data-chart='${chart}'] .sl-chart-figure`);
            const line = figure && figure.data && figure.data[trace];
            return line ? [Array.from(line.x), Array.from(line.y)] : [[], []];
        }""",
        [chart, trace],
    )
    return dict(zip(points[0], points[1], strict=True))


def until(page: Page, look: Callable[[], Any], seconds: float, otherwise: Callable[[], str] | str) -> Any:
    """Wait for what the page comes to show, letting it work meanwhile."""
    for _ in range(int(seconds * 5)):
        if found := look():
            return found
        page.wait_for_timeout(200)
    raise AssertionError(otherwise if isinstance(otherwise, str) else otherwise())


def run_id_of(page: Page) -> str:
    return page.url.rstrip("/").rpartition("/")[2]


def command(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).first.click()


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        pytest.param(SCRIPTED, SCRIPTED_STEPS, id="scripted"),
        pytest.param({}, SMOKE_STEPS, id="vllm", marks=pytest.mark.long),
    ],
)
def test_a_run_is_started_watched_steered_and_read(
    logged_in: Page,
    platform_stack: Stack,
    page_problems: PageProblems,
    changes: dict[str, str],
    steps: dict[str, int],
) -> None:
    page = logged_in
    start_smoke_by_the_form(page, platform_stack, changes)
    assert page_problems.take("422"), "the wrong value was answered as one"
    run_id = run_id_of(page)
    page.evaluate("window.stayed = true")
    state(page, "running", 120)
    expect(page.locator("sl-connection")).to_contain_text("live")
    page.locator("[data-chart='reward']").scroll_into_view_if_needed()
    until(page, lambda: len(drawn(page, "reward")) >= 2, 240, "the reward chart never grew")
    command(page, "Pause")
    state(page, "paused")
    held = platform_stack.run(run_id)["x"]
    command(page, "Resume")
    state(page, "running")
    until(page, lambda: platform_stack.run(run_id)["x"] > held, 60, "the run never went on")
    stop_with_a_reason(page, "enough seen")
    state(page, "stopped")
    assert platform_stack.run(run_id)["state_reason"].startswith("enough seen")
    command(page, "Resume")
    state(page, "running", 120)
    state(page, "finished", 300)
    assert page.evaluate("window.stayed"), "the page was never loaded anew"
    everybody_says_the_same(page, platform_stack, run_id, steps)
    read_a_trajectory_with_a_tool_call(page, platform_stack, run_id)


def start_smoke_by_the_form(page: Page, stack: Stack, changes: dict[str, str]) -> None:
    """Through a wrong value, told beside the field and on top, and the TOML tab, where texts are changed; started by a
    double click."""
    before = len(stack.api.get("/runs").json()["results"])
    page.get_by_role("link", name="New run").first.click()
    page.get_by_role("link", name="Choose smoke").click()
    field = page.locator("[name='/stages/2/rollouts_per_problem']")
    page.locator("details", has=field).locator("summary").first.click()
    field.fill("1")
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#errors")).to_contain_text("Rollouts per problem")
    expect(field).to_have_attribute("aria-invalid", "true")
    field.fill("12")
    page.get_by_role("button", name="TOML", exact=True).click()
    expect(page.locator("#toml")).to_have_value(re.compile("rollouts_per_problem = 12"))
    toml = page.locator("#toml").input_value()
    for old, new in changes.items():
        assert toml.count(old) == 1, old
        toml = toml.replace(old, new)
    page.locator("#toml").fill(toml)
    page.get_by_role("button", name="Form", exact=True).click()
    expect(field).to_have_value("12")
    page.get_by_role("button", name="Start").dblclick()
    expect(page).to_have_url(re.compile(r"/runs/run_\w+$"))
    assert len(stack.api.get("/runs").json()["results"]) == before + 1


def stop_with_a_reason(page: Page, reason: str) -> None:
    command(page, "Stop")
    dialog = page.get_by_role("dialog", name="Stop this run?")
    dialog.get_by_label("Reason").fill(reason)
    dialog.get_by_role("button", name="Stop the run").click()


def everybody_says_the_same(page: Page, stack: Stack, run_id: str, steps: dict[str, int]) -> None:
    """REST, Postgres and run folder on every step; then the page's chart against REST."""
    assert_agreement(stack, run_id, steps)
    series = stack.api.get(f"/runs/{run_id}/series", params={"keys": "reward"}).json()["series"]["reward"]
    rest = pytest.approx(dict(zip(series["x"], series["last"], strict=True)), rel=1e-5)  # figures have six digits
    until(page, lambda: drawn(page, "reward") == rest, 20, lambda: f"chart {drawn(page, 'reward')}, REST {rest}")
    page.reload()
    until(page, lambda: drawn(page, "reward") == rest, 20, lambda: f"drawn afresh {drawn(page, 'reward')}, REST {rest}")


def read_a_trajectory_with_a_tool_call(page: Page, stack: Stack, run_id: str) -> None:
    page.get_by_role("link", name="Trajectories").first.click()
    page.get_by_label("Stage").select_option("rl")
    page.get_by_label("Tool errors").select_option(index=1)
    page.get_by_role("button", name="Filter").click()
    expect(page).to_have_url(re.compile("errors="))
    page.locator("tbody a[href^='/trajectories/']").first.click()
    trajectory = stack.api.get(f"/trajectories/{run_id_of(page).partition('?')[0]}").json()
    assert trajectory["tool_errors"] > 0
    call = next(call for turn in trajectory["turns"] for call in turn["calls"] if call["status"] != "ok")
    expect(page.locator("#t1")).to_be_visible()
    expect(page.locator("main")).to_contain_text(call["response"].strip().splitlines()[-1])
    expect(page.locator("main")).to_contain_text(trajectory["gold"])


def test_a_lost_server_is_told_and_nothing_is_missing_afterwards(
    logged_in: Page, platform_stack: Stack, page_problems: PageProblems
) -> None:
    page = logged_in
    run_id = platform_stack.start_scripted(name="outage", steps=60)
    page.goto(f"/runs/{run_id}")
    until(page, lambda: len(drawn(page, "reward")) >= 2, 90, "the reward chart never grew")
    platform_stack.kill("web")
    expect(page.locator("sl-connection")).to_contain_text(re.compile("reconnecting|polling|offline"))
    expect(page.locator("sl-connection")).to_contain_text("live", timeout=60_000)
    state(page, "finished", 180)
    series = platform_stack.api.get(f"/runs/{run_id}/series", params={"keys": "reward"}).json()["series"]["reward"]
    rest = pytest.approx(dict(zip(series["x"], series["last"], strict=True)), rel=1e-5)  # figures have six digits
    until(page, lambda: drawn(page, "reward") == rest, 20, "after the outage, chart and REST never agreed")
    assert len(series["x"]) == 60
    page_problems.take("WebSocket|ERR_CONNECTION|Failed to load resource|503")


def test_hostile_names_and_texts_are_inert(logged_in: Page, platform_stack: Stack) -> None:
    page = logged_in
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    name = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    problem = "What is 11*14? <script>alert(3)</script><img src=x onerror=alert(4)>"
    run_id = platform_stack.start_scripted(name=name, steps=2, problems=[{"problem": problem, "answer": "154"}])
    page.goto("/")
    expect(page.get_by_text(name).first).to_be_visible()
    page.goto(f"/runs/{run_id}")
    state(page, "finished", 120)
    until(page, lambda: drawn(page, "reward"), 20, "no chart")
    page.goto(f"/runs/{run_id}/trajectories?stage=rl")
    page.locator("tbody a[href^='/trajectories/']").first.click()
    expect(page.locator("main")).to_contain_text("<script>alert(3)</script>")
    assert page.locator("main img").count() == 0
    assert dialogs == []


def test_a_dataset_with_wrong_lines_is_told_line_by_line(logged_in: Page, tmp_path: Path) -> None:
    page = logged_in
    file = tmp_path / "problems.jsonl"
    file.write_text('{"problem": "What is 6*7?", "answer": "42"}\n{"problem": "no answer"}\nnot JSON\n')
    page.goto("/datasets")
    page.locator("input[name=name]").fill("mine")
    page.locator("input[type=file]").set_input_files(file)
    page.get_by_role("button", name="Upload").click()
    told = page.locator("#upload-errors")
    expect(told).to_contain_text("line 2", ignore_case=True)
    expect(told).to_contain_text("line 3", ignore_case=True)
    file.write_text('{"problem": "What is 6*7?", "answer": "42"}\n')
    page.locator("input[type=file]").set_input_files(file)
    page.get_by_role("button", name="Upload").click()
    expect(page).to_have_url(re.compile(r"/datasets/ds_\w+$"))
    expect(page.locator("main")).to_contain_text("What is 6*7?")


def test_a_token_is_shown_once_works_and_ends(logged_in: Page, platform_stack: Stack) -> None:
    page = logged_in
    page.goto("/tokens")
    page.locator("input[name=name]").fill("nightly")
    page.locator("input[value='runs:read']").check()
    page.get_by_role("button", name="Create token").click()
    secret = page.locator("#new-token").inner_text().strip()
    assert secret.startswith("sl_")
    with httpx.Client(base_url=f"{platform_stack.url}/api/v1", headers={"Authorization": f"Bearer {secret}"}) as api:
        assert api.get("/runs").status_code == 200
        refused = api.post("/runs", json={})
        assert refused.status_code == 403
        assert "runs:write" in refused.text
        page.reload()
        expect(page.locator("body")).not_to_contain_text(secret)
        page.get_by_role("button", name="Revoke nightly").click()
        expect(page.locator("main")).to_contain_text("revoked")
        assert api.get("/runs").status_code == 401


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_clean_and_fits_a_phone(
    logged_in: Page, platform_stack: Stack, scheme: str, page_problems: PageProblems
) -> None:
    """No console error, no CSP violation, no foreign request (the `page` fixture), nothing wider than the screen."""
    page = logged_in
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    run_id = finished_run(platform_stack)
    trajectory = platform_stack.api.get(f"/runs/{run_id}/trajectories").json()["results"][0]["id"]
    recipe = platform_stack.api.get("/recipes").json()["results"][0]["id"]
    addresses = ["/", "/setup", "/runs/new", f"/runs/new?recipe={recipe}", f"/runs/{run_id}"]
    addresses += [f"/runs/{run_id}/trajectories", f"/trajectories/{trajectory}", "/datasets", "/recipes"]
    addresses += [f"/recipes/{recipe}", "/tokens", "/sandbox", "/api/docs"]
    for address in addresses:
        page.set_viewport_size({"width": 390, "height": 844})
        response = page.goto(address)
        assert response is not None
        assert response.status == 200, address
        if address != "/api/docs":
            wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, f"{address} is {wide} px too wide for a phone"
        page.set_viewport_size({"width": 1280, "height": 900})
    assert page.goto("/runs/run_nothing").status == 404  # type: ignore[union-attr]
    assert page_problems.take("404")


def finished_run(stack: Stack) -> str:
    done = stack.api.get("/runs", params={"state": "finished"}).json()["results"]
    if done:
        return str(done[0]["id"])
    run_id = stack.start_scripted(name="short", steps=2)
    stack.until_state(run_id, "finished")
    return run_id
