"""A run's page in a real browser: it fills by itself, loses and finds the server again, and nothing on it is executed.

The web server is uvicorn in a thread, on the test's database; the bundle has to be built (`make setup` does). Leaves
out what other pages do: tests of ``ui``.
"""

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from django.conf import settings
from django.db import connections
from django.test import Client
from django.utils import timezone
from playwright.sync_api import ConsoleMessage, Page, Request, WebSocketRoute, expect, sync_playwright

from tests.webapp.live.rows import tell, tell_load
from tests.webapp.support import make_project, make_run, make_user
from webapp.accounts.models import User
from webapp.live.announce import announce_run
from webapp.runs.models import Command, Run
from webapp.telemetry.queries import series

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True)]
CASES = {
    case["id"]: case
    for case in map(json.loads, Path("tests/cases/platform.jsonl").read_text().splitlines())
    if case["kind"] == "charts"
}
HOSTILE = CASES["F077"]["input"]["run_name"]
PATIENCE_MS = 20_000
FLAGS = ["--no-sandbox", "--js-flags=--expose-gc", "--enable-precise-memory-info"]
expect.set_options(timeout=PATIENCE_MS)


class Server:
    """uvicorn on a port that stays the same over restarts."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        config = uvicorn.Config(
            "webapp.config.asgi:application", port=self.port, log_level="warning", timeout_graceful_shutdown=2
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        wait_for(lambda: self._server.started)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(20)


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_MS / 1000
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def loop_below(monkeypatch: pytest.MonkeyPatch) -> None:
    """Playwright's synchronous interface keeps an event loop in this thread, in which nothing of ours runs."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")


@pytest.fixture
def server(valkey: Any) -> Iterator[Server]:
    assert (settings.BUNDLE / "manifest.json").exists(), "the front end is not built: run `make setup`"
    server = Server()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def owner() -> User:
    return make_user("ada")


@pytest.fixture
def run(owner: User) -> Run:
    """Named by somebody hostile; four steps of SFT, six of RL."""
    run = make_run(make_project(owner), state="running", name=HOSTILE, heartbeat_at=timezone.now())
    run.stages.update(started_at=timezone.now())
    run.stages.filter(name="rl").update(name=HOSTILE[:50], steps=100_000)
    tell(run, {x: x / 100 for x in range(5, 11)}, (f"hello {HOSTILE}", "second line"))
    tell(run, {x: 2.0 / x for x in range(1, 5)}, key="loss")
    return run


@pytest.fixture
def page(server: Server, owner: User) -> Iterator[Page]:
    """A tab that is logged in; whatever it complains of, asks of others or pops up fails the test."""
    client = Client()
    client.force_login(owner)
    wrong: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        expected = "WebSocket connection" in message.text or "Failed to load resource" in message.text
        if message.type in ("error", "warning") and not expected:
            wrong.append(f"console: {message.text}")

    def asked(request: Request) -> None:
        if not request.url.startswith((server.url, server.url.replace("http", "ws"), "data:")):
            wrong.append(f"foreign request: {request.url}")

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        context = browser.new_context(viewport={"width": 1300, "height": 1600})
        cookie = client.cookies["starloom_session"].value
        context.add_cookies([{"name": "starloom_session", "value": cookie, "url": server.url}])
        tab = context.new_page()
        tab.set_default_timeout(PATIENCE_MS)
        tab.on("console", heard)
        tab.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        tab.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        tab.on("request", asked)
        yield tab
        browser.close()
        connections.close_all()  # Django gives what runs inside Playwright's loop a connection of its own
    assert wrong == []


def chromium() -> str:
    import os
    import shutil

    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    assert found, "no browser: set CHROMIUM, or apt-get install chromium"
    return found


def news(run: Run, points: dict[int, float], lines: tuple[str, ...] = ()) -> None:
    tell(run, points, lines)
    thread = threading.Thread(target=announce_run, args=[run.pk])
    thread.start()
    thread.join()


def drawn(page: Page) -> list[list[Any]]:
    """The points of the reward chart, as Plotly has them."""
    found: list[list[Any]] = page.evaluate(
        """() => {
            const figure = document.querySelector("[data-chart=reward] .sl-chart-figure");
            const line = (figure?.data ?? []).find((trace) => trace.name === "mean reward");
            return line ? line.x.map((x, place) => [x, line.y[place]]) : [];
        }"""
    )
    return found


def stored(run: Run) -> list[list[Any]]:
    rewards = series(run, ["reward"], max_points=5000)["reward"]
    return [[x, value] for x, value in zip(rewards.x, rewards.last, strict=True)]


def agree(page: Page, run: Run) -> None:
    """Wait until the chart shows every point that the platform has, once."""
    wait_for(lambda: drawn(page) == stored(run))


def open_page(page: Page, server: Server, run: Run) -> None:
    page.goto(f"{server.url}/runs/{run.pk}")
    expect(page.locator("sl-connection")).to_have_attribute("data-kind", "live")
    agree(page, run)


def test_the_page_fills_by_itself_and_no_text_is_executed(page: Page, server: Server, run: Run) -> None:
    open_page(page, server, run)
    tell_load(run, 90, {HOSTILE: {"in_flight": 4.0}})
    for x in range(11, 16):
        news(run, {x: x / 100}, (f"<b>step</b> {x} {HOSTILE}",))
    agree(page, run)
    expect(page.locator("[data-field=x]").first).to_have_text("15")
    expect(page.locator("sl-log li").last).to_contain_text(f"<b>step</b> 15 {HOSTILE}")
    assert page.locator("sl-log li").count() == 7
    assert page.locator("sl-log b, sl-log img, sl-charts img, sl-charts svg a").count() == 0
    expect(page.locator("[data-chart=optimisation] svg .annotation-text")).to_have_text(["sft", HOSTILE[:50]])
    expect(page.locator("[data-chart=reward] .sl-chart-words")).to_have_text("Step 15: mean reward 0.15.")
    page.locator("[data-chart=reward] summary").click()
    expect(page.locator("[data-chart=reward] tbody tr").first).to_have_text(re.compile(r"15\s*0\.15"))
    page.locator("[data-chart=engine_rollouts]").scroll_into_view_if_needed()
    expect(page.locator("[data-chart=engine_rollouts] .sl-chart-words")).to_have_text("Second 90: in flight 4.")


def test_charts_follow_the_theme(page: Page, server: Server, run: Run) -> None:
    open_page(page, server, run)
    line = page.locator("[data-chart=reward] .scatterlayer path.js-line")
    for theme, colour in (("light", "rgb(0, 114, 178)"), ("dark", "rgb(86, 180, 233)")):
        page.locator(f"[data-theme-value={theme}]").click()
        expect(page.locator("html")).to_have_attribute("data-bs-theme", theme)
        expect(line).to_have_css("stroke", colour)


def test_without_a_socket_it_polls_and_then_goes_on_without_a_gap(page: Page, server: Server, run: Run) -> None:
    blocked = False
    open_sockets: list[WebSocketRoute] = []

    def route(ws: WebSocketRoute) -> None:
        if blocked:
            ws.close(code=1001)
        else:
            open_sockets.append(ws)
            ws.connect_to_server()

    page.route_web_socket(re.compile("/ws/"), route)
    open_page(page, server, run)
    connection = page.locator("sl-connection")
    blocked = True
    for ws in open_sockets:
        ws.close(code=1001)
    expect(connection).not_to_have_attribute("data-kind", "live")
    for x in (11, 12):
        news(run, {x: x / 100})
    expect(connection).to_have_attribute("data-kind", "polling")
    agree(page, run)
    blocked = False
    expect(connection).to_have_attribute("data-kind", "live")
    news(run, {13: 0.13})
    agree(page, run)


def test_a_server_that_restarts_is_found_again(page: Page, server: Server, run: Run) -> None:
    open_page(page, server, run)
    server.stop()
    expect(page.locator("sl-connection")).to_have_attribute("data-kind", "offline")
    expect(page.locator("sl-connection")).to_contain_text(re.compile(r"offline: data of \d\d:\d\d:\d\d"))
    tell(run, {11: 0.11, 12: 0.12})
    server.start()
    expect(page.locator("sl-connection")).to_have_attribute("data-kind", "live")
    agree(page, run)


HIDE = """(hidden) => {
    Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
    document.dispatchEvent(new Event("visibilitychange"));
}"""


@pytest.mark.parametrize("case", [CASES["F079"]], ids=["F079"])
def test_a_hidden_tab_draws_nothing_and_catches_up_when_it_is_seen(
    case: dict[str, Any], page: Page, server: Server, run: Run
) -> None:
    open_page(page, server, run)
    page.clock.install()
    page.evaluate(HIDE, True)
    shown = drawn(page)
    page.clock.fast_forward(case["input"]["tab_hidden_minutes"] * 60_000)
    expect(page.locator("sl-run")).to_have_attribute("data-connection", "asleep")
    for x in range(11, 31):
        tell(run, {x: x / 100})
    page.clock.run_for(5_000)
    assert drawn(page) == shown
    page.evaluate(HIDE, False)
    expect(page.locator("sl-run")).to_have_attribute("data-connection", "live")
    page.clock.run_for(case["expected"]["catch_up_s_max"] * 1000)
    agree(page, run)


@pytest.mark.parametrize("case", [CASES["F073"]], ids=["F073"])
def test_a_long_run_keeps_its_charts_short(case: dict[str, Any], page: Page, server: Server, run: Run) -> None:
    open_page(page, server, run)
    heap = "() => { globalThis.gc?.(); return performance.memory.usedJSHeapSize / 1e6; }"
    before = page.evaluate(heap)
    kept = page.evaluate(
        """async (count) => {
            const charts = document.querySelector("sl-charts");
            let most = 0;
            for (let x = 11; x < 11 + count; x += 1) {
                charts.add([["reward", x, 0.5, ""], ["loss", x, 0.1, ""]]);
                if (x % 500 === 0) {
                    await new Promise((resolve) => setTimeout(resolve, 20));
                    const figure = document.querySelector("[data-chart=reward] .sl-chart-figure");
                    most = Math.max(most, ...figure.data.map((trace) => trace.x.length));
                }
            }
            return most;
        }""",
        case["input"]["live_points"],
    )
    assert kept <= case["expected"]["points_kept_max"]
    Run.objects.filter(pk=run.pk).update(reset_revision=run.revision + 1)
    news(run, {})
    agree(page, run)  # told to start anew, it shows nothing that the platform does not have
    assert page.evaluate(heap) - before < case["expected"]["heap_growth_mb_max"]
    assert page.evaluate("document.querySelectorAll('*').length") < 10_000


def test_commands_are_asked_once_and_stop_asks_for_a_reason(page: Page, server: Server, run: Run) -> None:
    open_page(page, server, run)
    page.locator("button[data-command=pause]").dblclick()
    expect(page.locator("[data-role=command-message]")).to_contain_text("pause asked")
    expect(page.locator("[data-field=state]").first).to_have_text("pausing")
    expect(page.locator("button[data-command=pause]")).to_be_disabled()
    assert Command.objects.filter(run=run, kind="pause").count() == 1
    page.locator("button[data-command=stop]").click()
    page.locator("dialog[data-dialog=stop] button[value=cancel]").click()
    assert not Command.objects.filter(run=run, kind="stop").exists()
    page.locator("button[data-command=stop]").click()
    page.locator("dialog[data-dialog=stop] [name=reason]").fill("enough <b>seen</b>")
    page.locator("dialog[data-dialog=stop] button[value=confirm]").click()
    expect(page.locator("[data-field=state]").first).to_have_text("stopping")
    assert Command.objects.get(run=run, kind="stop").reason == "enough <b>seen</b>"


def test_who_logs_out_elsewhere_is_told_so(page: Page, server: Server, run: Run, owner: User) -> None:
    open_page(page, server, run)
    owner.set_password("another password")
    owner.save()
    server.stop()
    server.start()
    expect(page.locator("sl-connection")).to_have_attribute("data-kind", "refused")
    expect(page.locator("sl-connection a")).to_have_attribute("href", re.compile(r"^/login\?next="))
