"""Pages of a Hub in a real browser, of people who have signed in."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Page

from tests.hub.hub import ADMIN, ADMIN_PASSWORD, PASSWORD, Hub

__all__ = ["Signed"]


class Signed:
    """Pages of people who have signed in; `said` is what the browser's console says against them."""

    def __init__(self, browser: Browser, hub: Hub) -> None:
        self._browser, self._hub = browser, hub
        self.said: list[str] = []

    def close(self) -> None:
        """All pages, and what their people were signed in with."""
        for context in self._browser.contexts:
            context.close()

    def _heard(self, message: ConsoleMessage) -> None:
        # A refusal is an answer like others; the browser, and htmx after it, name its status.
        if not message.text.startswith(("Failed to load resource", "Response Status Error Code 4")):
            self.said.append(message.text)

    def page(
        self,
        person: str,
        path: str = "",
        width: int = 1280,
        locale: str = "en-GB",
        scheme: Literal["light", "dark"] = "light",
        at: str = "/services/gpukernel/",
    ) -> Page:
        """Return what `person` sees at a path below the console, or below `at`."""
        context = self._browser.new_context(
            viewport={"width": width, "height": 900},
            locale=locale,
            timezone_id="Asia/Shanghai",
            color_scheme=scheme,
        )
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("dialog", lambda dialog: self.said.append(f"a dialog: {dialog.message}"))
        page.goto(f"{self._hub.url}/hub/login?next={at}{path}")
        page.locator("input[name=username]").fill(person)
        page.locator("input[name=password]").fill(ADMIN_PASSWORD if person == ADMIN else PASSWORD)
        page.keyboard.press("Enter")
        # Where signing in leads to stands in its own address, too.
        page.wait_for_url(lambda url: urlsplit(url).path.startswith(at + path), wait_until="load")
        page.locator("h1").first.wait_for()
        return page
