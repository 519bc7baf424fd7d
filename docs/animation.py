"""Take docs/images/first-slice.webp again: twenty seconds in the real JupyterLab, on a pool of simulated GPUs, in headless Chromium.

Run as ``make animation``; needs Chromium.  Waits are shorter in the picture than they were: each frame says itself how long it is shown.
``python -m docs.animation FOLDER`` also writes the frames there, one by one, to be looked at.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image
from playwright.sync_api import Locator, Page, expect

from gpukernel.embedded import EmbeddedPool
from tests.e2e.lab import Lab, browser_page
from tests.jupyter.server import Server, pool_environment

PICTURE = Path(__file__).parent / "images" / "first-slice.webp"
SIZE = {"width": 960, "height": 600}
CODE = """\
import numpy as np
from numba import cuda

@cuda.jit
def square(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = x[i] * x[i]

x = cuda.to_device(np.arange(1_000_000))
square[3907, 256](x)
print(x.copy_to_host()[:8])"""
TOO_MUCH = """\
try:
    y = cuda.device_array(900 << 20, np.uint8)   # 900 MiB
except Exception as error:
    print(error)"""  # without a traceback, which names this machine's folders
CURSOR = """
() => {
  const cursor = document.createElement('div');
  cursor.id = 'shown-cursor';
  cursor.style.cssText = 'position:fixed;z-index:99999;pointer-events:none;width:22px;height:22px;border-radius:50%;' +
    'background:rgba(0,150,136,.45);border:2px solid #00695c;left:480px;top:560px;transform:translate(-50%,-50%)';
  document.body.append(cursor);
}
"""


@dataclass
class Film:
    """Frames of a page, each with the milliseconds for which it is shown."""

    page: Page
    frames: list[Image.Image] = field(default_factory=list)
    shown: list[int] = field(default_factory=list)
    _at: tuple[float, float] = (480, 560)

    def take(self, milliseconds: int) -> None:
        """Take a frame."""
        self.frames.append(Image.open(io.BytesIO(self.page.screenshot())).convert("RGB"))
        self.shown.append(milliseconds)

    def point(self, target: Locator, frames: int = 6) -> None:
        """Move the cursor to the middle of `target`."""
        box = target.bounding_box()
        assert box is not None
        end = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        begin, self._at = self._at, end
        for number in range(1, frames + 1):
            part = number / frames
            x, y = (a + (b - a) * part * part * (3 - 2 * part) for a, b in zip(begin, end, strict=True))
            self._place(x, y)
            self.take(70)

    def _place(self, x: float, y: float) -> None:
        script = (
            "([x, y]) => { const c = document.getElementById('shown-cursor').style; c.left = x; c.top = y; }"
        )
        self.page.evaluate(script, [f"{x}px", f"{y}px"])

    def type(self, lab: Lab, code: str, pieces: int, milliseconds: int) -> None:
        """Write code into the last cell, piece by piece, and run it."""
        cell = self.page.locator(".jp-NotebookPanel:visible .jp-Notebook .jp-CodeCell .cm-content").last
        cell.click()
        self._place(-50, -50)
        length = -(-len(code) // pieces)
        for begin in range(0, len(code), length):
            self.page.keyboard.insert_text(code[begin : begin + length])
            self.take(milliseconds)
        self.page.keyboard.press("Shift+Enter")

    def save(self, path: Path) -> None:
        """Write it as an animated WebP that begins again at its end."""
        first, *others = self.frames
        first.save(
            path,
            save_all=True,
            append_images=others,
            duration=self.shown,
            loop=0,
            quality=70,
            method=6,
            minimize_size=True,
        )


def film(lab: Lab) -> Film:
    """A slice is picked, used, looked at, and full."""
    page = lab.page
    taken = Film(page)
    card = lab.card("V100 × 0.02")
    expect(lab.card("V100 × 1.0")).to_contain_text("free")
    page.keyboard.press("Control+b")
    page.evaluate(CURSOR)
    page.wait_for_timeout(1000)
    taken.take(1500)
    taken.point(card)
    taken.take(700)
    lab.start("V100 × 0.02", 0)
    expect(lab.status).to_contain_text("655", timeout=90_000)
    page.wait_for_timeout(1500)
    taken.take(1200)
    taken.type(lab, CODE, 24, 130)
    taken.take(500)
    expect(lab.output("49")).to_be_visible(timeout=90_000)
    page.wait_for_timeout(1000)
    taken.take(2200)
    taken.type(lab, "%gpu", 2, 150)
    expect(lab.output("held for")).to_be_visible()
    page.wait_for_timeout(1500)
    taken.take(2800)
    taken.type(lab, TOO_MUCH, 9, 110)
    expect(lab.output("OUT_OF_MEMORY")).to_be_visible()
    page.wait_for_timeout(1000)
    taken.take(2200)
    taken.type(lab, "%gpu resize 0.05", 3, 150)
    expect(lab.output(re.compile(r"of 1,?63\d MiB"))).to_be_visible()
    page.wait_for_timeout(1500)
    page.locator(".jp-NotebookPanel:visible .jp-CodeCell").last.scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    taken.take(3500)
    return taken


def main() -> None:
    """Film, and write the picture."""
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (home / "work").mkdir()
        state = stack.enter_context(EmbeddedPool("v100:2")).state
        server = stack.enter_context(
            Server(home, pool_environment(state), application="jupyterlab", root=home / "work")
        )
        page = stack.enter_context(browser_page())
        page.set_viewport_size(SIZE)  # type: ignore[arg-type]
        taken = film(Lab(page, server))
        taken.save(PICTURE)
        for number, frame in enumerate(taken.frames if len(sys.argv) > 1 else []):
            frame.save(Path(sys.argv[1]) / f"{number:02}.png")
    seconds, size = sum(taken.shown) / 1000, PICTURE.stat().st_size >> 10
    print(f"{PICTURE}: {len(taken.frames)} frames, {seconds:.1f} s, {size} KiB")


if __name__ == "__main__":
    main()
