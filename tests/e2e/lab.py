"""JupyterLab and Notebook in Debian's Chromium, against real servers: steps that tests take and pictures show."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Locator, Page, expect, sync_playwright

from tests.jupyter.server import Server

CHROMIUM = Path("/usr/bin/chromium")
NOTEBOOK = ("Notebook", "笔记本")  # in English and Chinese
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextlib.contextmanager
def browser_page() -> Iterator[Page]:
    """A page of a headless Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=QUIET)
        page = browser.new_page(viewport={"width": 1280, "height": 760})
        page.set_default_timeout(90_000)
        yield page
        browser.close()


class Lab:
    """JupyterLab in `page`; without a `server` the page is on its way there already.

    Attributes
    ----------
    requests
        When the front end asked the server extension, in seconds of the monotonic clock.
    """

    def __init__(self, page: Page, server: Server | None = None, path: str = "") -> None:
        self.page = page
        self.requests: list[float] = []
        page.on(
            "request",
            lambda request: "/gpukernel/api/" in request.url and self.requests.append(time.monotonic()),
        )
        news = page.get_by_role("button", name=re.compile("^(No|否)$"))  # whether to show Jupyter's news
        page.add_locator_handler(news, lambda: news.click())
        if server is not None:
            page.goto(f"{server.url}/lab{path}?reset&token={server.token}")
        page.locator("#jp-main-dock-panel").wait_for()

    def card(self, name: str) -> Locator:
        """A card of the launcher's notebooks."""
        cards = self.page.locator(", ".join(f".jp-LauncherCard[data-category={name}]" for name in NOTEBOOK))
        return cards.filter(has_text=name)

    def launcher(self) -> None:
        self.page.locator(".lm-TabBar-addButton:visible").first.click()

    def start(self, name: str, tab: int) -> None:
        """Start a notebook from the launcher; it is the `tab`-th."""
        self.card(name).click()
        self.page.locator(".jp-NotebookPanel").nth(tab).wait_for()
        self.page.locator(".gpukernel-status:visible").wait_for()

    def cell(self, code: str) -> None:
        """Write `code` into the last cell of the notebook in front, and run it."""
        self.page.locator(".jp-NotebookPanel:visible .jp-Notebook .jp-CodeCell .cm-content").last.click()
        self.page.keyboard.insert_text(code)
        self.page.keyboard.press("Shift+Enter")

    def output(self, text: str | re.Pattern[str]) -> Locator:
        """An output of the notebook in front that has `text`."""
        return self.page.locator(".jp-NotebookPanel:visible .jp-OutputArea-output", has_text=text).last

    @property
    def status(self) -> Locator:
        """The item of the status bar."""
        return self.page.locator(".gpukernel-status:visible")

    def show_panel(self) -> Locator:
        """The side panel, opened by a click on the status item."""
        panel = self.page.locator(".gpukernel-panel")
        if not panel.is_visible():
            self.status.locator("button").first.click()
        panel.wait_for()
        return panel

    def of_panel(self, what: str) -> Locator:
        """The card of a slice in the side panel."""
        return self.page.locator(".gpukernel-card", has_text=what)

    def own_size(self, share: str) -> None:
        """Fill in the dialog for a size of one's own."""
        self.page.locator(".gpukernel-size input[type=number]").fill(share)

    def agree(self, words: str, button: str) -> None:
        """Read `words` in the dialog that asks, and click its `button`."""
        dialog = self.page.locator(".jp-Dialog")
        expect(dialog).to_contain_text(words)
        dialog.get_by_role("button", name=button, exact=True).click()
        dialog.wait_for(state="detached")

    @property
    def toasts(self) -> Locator:
        """The notifications that stand in the corner."""
        return self.page.locator(".Toastify__toast")
