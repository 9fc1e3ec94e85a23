"""A real Chromium for the tests in this folder; a page with any fault that the test did not expect fails it.

Playwright's synchronous API keeps an event loop running in this thread while it is open: no asynchronous test could
run beside it, and Django refuses database access then. So it is open for one module at a time (tests of a module are
never mixed with others), and these tests talk to a platform in other processes: by its pages, by REST, or to its
Postgres by plain psycopg.
"""

import re
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, WebSocket, sync_playwright

from scripts import browser
from scripts.packages import SetupError

ROOT = Path(__file__).resolve().parents[2]
HERE = {"127.0.0.1", "localhost", "::1"}
TELL_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) => {
    console.error(`CSP forbids ${event.effectiveDirective}: ${event.blockedURI} (line ${event.lineNumber})`);
});
"""
FAILED = pytest.StashKey[bool]()


class PageProblems(list[str]):
    """What went wrong on the pages of a test: console errors, exceptions, CSP violations, requests to foreign hosts."""

    def take(self, pattern: str) -> list[str]:
        """The ones that match, which the test expected: taken out, they fail it no more."""
        taken = [problem for problem in self if re.search(pattern, problem)]
        self[:] = [problem for problem in self if problem not in taken]
        return taken


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser for the tests of a module."""
    found = browser_or_failure()
    with sync_playwright() as playwright:
        # Without Chromium's own sandbox (Playwright's default): root has none, and the pages are ours.
        running = playwright.chromium.launch(executable_path=found.executable, env=dict(found.environment()))
        yield running
        running.close()


def browser_or_failure() -> browser.Browser:
    try:
        return browser.find(ROOT)
    except SetupError as error:
        reason = str(error)
    pytest.fail(reason, pytrace=False)


@pytest.fixture
def base_url() -> str | None:
    """What `page.goto("/")` is relative to; test files that have a platform define their own."""
    return None


@pytest.fixture
def page_problems() -> PageProblems:
    """What went wrong so far; what is still in it at the end fails the test."""
    return PageProblems()


@pytest.fixture
def page(
    chromium: Browser, base_url: str | None, page_problems: PageProblems, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Page]:
    """A tab of a fresh profile, watched with every tab that it opens."""
    context = chromium.new_context(
        base_url=base_url, locale="en-GB", timezone_id="UTC", viewport={"width": 1280, "height": 900}
    )
    context.set_default_timeout(20_000)
    watch(context, page_problems)
    page = context.new_page()
    yield page
    if request.node.stash.get(FAILED, False) and not page.is_closed():
        page.screenshot(path=tmp_path / "failed.png", full_page=True)
        request.node.add_report_section("teardown", "page", f"{page.url}\nsee {tmp_path / 'failed.png'}")
    context.close()
    if page_problems:
        pytest.fail("the page had problems:\n  " + "\n  ".join(page_problems), pytrace=False)


@pytest.fixture
def screenshot(page: Page, tmp_path: Path) -> Callable[[str], Path]:
    """Keep what the page shows now, for people: `screenshot("paused")`."""

    def keep(name: str) -> Path:
        path = tmp_path / f"{name}.png"
        page.screenshot(path=path, full_page=True)
        return path

    return keep


def watch(context: BrowserContext, problems: PageProblems) -> None:
    """Note every fault of the context's pages."""

    def console(message: ConsoleMessage) -> None:
        if message.type == "error":
            problems.append(f"console: {message.text} ({message.location['url']})")

    def requested(url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname not in HERE:
            problems.append(f"request to a foreign host: {url}")

    def opened(page: Page) -> None:
        page.on("websocket", lambda socket: requested(websocket_url(socket)))

    context.on("page", opened)
    context.on("console", console)
    context.on("weberror", lambda failed: problems.append(f"exception: {failed.error}"))
    context.on("request", lambda request: requested(request.url))
    context.add_init_script(TELL_VIOLATIONS)


def websocket_url(socket: WebSocket) -> str:
    return socket.url


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell the `page` fixture whether its test failed."""
    report = yield
    if report.when == "call":
        item.stash[FAILED] = report.failed
    return report
