"""The page in a real browser: what a model, a tool or a server says is shown as text, whatever it says."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, async_playwright, expect

from scripts import browser

ROOT = Path(__file__).resolve().parents[3]
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"

pytestmark = pytest.mark.e2e


@pytest.fixture
async def page(server: Any) -> AsyncIterator[Page]:
    """The playground; whatever the browser complains of fails the test."""
    found, problems = browser.find(ROOT), []
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=found.executable, env=dict(found.environment()))
        page = await chromium.new_page()
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        await page.goto(server.url)
        yield page
        await chromium.close()
    assert problems == []


async def test_a_conversation_in_the_playground(server: Any, page: Page) -> None:
    await expect(page.locator("#about")).to_contain_text("toy · context 1024 tokens · up to 4 turns")
    await page.fill("#ask", f"call {HOSTILE}")
    await page.press("#ask", "Enter")
    answered = page.locator("article.assistant")
    await expect(answered.locator("small")).to_contain_text("answered")
    await expect(answered.locator("pre")).to_have_text([HOSTILE, HOSTILE])  # the call's code, what it printed
    await expect(answered.locator(".text").last).to_have_text(f"<answer>\\boxed{{{HOSTILE}}}</answer>")
    assert await page.locator("#log img, #log script").count() == 0
    assert await page.title() == "Starloom playground"

    await page.fill("#ask", "call hang")
    await page.press("#ask", "Enter")
    await expect(page.locator(".status").last).to_have_text("running …")
    prompt = server.renderer.decode(server.requests[-1].prompt_ids)
    assert f"<tool_response>{HOSTILE}</tool_response>" in prompt  # the first answer's call is part of the conversation
    await page.keyboard.press("Escape")
    await expect(page.locator("article.error")).to_have_text("Stopped (left out of the conversation)")
    await expect(page.locator("#ask")).to_have_value("call hang")
