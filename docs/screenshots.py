"""Take docs/images/{launcher,notebook}.png again: real JupyterLab, real kernels, headless Chromium.

Needs Chromium and `pip install playwright`.  ``--launcher-only`` needs no pool.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from gpukernel.embedded import EmbeddedPool
from gpukernel.jupyter import kernelspecs

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
]
QUIET += ["--disable-component-update", "--disable-sync"]


@contextlib.contextmanager
def jupyterlab(environment: dict[str, str], home: Path) -> Iterator[str]:
    """A JupyterLab of its own; gives its address with the token."""
    for spec in kernelspecs.STANDARD:
        kernelspecs.write(spec, home / "data" / "kernels")
    token = secrets.token_hex(16)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    places = {f"JUPYTER_{kind}_DIR": str(home / kind.lower()) for kind in ("DATA", "CONFIG", "RUNTIME")}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1"]
    command += [
        f"--port={port}",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    environment = {**environment, **places, "JUPYTER_TOKEN": token}
    server = subprocess.Popen([*command, str(ROOT / "notebooks")], env=environment, stderr=subprocess.DEVNULL)
    try:
        address = f"http://127.0.0.1:{port}/api/status?token={token}"
        for _ in range(240):
            with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5):
                break
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/lab{{}}?reset&token={token}"
    finally:
        server.terminate()
        server.wait()


def launcher(page: Page, address: str) -> None:
    """The launcher with the kernels on slices."""
    page.goto(address.format(""))
    page.locator(".jp-LauncherCard").nth(6).wait_for(timeout=120_000)
    page.get_by_role("button", name="No", exact=True).click()  # Jupyter's news
    page.keyboard.press("Control+b")
    page.wait_for_timeout(1500)
    page.screenshot(path=IMAGES / "launcher.png")


def notebook(page: Page, address: str) -> None:
    """The second notebook, executed, at its plots."""
    page.goto(address.format("/tree/02-classification.ipynb"))
    page.locator(".jp-Notebook").wait_for(timeout=120_000)
    page.get_by_text("Run", exact=True).first.click()
    page.get_by_text("Run All Cells", exact=True).click()
    page.get_by_text("'test accuracy'").wait_for(timeout=180_000)
    page.locator(".jp-OutputArea img").last.scroll_into_view_if_needed()
    page.wait_for_timeout(1000)
    page.screenshot(path=IMAGES / "notebook.png")


def main() -> None:
    """Take both pictures, or only the launcher's."""
    only_launcher = "--launcher-only" in sys.argv
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        environment = dict(os.environ)
        if not only_launcher:
            environment = stack.enter_context(EmbeddedPool("v100:2")).environment
        address = stack.enter_context(jupyterlab(environment, home))
        browser = stack.enter_context(sync_playwright()).chromium.launch(
            executable_path="/usr/bin/chromium", args=QUIET
        )
        page = browser.new_page(viewport={"width": 1280, "height": 760})
        launcher(page, address)
        if not only_launcher:
            notebook(page, address)
        browser.close()


if __name__ == "__main__":
    main()
