"""Pictures of the pages for the documentation, light and dark, from a finished run of a platform that runs.

    STARLOOM_PASSWORD=... python -m scripts.screenshots run_01k3...        (`make screenshots RUN_ID=...`)

Without a run: the newest finished one. Waits for what a page says about itself, never for a time. Leaves out judging
what is seen (that is for people) and starting the platform (`make demo`).
"""

import argparse
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Error, Page, sync_playwright

from scripts import browser
from scripts.packages import SetupError

Theme = Literal["light", "dark"]
THEMES: tuple[Theme, ...] = ("light", "dark")
DESK, PHONE = 1280, 390
MOST_HEIGHT = 1700  # of a picture: what a reader of the documentation still looks at
MOST_BYTES = 250_000
WAIT_MS = 60_000


class NoPicture(Exception):
    """Something that the pictures need is not there; says what."""


@dataclass(frozen=True)
class Shot:
    """One page: where it is, and when it is complete."""

    name: str
    address: str
    until: Callable[[Page], None]
    width: int = DESK
    themes: tuple[Theme, ...] = THEMES


def heading(page: Page) -> None:
    page.locator("main h1").first.wait_for()


def charts(page: Page) -> None:
    """Charts are drawn when they come into view: go past all of them."""
    heading(page)
    page.locator("sl-charts .sl-chart").first.wait_for()
    for card in page.locator("sl-charts .sl-chart").all():
        card.scroll_into_view_if_needed()
        card.locator(".sl-chart-figure[hidden], .sl-chart-figure .main-svg").first.wait_for(state="attached")
    page.locator("sl-log li").first.wait_for(state="attached")
    page.evaluate("scrollTo(0, 0)")


def operations(page: Page) -> None:
    page.locator("#swagger-ui .opblock").first.wait_for()


@dataclass(frozen=True)
class Platform:
    """A platform that runs, and who logs in."""

    url: str
    user: str
    password: str

    @contextmanager
    def tab(self, chromium: Browser, theme: Theme, width: int) -> Iterator[Page]:
        """Logged in, in a fresh profile. Raises `NoPicture`."""
        with closing_context(
            chromium.new_context(
                base_url=self.url,
                color_scheme=theme,
                reduced_motion="reduce",
                locale="en-GB",
                timezone_id="UTC",
                viewport={"width": width, "height": 900},
            )
        ) as context:
            context.set_default_timeout(WAIT_MS)
            page = context.new_page()
            self._log_in(page)
            yield page

    def _log_in(self, page: Page) -> None:
        try:
            page.goto("/login")
        except Error as error:
            raise NoPicture(f"no platform answers at {self.url}: `make demo` starts one") from error
        page.get_by_label("Username").fill(self.user)
        page.locator("input[type=password]").fill(self.password)
        page.locator("main form button[type=submit]").click()
        page.locator("#login-error, .frame-nav").first.wait_for()
        if page.locator("#login-error").count():
            raise NoPicture(f"{self.url} refuses the password of {self.user}: set STARLOOM_USER and STARLOOM_PASSWORD")


@contextmanager
def closing_context(context: BrowserContext) -> Iterator[BrowserContext]:
    try:
        yield context
    finally:
        context.close()


def rest(page: Page, path: str) -> dict[str, Any]:
    """An answer of the API to the one who is logged in. Raises `NoPicture`."""
    answer = page.request.get(f"/api/v1{path}")
    if not answer.ok:
        raise NoPicture(f"GET /api/v1{path}: {answer.status} {answer.text()[:500]}")
    found: dict[str, Any] = answer.json()
    return found


def first(page: Page, path: str, what: str) -> str:
    """The id of the first one of a list."""
    found = rest(page, path)["results"]
    if not found:
        raise NoPicture(f"there is no {what}")
    return str(found[0]["id"])


def finished_run(page: Page, run_id: str | None) -> str:
    """The named run, if it is finished, or the newest finished one."""
    if run_id is None:
        return first(page, "/runs?state=finished&limit=1", "finished run: wait for one")
    state = rest(page, f"/runs/{run_id}")["state"]
    if state != "finished":
        raise NoPicture(f"{run_id} is {state}: name a finished run")
    return run_id


def telling_trajectory(page: Page, run_id: str) -> str:
    """One whose first program failed and whose answer is right, if there is one; else any with a tool call."""
    of_run = f"/runs/{run_id}/trajectories?limit=1&tool_calls__gt="
    if found := rest(page, f"{of_run}1&tool_errors__gt=0&reward__gte=1&kept=true")["results"]:
        return str(found[0]["id"])
    return first(page, f"{of_run}0", f"trajectory with a tool call in {run_id}")


def shots(page: Page, run_id: str) -> list[Shot]:
    """All pages, with the ids that this platform has."""
    trajectory = telling_trajectory(page, run_id)
    recipe = first(page, "/recipes?name=demo&limit=1", "recipe named demo")
    return [
        Shot("setup", "/setup", heading),
        Shot("runs", "/", heading),
        Shot("new-run", f"/runs/new?run={run_id}", heading),
        Shot("run", f"/runs/{run_id}", charts),
        Shot("run-phone", f"/runs/{run_id}", charts, PHONE),
        Shot("trajectories", f"/runs/{run_id}/trajectories", heading),
        Shot("trajectory", f"/trajectories/{trajectory}", heading),
        Shot("datasets", "/datasets", heading),
        Shot("recipe", f"/recipes/{recipe}", heading),
        Shot("tokens", "/tokens", heading),
        Shot("api", "/api/docs", operations, themes=("light",)),  # Swagger UI knows no other
    ]


def take(page: Page, shot: Shot) -> bytes:
    """The page from its top, as PNG."""
    failed: list[str] = []
    page.on("response", lambda answer: None if answer.ok else failed.append(f"{answer.status} {answer.url}"))
    try:
        page.goto(shot.address)
        shot.until(page)
    except Error as error:
        raise NoPicture(f"{shot.address} never was complete: {error}\n  " + "\n  ".join(failed)) from error
    page.evaluate("document.fonts.ready.then(() => undefined)")
    height = min(page.evaluate("document.documentElement.scrollHeight"), MOST_HEIGHT)
    return page.screenshot(full_page=True, clip={"x": 0, "y": 0, "width": shot.width, "height": height})


def smaller(png: bytes) -> bytes:
    """The same picture with a palette: as many colours as fit into `MOST_BYTES`."""
    picture, data = Image.open(io.BytesIO(png)).convert("RGB"), png
    for colours in (256, 128, 64, 32):
        stream = io.BytesIO()
        picture.quantize(colours, dither=Image.Dither.NONE).save(stream, "PNG", optimize=True)
        data = stream.getvalue()
        if len(data) <= MOST_BYTES:
            break
    return data


def take_all(platform: Platform, run_id: str | None, out: Path) -> None:
    """Write `<page>-<theme>.png` for every page and theme into `out`. Raises `NoPicture`."""
    found = browser.find(browser.ROOT)
    out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found.executable, env=dict(found.environment()))
        for theme in THEMES:
            for width in (DESK, PHONE):
                with platform.tab(chromium, theme, width) as page:
                    wanted = shots(page, finished_run(page, run_id))
                    for shot in (shot for shot in wanted if shot.width == width and theme in shot.themes):
                        path = out / f"{shot.name}-{theme}.png"
                        path.write_bytes(smaller(take(page, shot)))
                        print(f"{path}  {path.stat().st_size // 1000} kB", flush=True)
        chromium.close()


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.screenshots", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("run_id", nargs="?", help="a finished run; default: the newest")
    parser.add_argument("--url", default=os.environ.get("STARLOOM_URL", "http://127.0.0.1:8000"), help="$STARLOOM_URL")
    parser.add_argument("--user", default=os.environ.get("STARLOOM_USER", "admin"), help="$STARLOOM_USER")
    parser.add_argument("--password", default=os.environ.get("STARLOOM_PASSWORD"), help="$STARLOOM_PASSWORD")
    parser.add_argument("--out", type=Path, default=browser.ROOT / "docs/screenshots")
    arguments = parser.parse_args()
    if not arguments.password:
        parser.error("whose password? set STARLOOM_PASSWORD (`make demo` prints it once)")
    return arguments


def main() -> int:
    """Returns the exit status."""
    given = read_arguments()
    try:
        take_all(Platform(given.url, given.user, given.password), given.run_id, given.out)
    except (NoPicture, SetupError, Error) as error:
        print(f"screenshots: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
