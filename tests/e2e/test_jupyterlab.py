"""The real JupyterLab in a real browser: the launcher, the status bar, the side panel, the queue; and Notebook."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

pytest.importorskip("playwright")

from playwright.sync_api import expect

from gpukernel.jupyter import kernelspecs
from tests.conftest import Pool, eventually
from tests.e2e.lab import CHROMIUM, Lab, browser_page
from tests.jupyter.server import Server, pool_environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="needs Debian's chromium"),
]
T = TypeVar("T")
expect.set_options(timeout=60_000)
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
MEMORY = "from numba import cuda\nprint(cuda.current_context().get_memory_info()[1] >> 20)"


@pytest.fixture
def server(own_pool: Pool, tmp_path: Path) -> Iterator[Server]:
    work = tmp_path / "work"
    work.mkdir()
    for notebook in NOTEBOOKS.glob("*.ipynb"):
        shutil.copy(notebook, work)
    options = "--GPUKernelSpecManager.slice_config={'wait_seconds': 1}"
    environment = pool_environment(own_pool.state)
    with Server(tmp_path, environment, options, application="jupyterlab", root=work) as running:
        yield running


def test_a_notebook_from_the_launcher_to_the_end_of_its_slice(server: Server, own_pool: Pool) -> None:
    with browser_page() as page:
        lab = Lab(page, server)
        expect(lab.card("V100 × 0.02")).to_contain_text("655 MiB, 50 free")
        lab.start("V100 × 0.02", 0)
        expect(lab.status).to_contain_text("V100 × 0.02 · 0 MiB of 655 MiB")
        lab.cell(
            "import numpy as np\nfrom numba import cuda\nheld = cuda.to_device(np.zeros(100 << 20, np.uint8))"
        )
        expect(lab.status).to_contain_text("100 MiB of 655 MiB", timeout=60_000)
        name = page.locator(".jp-NotebookPanel:visible .jp-KernelName")
        expect(name).to_have_text("V100 × 0.02")  # the launcher's words stay in the launcher
        panel = lab.show_panel()
        expect(panel.locator(".gpukernel-chart polyline.gpukernel-memory")).to_have_attribute(
            "points", re.compile(r",\d")
        )
        lab.of_panel("V100 × 0.02").get_by_role("button", name="Resize…").click()
        lab.own_size("0.05")
        page.get_by_role("button", name="Resize", exact=True).click()
        expect(lab.status).to_contain_text("of 1,638 MiB")
        assert of(own_pool.promised) == 1638 << 20
        lab.of_panel("V100 × 0.0").get_by_role("button", name="Release…").click()
        lab.agree("100 MiB on the GPU are lost.", "Release")
        expect(lab.status).to_contain_text("no slice")
        eventually(lambda: of(own_pool.promised) == 0)


def of(what: Callable[[], T]) -> T:
    """Playwright has an event loop in this thread; the pool is asked in another."""
    with ThreadPoolExecutor(1) as elsewhere:
        return elsewhere.submit(what).result()


def test_a_second_notebook_queues_behind_a_full_pool_and_starts_when_the_first_ends(
    server: Server, own_pool: Pool
) -> None:
    with browser_page() as page:
        lab = Lab(page, server)
        lab.start("V100 × 1.0", 0)
        lab.launcher()
        expect(lab.card("V100 × 0.02")).to_contain_text("would wait")
        lab.start("V100 × 0.02", 1)
        expect(lab.status).to_contain_text("position 1")
        expect(page.locator(".jp-Notification-List, .Toastify")).to_contain_text("position 1 in the queue")
        lab.cell(MEMORY)
        expect(lab.output("waiting for V100 × 0.02: position 1 in the queue")).to_be_visible()
        lab.show_panel()
        lab.of_panel("V100 × 1.0").get_by_role("button", name="Release…").click()
        lab.agree("Nothing is on the GPU now.", "Release")
        expect(lab.output("655")).to_be_visible()
        expect(lab.status).to_contain_text("of 655 MiB")
        # The kernel that used CUDA gets a slice by a restart; that of the other, which did not, comes to it as it is.
        lab.of_panel("V100 × 0.02").get_by_role("button", name="Release…").click()
        lab.agree("must be restarted", "Release")
        lab.of_panel("V100 × 1.0").get_by_role("button", name="Acquire").click()
        expect(lab.of_panel("V100 × 1.0")).to_contain_text("32 GiB")
        expect(lab.of_panel("V100 × 0.02").get_by_role("button", name="Acquire")).to_have_count(0)
        lab.of_panel("V100 × 0.02").get_by_role("button", name="Restart with a slice…").click()
        lab.agree("Its variables are lost", "Restart")
        expect(lab.status).to_contain_text("position 1")
        lab.cell("print(6 * 7)")  # once the restart is over, which asks for the slice, too
        expect(lab.output("42")).to_be_visible()
        # and with the button, out of the queue again
        lab.status.get_by_role("button", name="Leave the queue").click()
        expect(lab.status).to_contain_text("no slice")
        assert of(own_pool.leases)[1] == []


def test_a_size_of_ones_own(server: Server, own_pool: Pool) -> None:
    with browser_page() as page:
        lab = Lab(page, server)
        lab.card("Your own size…").click()
        lab.own_size("0.07")
        words = page.locator(".gpukernel-size-words")
        expect(words).to_have_text("2,293 MiB of memory, 14 free now")
        lab.own_size("0.123")
        expect(words).to_have_text("4,030 MiB of memory, 8 free now")
        go = page.locator(".jp-Dialog button.jp-mod-accept").last
        for share, possible in (("0.0555", True), ("", False), ("0.2", True), ("1.2", False)):
            lab.own_size(share)
            (expect(go).to_be_enabled if possible else expect(go).to_be_disabled)()
        expect(words).to_have_text("A share lies between 0.001 and 1.")
        lab.own_size("0.07")
        expect(words).to_contain_text("14 free now")
        page.get_by_role("button", name="Start a notebook").click()
        expect(lab.status).to_contain_text("V100 × 0.07 · 0 MiB of 2,293 MiB")
        # The launcher's words, “2.2 GiB, 14 free”, stay in the launcher.
        expect(page.locator(".jp-NotebookPanel:visible .jp-KernelName")).to_have_text("V100 × 0.07")
        expect(page.locator("#jp-main-statusbar")).to_contain_text("V100 × 0.07 | Idle")
        assert of(own_pool.promised) == 2293 << 20
        lab.cell("print(6 * 7)")
        expect(lab.output("42")).to_be_visible()


def test_the_first_notebook_runs_and_idling_costs_one_request_in_five_seconds_and_none_when_hidden(
    server: Server,
) -> None:
    with browser_page() as page:
        lab = Lab(page, server, "/tree/01-first-slice.ipynb")
        lab.status.wait_for()
        page.get_by_text("Run", exact=True).first.click()
        page.get_by_text("Run All Cells", exact=True).click()
        expect(page.locator(".jp-NotebookPanel:visible .jp-CodeCell .jp-InputPrompt").last).to_have_text(
            re.compile(r"\[\d+\]:")
        )
        expect(page.locator(".jp-OutputArea-output[data-mime-type*=error]")).to_have_count(0)
        page.wait_for_function("() => true")
        begin = time.monotonic()
        before = len(lab.requests)
        eventually(lambda: page.wait_for_timeout(500) or len(lab.requests) >= before + 4, 60)
        gaps = [b - a for a, b in zip(lab.requests[before:], lab.requests[before + 1 :], strict=False)]
        assert min(gaps) > 4.5
        # Chromium hides a page for CDP's sake only; what the front end reads is document.hidden.
        page.evaluate(
            "() => { Object.defineProperty(document, 'hidden', {get: () => true});"
            " document.dispatchEvent(new Event('visibilitychange')); }"
        )
        page.wait_for_timeout(6_000)  # what was under way
        seen = len(lab.requests)
        page.wait_for_timeout(11_000)
        assert len(lab.requests) == seen
        assert time.monotonic() > begin


@pytest.mark.skipif(not __import__("importlib.util").util.find_spec("notebook"), reason="needs Notebook 7")
def test_notebook_7_shows_the_slice_in_its_toolbar(own_pool: Pool, tmp_path: Path) -> None:
    shutil.copy(NOTEBOOKS / "01-first-slice.ipynb", tmp_path)
    with (
        Server(tmp_path, pool_environment(own_pool.state), application="notebook") as running,
        browser_page() as page,
    ):
        page.goto(f"{running.url}/notebooks/01-first-slice.ipynb?token={running.token}")
        item = page.locator(".gpukernel-in-toolbar")
        expect(item).to_contain_text("V100 × 0.02 · 0 MiB of 655 MiB")
        item.locator("button").first.click()
        expect(page.locator(".gpukernel-panel")).to_contain_text("Release")


@pytest.mark.skipif(not __import__("importlib.util").util.find_spec("notebook"), reason="needs Notebook 7")
def test_notebook_7_s_menu_is_sorted_whole_and_has_a_size_of_ones_own(own_pool: Pool, tmp_path: Path) -> None:
    # Installed ones are found in the order of the disk.
    for share in (1.0, 0.1, 0.03):
        kernelspecs.write(kernelspecs.SliceSpec(share), tmp_path / "data" / "kernels")
    with (
        Server(tmp_path, pool_environment(own_pool.state), application="notebook") as running,
        browser_page() as page,
    ):
        page.goto(f"{running.url}/tree?token={running.token}")
        new = page.locator(".jp-FileBrowser-toolbar .lm-MenuBar-item", has_text="New")
        menu = page.locator(".lm-Menu")
        own = menu.locator(".lm-Menu-item", has_text="Your own size…")
        new.click()
        expect(own).to_be_visible()
        entries = menu.locator(".lm-Menu-itemLabel").all_inner_texts()
        sizes = [entry.split("\N{NO-BREAK SPACE}")[0] for entry in entries if "×" in entry]
        assert sizes == [f"V100 × {share}" for share in (0.02, 0.03, 0.05, 0.1, 0.25, 1.0)]
        assert entries.index("Your own size…") == 1 + len(
            sizes
        )  # behind Python 3 and the slices, before the terminal
        box = menu.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 1280
        own.click()
        page.locator(".gpukernel-size input[type=number]").fill("0.07")
        expect(page.locator(".gpukernel-size-words")).to_contain_text("2,293 MiB of memory, 14 free now")
        with page.expect_popup() as opened:
            page.get_by_role("button", name="Start a notebook").click()
        expect(opened.value.locator(".gpukernel-in-toolbar")).to_contain_text("V100 × 0.07")
        # It stays in the menu when that is made anew, with the size between its neighbours.
        page.bring_to_front()
        expect(own).to_have_count(0)
        new.click()
        expect(menu.locator(".lm-Menu-item", has_text="V100 × 0.07")).to_be_visible()
        entries = menu.locator(".lm-Menu-itemLabel").all_inner_texts()
        own_place = entries.index("Your own size…")
        assert entries[own_place - 4].startswith("V100 × 0.07")
        assert entries.count("Your own size…") == 1
