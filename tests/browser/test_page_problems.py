"""The watch over pages itself: each kind of fault is seen, and a clean page has none."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Page

from scripts.packages import SetupError
from tests.browser.conftest import PageProblems, browser

pytestmark = pytest.mark.e2e
PAGES = {
    "/clean": "<p>ok</p>",
    "/console": "<script src='/error.js'></script>",
    "/exception": "<script src='/throw.js'></script>",
    "/inline": "<script>document.title = 'executed'</script>",
    "/style": "<p style='color: red'>x</p>",
    "/missing": "<script src='/nowhere.js'></script>",
    "/foreign": "<img src='http://foreign.invalid/pixel.png'>",
    "/socket": "<script src='/socket.js'></script>",
    "/error.js": "console.error('told')",
    "/throw.js": "throw new Error('thrown')",
    "/socket.js": "new WebSocket('ws://foreign.invalid/ws')",
    "/favicon.ico": "none, but no fault: browsers ask for it when they like",
}


class Site(BaseHTTPRequestHandler):
    """The pages above, under a strict CSP but for the foreign ones, which have to be tried at all."""

    def do_GET(self) -> None:
        text = PAGES.get(self.path)
        self.send_response(200 if text else 404)
        self.send_header("Content-Type", "text/javascript" if self.path.endswith(".js") else "text/html")
        if self.path not in ("/foreign", "/socket"):
            self.send_header("Content-Security-Policy", "default-src 'self'")
        self.end_headers()
        self.wfile.write((text or "none").encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_clean_page_has_no_problem(page: Page, page_problems: PageProblems) -> None:
    page.goto("/clean")
    assert page_problems == []


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/console", "console: told"),
        ("/exception", "exception: .*thrown"),
        ("/inline", "CSP forbids script-src-elem: inline"),
        ("/style", "CSP forbids style-src-attr: inline"),
        ("/missing", "console: .*404"),
        ("/foreign", r"foreign host: http://foreign\.invalid/pixel\.png"),
        ("/socket", r"foreign host: ws://foreign\.invalid/ws"),
    ],
)
def test_a_fault_is_seen_and_what_was_expected_can_be_taken_out(
    page: Page, page_problems: PageProblems, path: str, problem: str
) -> None:
    page.goto(path)
    page.wait_for_load_state("networkidle")
    assert page_problems.take(problem)
    page_problems.take("console: ")  # what Chromium itself says about the same fault
    assert page_problems == []
    assert page.title() != "executed"


def test_a_second_tab_is_watched_too(page: Page, page_problems: PageProblems) -> None:
    page.context.new_page().goto("/console")
    assert page_problems.take("told")


def test_without_a_browser_the_error_names_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHROMIUM", "/nonexistent/chromium")
    with pytest.raises(SetupError, match="CHROMIUM=/nonexistent/chromium is no Chromium that runs"):
        browser.find(browser.ROOT)
