"""Swagger UI in a real browser: it renders, under the platform's CSP, with nothing from elsewhere."""

import os
import shutil
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.test import Client
from playwright.sync_api import sync_playwright

from tests.webapp.support import make_user

pytestmark = [pytest.mark.e2e]


@pytest.mark.django_db(transaction=True)
def test_swagger_ui_renders_under_the_csp(live_server: Any) -> None:
    user = make_user()
    client = Client()
    client.force_login(user)
    session = {"name": "starloom_session", "value": client.cookies["starloom_session"].value, "url": live_server.url}
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    assert chromium, "no browser: set CHROMIUM or apt-get install chromium"
    complaints: list[str] = []
    hosts: set[str] = set()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = browser.new_context()
        context.add_cookies([session])  # type: ignore[list-item]
        page = context.new_page()
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
        page.goto(f"{live_server.url}/api/docs")
        page.get_by_text("Create a run").click()
        page.get_by_text("Idempotency-Key").first.wait_for()
        page.get_by_role("button", name="Try it out").first.click()
        page.get_by_role("button", name="Execute").first.wait_for()
        if folder := os.environ.get("SCREENSHOTS"):
            page.screenshot(path=f"{folder}/api-docs.png")
        browser.close()
    assert complaints == []
    assert hosts <= {urlsplit(live_server.url).netloc, ""}
