"""Take docs/images/*.png again: the real JupyterLab on a pool of simulated GPUs, in headless Chromium.

Run as ``make screenshots``, or ``python -m docs.screenshots profile`` for the profile alone; needs Chromium.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, expect

from gpukernel.embedded import EmbeddedPool
from tests.e2e.lab import Lab, browser_page
from tests.jupyter.server import Server, pool_environment

ROOT = Path(__file__).parents[1]
expect.set_options(timeout=90_000)
IMAGES = ROOT / "docs" / "images"
SPIN = """\
import numpy as np
from numba import cuda

@cuda.jit
def walk(x):
    i = cuda.grid(1)
    for _ in range(200):
        x[i] = x[i] * 1.0001 + 1e-6

held = cuda.to_device(np.ones(40 << 20, np.float32))
for step in range(1000):
    walk[1 << 12, 256](held)
    cuda.synchronize()"""
MEASURED = """\
%%gpu
x = cuda.to_device(np.ones(8 << 20, np.float32))
walk[1 << 9, 256](x)
print(x.copy_to_host().mean())"""

TRANSPOSES = """\
import numpy as np
from numba import cuda, float32

N, TILE, PADDED = 512, 32, 33

@cuda.jit(lineinfo=True)
def transpose_naive(out, a):
    x, y = cuda.grid(2)
    out[y, x] = a[x, y]

@cuda.jit(lineinfo=True)
def transpose_tiled(out, a):
    tile = cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.blockIdx.x * TILE + cuda.threadIdx.x, cuda.blockIdx.y * TILE + cuda.threadIdx.y
    for j in range(0, TILE, 8):
        tile[cuda.threadIdx.y + j, cuda.threadIdx.x] = a[y + j, x]
    cuda.syncthreads()
    x, y = cuda.blockIdx.y * TILE + cuda.threadIdx.x, cuda.blockIdx.x * TILE + cuda.threadIdx.y
    for j in range(0, TILE, 8):
        out[y + j, x] = tile[cuda.threadIdx.x, cuda.threadIdx.y + j]

@cuda.jit(lineinfo=True)
def transpose_padded(out, a):
    tile = cuda.shared.array((TILE, PADDED), float32)
    x, y = cuda.blockIdx.x * TILE + cuda.threadIdx.x, cuda.blockIdx.y * TILE + cuda.threadIdx.y
    for j in range(0, TILE, 8):
        tile[cuda.threadIdx.y + j, cuda.threadIdx.x] = a[y + j, x]
    cuda.syncthreads()
    x, y = cuda.blockIdx.y * TILE + cuda.threadIdx.x, cuda.blockIdx.x * TILE + cuda.threadIdx.y
    for j in range(0, TILE, 8):
        out[y + j, x] = tile[cuda.threadIdx.x, cuda.threadIdx.y + j]

@cuda.jit(lineinfo=True)
def collatz(steps):
    i = cuda.grid(1)
    n, count = i + 1, 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        count += 1
    steps[i] = count

a, out = cuda.to_device(np.random.rand(N, N).astype(np.float32)), cuda.device_array((N, N), np.float32)
transpose_naive[(N // 16, N // 16), (16, 16)](out, a)
transpose_tiled[(N // TILE, N // TILE), (TILE, 8)](out, a)
transpose_padded[(N // TILE, N // TILE), (TILE, 8)](out, a)
assert np.array_equal(out.copy_to_host(), a.copy_to_host().T)
collatz[16, 128](cuda.device_array(16 * 128, np.int32))
cuda.synchronize()
"""


def shot(lab: Lab, name: str) -> None:
    """One picture, when nothing moves any more and JupyterLab asks nothing."""
    lab.page.wait_for_timeout(1200)
    if (news := lab.page.get_by_role("button", name="No", exact=True)).is_visible():
        news.evaluate(
            "button => button.click()"
        )  # a click of Playwright's would wait for the handler of `Lab`
        lab.page.wait_for_timeout(1500)
    lab.page.screenshot(path=IMAGES / f"{name}.png")


def launcher(lab: Lab) -> None:
    """Return what is free now."""
    expect(lab.card("V100 × 1.0")).to_contain_text("free")
    lab.page.keyboard.press("Control+b")
    shot(lab, "launcher")
    lab.page.keyboard.press("Control+b")


def magics(lab: Lab) -> None:
    """%gpu, %%gpu and %gpu watch, one under the other."""
    lab.start("V100 × 0.02", 0)
    lab.page.keyboard.press("Control+b")
    lab.cell(SPIN.split("held")[0].strip())
    lab.cell("%gpu")
    expect(lab.output("held for")).to_be_visible()
    lab.cell("%gpu watch")
    lab.cell(MEASURED)
    expect(lab.output("launch")).to_be_visible()
    lab.cell("for _ in range(60): walk[1 << 9, 256](x); cuda.synchronize()")
    lab.page.wait_for_timeout(25_000)
    lab.page.locator(".jp-NotebookPanel:visible .jp-CodeCell").first.scroll_into_view_if_needed()
    lab.output("held for").hover()
    lab.page.mouse.wheel(0, -3000)
    shot(lab, "magics")
    lab.page.keyboard.press("Control+b")


def waiting(lab: Lab) -> None:
    """A cell, the status bar, a notification and the panel say where a kernel stands in the queue."""
    lab.launcher()
    lab.start("V100 × 0.25", 1)
    lab.cell(SPIN)
    lab.launcher()
    lab.start("V100 × 1.0", 2)
    expect(lab.status).to_contain_text("position")
    lab.cell("from numba import cuda\nprint(cuda.current_context().get_memory_info())")
    expect(lab.output("waiting for")).to_be_visible()
    lab.show_panel()
    lab.page.wait_for_timeout(30_000)  # until there is something in the charts
    shot(lab, "waiting")


def slices(lab: Lab) -> None:
    """The side panel, beside the notebook that works, and the dialog for a size of one's own."""
    lab.status.get_by_role("button", name="Leave the queue").click()
    lab.page.get_by_role("tab", name="Untitled1.ipynb").click()
    lab.page.wait_for_timeout(20_000)
    shot(lab, "slices")
    lab.page.locator(".gpukernel-panel").get_by_role("button", name="Your own size").click()
    lab.own_size("0.07")
    shot(lab, "own-size")
    lab.page.get_by_role("button", name="Cancel").last.click()


def shut_down(lab: Lab, server: Server) -> None:
    """Shut all kernels down, so that the one of the next picture has the processors for itself."""
    headers = {"Authorization": f"token {server.token}"}
    for kernel in lab.page.request.get(f"{server.url}/api/kernels", headers=headers).json():
        lab.page.request.delete(f"{server.url}/api/kernels/{kernel['id']}", headers=headers)


def notebook(lab: Lab) -> None:
    """The second notebook, executed, at its plots."""
    page = lab.page
    page.locator(".jp-Notebook").wait_for()
    page.get_by_text("Run", exact=True).first.click()
    page.get_by_text("Run All Cells", exact=True).click()
    page.get_by_text("'test accuracy'").wait_for(timeout=300_000)
    page.locator(".jp-OutputArea img").last.scroll_into_view_if_needed()
    shot(lab, "notebook")


def profile(page: Page, pool: EmbeddedPool, home: Path) -> None:
    """The page that ``gpukernel run --profile-to`` writes."""
    (home / "transposes.py").write_text(TRANSPOSES)
    words = [sys.executable, "-m", "gpukernel.cli", "run", "-p", "0.1", "--profile-to", "profile.html"]
    command = [*words, "--", "python", "transposes.py"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{pool.environment['PATH']}"
    subprocess.run(command, cwd=home, env=pool.environment | {"PATH": path}, check=True)
    page.set_viewport_size({"width": 1160, "height": 350})
    page.goto((home / "profile.html").as_uri())
    page.screenshot(path=IMAGES / "profile.png", full_page=True)


def main() -> None:
    """Take all of them, or those of the words of the command line: ``profile``."""
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        work = home / "work"
        shutil.copytree(ROOT / "notebooks", work)
        pool = stack.enter_context(EmbeddedPool("v100:1"))
        state = pool.state
        with browser_page() as page:
            profile(page, pool, home)
        if sys.argv[1:] == ["profile"]:
            return
        options = "--GPUKernelSpecManager.slice_config={'wait_seconds': 1}"
        server = stack.enter_context(
            Server(home, pool_environment(state), options, application="jupyterlab", root=work)
        )
        with browser_page() as page:
            lab = Lab(page, server)
            launcher(lab)
            magics(lab)
            waiting(lab)
            slices(lab)
            shut_down(lab, server)
        with browser_page() as page:
            notebook(Lab(page, server, "/tree/02-classification.ipynb"))


if __name__ == "__main__":
    main()
