"""The life of a slice in the real JupyterLab: what is lost is asked about, what is left can be had again, one notification each."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

pytest.importorskip("playwright")
pytest.importorskip("axe_playwright_python")

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.conftest import Pool, eventually
from tests.e2e.lab import CHROMIUM, Lab, browser_page
from tests.jupyter.server import Server, pool_environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="needs Debian's chromium"),
]
THOROUGH = pytest.mark.thorough
T = TypeVar("T")
expect.set_options(timeout=60_000)
MEMORY = "from numba import cuda\nprint(cuda.current_context().get_memory_info()[1] >> 20)"
HOLD = "import numpy as np\nfrom numba import cuda\nheld = cuda.to_device(np.zeros(100 << 20, np.uint8)); print('held')"
TOO_MUCH = "more = cuda.device_array(800 << 20, np.uint8)"
FAULT = "@cuda.jit\ndef astray(x): x[cuda.grid(1) + 10**12] = 1\nastray[1, 1](held); cuda.synchronize()"
CHINESE = re.compile("[\N{CJK UNIFIED IDEOGRAPH-4E00}-\N{CJK UNIFIED IDEOGRAPH-9FFF}]")


def of(what: Callable[[], T]) -> T:
    """Playwright has an event loop in this thread; the pool is asked in another."""
    with ThreadPoolExecutor(1) as elsewhere:
        return elsewhere.submit(what).result()


class Settings:
    """A person's choices in JupyterLab's settings."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "config" / "lab" / "user-settings" / "@jupyterlab"

    def write(self, plugin: str, **values: object) -> None:
        path = self._folder / f"{plugin}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path)


@pytest.fixture
def server(own_pool: Pool, tmp_path: Path, settings: Settings) -> Iterator[Server]:
    work = tmp_path / "work"
    work.mkdir()
    options = "--GPUKernelSpecManager.slice_config={'wait_seconds': 1}"
    with Server(
        tmp_path, pool_environment(own_pool.state), options, application="jupyterlab", root=work
    ) as running:
        yield running


@pytest.mark.parametrize(
    "where", ["panel", pytest.param("toast", marks=THOROUGH), pytest.param("status bar", marks=THOROUGH)]
)
def test_after_leaving_the_queue_the_next_run_of_the_cell_queues_again(
    server: Server, own_pool: Pool, where: str
) -> None:
    with browser_page() as page:
        lab = Lab(page, server)
        lab.start("V100 × 1.0", 0)
        lab.launcher()
        lab.start("V100 × 0.02", 1)
        lab.cell(MEMORY)
        expect(lab.output("position 1 in the queue")).to_be_visible()
        panel = lab.show_panel()
        expect(lab.toasts).to_contain_text("V100 × 0.02 (Untitled1.ipynb): position 1 in the queue")
        place = {"panel": lab.of_panel("V100 × 0.02"), "toast": lab.toasts, "status bar": lab.status}[where]
        place.get_by_role("button", name="Leave the queue").click()
        expect(lab.output("KeyboardInterrupt")).to_be_visible()
        expect(lab.output("run the cell again to queue again")).to_be_visible()
        expect(lab.of_panel("V100 × 0.02")).to_contain_text("run the cell again to queue again")
        assert of(own_pool.leases)[1] == []
        # For a second after it left the queue a call does not queue again: a cell makes many of them.
        page.wait_for_timeout(1_100)
        lab.cell(MEMORY)
        expect(lab.output("position 1 in the queue")).to_be_visible()
        panel.locator(".gpukernel-card", has_text="V100 × 1.0").get_by_role("button", name="Release…").click()
        lab.agree("Nothing is on the GPU now.", "Release")
        expect(lab.output("655")).to_be_visible()


@pytest.mark.thorough
def test_another_program_s_slice_is_released_after_a_question_that_says_what_it_loses(
    server: Server, own_pool: Pool
) -> None:
    code = "import numpy as np; from numba import cuda; x = cuda.to_device(np.zeros(300 << 20, np.uint8)); print('held', flush=True); input()"
    program = own_pool.start_on_slice(code, "-p", "0.1")
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "held\n"
        with browser_page() as page:
            lab = Lab(page, server)
            page.get_by_role("tab", name="GPU slices").click()
            panel = page.locator(".gpukernel-panel")
            expect(panel).to_contain_text("300 MiB of 3,276 MiB")
            panel.get_by_role("button", name="Release…").click()
            dialog = page.locator(".jp-Dialog")
            expect(dialog).to_contain_text("It has 300 MiB on the GPU, which are lost.")
            page.keyboard.press("Enter")  # changes nothing: what cannot be undone wants a click
            dialog.wait_for(state="detached")
            assert len(of(own_pool.live)) == 1
            panel.get_by_role("button", name="Release…").click()
            lab.agree("Release the slice of another program?", "Release")
            expect(panel).to_contain_text("You hold no slice.")
            assert of(own_pool.live) == []
    finally:
        program.kill()
        program.wait()


def test_the_panel_says_what_to_do_after_out_of_memory_and_a_fault_and_does_it(
    server: Server, own_pool: Pool
) -> None:
    with browser_page() as page:
        lab = Lab(page, server)
        lab.start("V100 × 0.02", 0)
        lab.cell(HOLD)
        expect(lab.output("held")).to_be_visible()
        lab.show_panel()
        card = lab.of_panel("V100 × 0.0")
        lab.cell(TOO_MUCH)
        expect(card).to_contain_text(
            "Out of memory: this slice has 655 MiB. “%gpu resize 0.05” makes it larger."
        )
        card.get_by_role("button", name="Resize to 0.05").click()
        expect(card).not_to_contain_text("Out of memory")
        expect(card).to_contain_text("of 1,638 MiB")
        lab.cell(FAULT)
        expect(lab.output("restart the kernel. Its slice is kept")).to_be_visible()
        expect(card).to_contain_text("A fault has ended this kernel’s work on the GPU.")
        lab.status.get_by_role("button", name="Restart the kernel…").click()
        lab.agree("It keeps its slice, V100 × 0.05.", "Restart")
        expect(card).not_to_contain_text("A fault")
        lab.cell(HOLD)
        expect(lab.output("held")).to_have_count(1)
        assert of(own_pool.promised) == 1638 << 20


@pytest.mark.thorough
def test_an_idle_slice_has_one_notification_that_keeps_it_and_tells_its_end(
    server: Server, own_pool: Pool
) -> None:
    assert of(lambda: own_pool.gpukernel("quota", "set", "pool", "idle=40s")).returncode == 0
    with browser_page() as page:
        lab = Lab(page, server)
        lab.start("V100 × 0.02", 0)
        lab.cell(HOLD)
        expect(lab.output("held")).to_be_visible()
        expect(lab.toasts).to_contain_text("This slice is idle and will be released at")
        lab.toasts.get_by_role("button", name="Keep it").click()
        expect(lab.toasts).to_contain_text("V100 × 0.02 (Untitled.ipynb) is kept.")
        expect(lab.toasts).to_have_count(0)
        eventually(lambda: of(own_pool.live)[0].notice == "")
        # Left alone this time, it ends: the same notification says so, and offers the way on.
        expect(lab.toasts).to_contain_text("This slice is idle and will be released at")
        expect(lab.toasts).to_contain_text("V100 × 0.02 (Untitled.ipynb) is gone: it was idle for 40 s.")
        expect(lab.toasts).to_have_count(1)
        lab.toasts.get_by_role("button", name="Restart with a slice…").click()
        lab.agree("Its variables are lost", "Restart")
        expect(lab.status).to_contain_text("of 655 MiB")
        expect(lab.toasts).to_have_count(0)


@pytest.mark.thorough
def test_five_slices_that_wait_have_three_notifications(server: Server, own_pool: Pool) -> None:
    with browser_page() as page:
        lab = Lab(page, server)
        lab.start("V100 × 1.0", 0)
        for number in range(5):
            of(lambda number=number: server.session("gpu-v100-0.02", f"{number}.ipynb"))  # type: ignore[misc]
        expect(lab.toasts).to_have_count(3)
        expect(lab.toasts.filter(has_text="More slices that wait or are gone: 3.")).to_have_count(1)
        lab.toasts.get_by_role("button", name="Show all").click()
        expect(page.locator(".gpukernel-card[data-state=waiting]")).to_have_count(5)


def test_what_cannot_run_on_a_slice_says_so_and_the_way_out_under_its_cell(
    server: Server, tmp_path: Path
) -> None:
    runtime = importlib.util.find_spec("nvidia.cuda_runtime")
    if runtime is None or not runtime.submodule_search_locations:
        pytest.skip("the wheel nvidia-cuda-runtime-cu12 is not installed")
    # Such as CuPy: a module of Python's with NVIDIA's runtime linked in.
    library = tmp_path / "framework.so"
    (tmp_path / "framework.cpp").write_text(
        'extern "C" int cudaGetDeviceCount(int*); extern "C" int look() { int n = 0; return cudaGetDeviceCount(&n); }'
    )
    static = Path(runtime.submodule_search_locations[0], "lib", "libcudart_static.a")
    build = ["c++", "-shared", "-fPIC", str(tmp_path / "framework.cpp"), "-o", str(library), str(static)]
    subprocess.run([*build, "-ldl", "-lrt", "-lpthread"], check=True)
    with browser_page() as page:
        lab = Lab(page, server)
        lab.start("V100 × 0.02", 0)
        lab.cell(f"import ctypes; print('status', ctypes.CDLL({str(library)!r}).look())")
        expect(lab.output(re.compile(r"status [1-9]"))).to_be_visible()
        expect(lab.output("link the shared one (nvcc -cudart shared)")).to_contain_text(
            "see “Which framework runs where” in docs/frameworks.md."
        )


def faults(page: Page) -> list[str]:
    """Findings of axe-core in the panel, the status bar's item, and a notification or dialog of ours."""
    parts = [".gpukernel-panel", ".gpukernel-status", ".gpukernel-question"]
    there = [[part] for part in parts if page.locator(part).count() and page.locator(part).first.is_visible()]
    results = Axe().run(page, context={"include": there})
    assert results.response["passes"]  # it looked
    return [
        f"{found['id']} ({found['impact']}): {node['target']} {node['html'][:150]} {node.get('failureSummary', '')}"
        for found in results.response["violations"]
        for node in found["nodes"]
    ]


@pytest.mark.parametrize(
    ("language", "theme", "width"),
    [
        pytest.param("en", "JupyterLab Light", 1280, marks=THOROUGH),
        ("zh_CN", "JupyterLab Dark", 1280),
        pytest.param("zh_CN", "JupyterLab Light", 640, marks=THOROUGH),
    ],
)
def test_the_panel_speaks_the_reader_s_language_and_has_no_fault_of_accessibility(
    own_pool: Pool, tmp_path: Path, settings: Settings, language: str, theme: str, width: int
) -> None:
    settings.write("apputils-extension/themes", theme=theme)
    if language != "en":
        settings.write("translation-extension/plugin", locale=language)
    chinese = language == "zh_CN"
    environment = pool_environment(own_pool.state)
    options = "--GPUKernelSpecManager.slice_config={'wait_seconds': 1}"
    own_pool.gpukernel("quota", "set", "pool", "largest_slice=0.5")
    own_pool.gpukernel("quota", "set", "person:*", "gpu_hours_per_week=9")
    with Server(tmp_path, environment, options, application="jupyterlab") as server, browser_page() as page:
        lab = Lab(page, server)
        free = lab.card("V100 × 0.25")
        expect(free).to_contain_text("空闲 4 个" if chinese else "4 free")
        assert ("free" in free.inner_text()) != chinese
        lab.start("V100 × 0.02", 0)
        expect(page.locator(".jp-Toolbar-kernelName:visible")).to_have_text("V100 × 0.02")
        lab.cell(HOLD)
        expect(lab.output("held")).to_be_visible()
        panel = lab.show_panel()
        page.set_viewport_size({"width": width, "height": 760})
        card = lab.of_panel("V100 × 0.02")
        expect(card).to_contain_text("100 MiB / 655 MiB" if chinese else "100 MiB of 655 MiB")
        # A slice of 0.02 takes an hour for a GPU-minute.
        expect(panel).to_contain_text(
            re.compile(
                r"本周已用 < 0\.1 GPU 分钟，限额 9 GPU 小时"
                if chinese
                else r"< 0\.1 GPU-minutes of 9 GPU-hours this week"
            )
        )
        assert faults(page) == []
        card.get_by_role("button").first.click()  # another size, larger than a quota allows
        lab.own_size("0.6")
        page.locator(".jp-Dialog button.jp-mod-accept").last.click()
        expect(lab.toasts).to_contain_text(
            "资源池的切片最大为一块设备的 0.50；所请求的 0.60 超出了。"
            if chinese
            else "The pool may have slices of up to 0.50 of a device; 0.60 is larger."
        )
        of(lambda: own_pool.gpukernel("quota", "set", "pool", "largest_slice=none"))
        expect(lab.toasts).to_have_count(0)
        lab.cell(TOO_MUCH)
        expect(card).to_contain_text("“%gpu resize 0.05”可将其扩大" if chinese else "makes it larger")
        assert faults(page) == []
        card.get_by_role("button").last.click()
        expect(page.locator(".gpukernel-question")).to_contain_text(
            "GPU 上的 100 MiB 数据将丢失。" if chinese else "100 MiB on the GPU are lost."
        )
        assert faults(page) == []
        page.locator(".jp-Dialog button.jp-mod-warn").click()
        expect(card).to_contain_text("须重启后才能再次使用切片" if chinese else "must be restarted")
        assert faults(page) == []
        of(lambda: server.session("gpu-v100-1.0", "all.ipynb"))
        of(lambda: server.session("gpu-v100-0.1", "waits.ipynb"))
        expect(panel).to_contain_text("在队列中排第 1 位。" if chinese else "Position 1 in the queue.")
        expect(lab.toasts).to_contain_text("在队列中排第 1 位" if chinese else "position 1 in the queue")
        assert faults(page) == []
        assert bool(CHINESE.search(panel.inner_text())) == chinese
        if chinese:  # nothing is left in English but names
            words = re.findall(r"[A-Za-z]{4,}", re.sub(r"\w+\.ipynb", "", panel.inner_text()))
            assert set(words) <= {"CUDA"}
