"""Debian's Chromium without a window, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import BrowserContext, Page, async_playwright

CHROMIUM = "chromium"

ANSWER_MS = 120_000
"""How long a page may take until it shows what a test waits for, also where the machine does other work."""


class Tab:
    """A page that is open, with what it asked for, and what went wrong on it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.asked: list[str] = []
        self.wrong: list[str] = []
        page.set_default_timeout(ANSWER_MS)
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("console", lambda line: self.wrong.append(line.text) if line.type == "error" else None)

    async def text(self, selector: str) -> str:
        """What is to be read in the first element that the selector finds."""
        return await self.page.locator(selector).first.inner_text()

    async def texts(self, selector: str) -> list[str]:
        """What is to be read in each element that the selector finds."""
        return await self.page.locator(selector).all_inner_texts()

    async def shows(self, selector: str, text: str) -> None:
        """Return when an element that the selector finds is visible and contains the text."""
        await self.page.locator(selector, has_text=text).first.wait_for()

    async def hides(self, selector: str) -> None:
        """Return when nothing that the selector finds is visible."""
        await self.page.locator(selector).first.wait_for(state="hidden")


@asynccontextmanager
async def browsing(width: int = 1280, height: int = 900, dark: bool = False) -> AsyncIterator[BrowserContext]:
    """A browser that keeps nothing, with a window of this size. Missing, it skips on a laptop and fails in CI."""
    found = shutil.which(CHROMIUM)
    if found is None:
        if "CI" in os.environ:
            pytest.fail("chromium is missing: run scripts/setup")
        pytest.skip("needs Debian's package chromium: run scripts/setup")
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(
            executable_path=found, chromium_sandbox=os.geteuid() != 0, args=["--disable-dev-shm-usage"]
        )
        try:
            yield await browser.new_context(
                viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
            )
        finally:
            await browser.close()


async def opened(context: BrowserContext, address: str) -> Tab:
    """A tab that shows the page at an address, before any answer of its script."""
    tab = Tab(await context.new_page())
    await tab.page.goto(address)
    return tab
