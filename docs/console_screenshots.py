"""Take docs/images/console-*.png and choice.png again: a real JupyterHub with the console, a lesson on simulated GPUs, in headless Chromium.

Run as ``python -m docs.console_screenshots``; needs Chromium, and a font with Chinese characters.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from gpukernel.client.admin import AdminClient
from gpukernel.common.address import resolve_address
from gpukernel.common.model import Holder
from gpukernel.embedded import EmbeddedPool
from gpukernel.pool.domain.quota import period_start
from tests.conftest import eventually
from tests.e2e.lab import CHROMIUM, QUIET
from tests.hub.console.people import Holders
from tests.hub.hub import ADMIN, ADMIN_PASSWORD, PASSWORD, Hub, environment_of
from tests.pool.world import World

IMAGES = Path(__file__).parent / "images"
STUDENTS = ("anna", "ben", "carl", "dora", "emil", "fatima", "georg", "hana")
COURSES = f"""
courses:
  ml101:
    title: Machine learning
    term: autumn 2026
    instructors: [prof]
    students: [{", ".join(STUDENTS)}]
    offers: [V100 x 0.02, V100 x 0.1, V100 x 0.25]
    quota: {{devices: 1.2, longest_lease: 2h}}
    each_student: {{devices: 0.3, gpu_hours_per_week: 6, idle: 20min}}
  hpc:
    title: Parallel programming
    term: autumn 2026
    weight: 2
    instructors: [chief]
    students: [ida, jan]
  brain:
    title: Research group Brain
    instructors: [lead]
    students: [kim, anna]
    offers: [V100 x 0.25, V100 x 0.5]
"""
SIMULATED = "Tesla V100-SXM2-32GB (simulated)"
# Takes some memory and, where it works, some time on the device.
PROGRAM = """
import ctypes, sys, time
cuda, mib, works = ctypes.CDLL("libcuda.so.1"), int(sys.argv[1]), sys.argv[2] == "busy"
context, device, memory = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint64()
cuda.cuInit(0)
cuda.cuDeviceGet(ctypes.byref(device), 0)
cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(mib << 20))
print("ready", flush=True)
while True:
    if works:
        cuda.cuMemsetD8_v2(memory, 0, ctypes.c_size_t(1 << 20))
        cuda.cuCtxSynchronize()
    time.sleep(1)
"""
WORK = (
    ("anna", "ml101", 0.25, 3100, "busy"),
    ("ben", "ml101", 0.25, 6900, "busy"),
    ("carl", "ml101", 0.1, 200, "idle"),
    ("dora", "ml101", 0.25, 5200, "busy"),
    ("emil", "ml101", 0.02, 120, "busy"),
    ("fatima", "ml101", 0.1, 1800, "busy"),
    ("ida", "hpc", 0.4, 9000, "busy"),
    ("jan", "hpc", 0.2, 2500, "idle"),
    ("kim", "brain", 0.15, 4000, "busy"),
)


def past(state: Path) -> None:
    """Two weeks of lessons in the pool's books, by a clock that is turned."""

    async def tell() -> None:
        dice = random.Random(7)
        today = period_start("day", time.time())
        world = World(state, devices=2, server=socket.gethostname(), now=today - 14 * 86400)
        # The devices that are there later, so that these are not shown beside them as taken out.
        world.agent.devices = [replace(device, name=SIMULATED) for device in world.agent.devices]
        world.agent.attach()
        for day in range(14):
            start = today - (14 - day) * 86400 + 9 * 3600
            lesson = (day + 1) % 7 in (2, 4)
            for person in STUDENTS:
                if dice.random() < (0.95 if lesson else 0.25):
                    world.now = start
                    share = dice.choice((0.02, 0.1, 0.25))
                    lease = await world.get(f"{person}{day}", share, holder=Holder(person, course="ml101"))
                    world.now = start + dice.uniform(1200, 9000)
                    world.manager.end(lease.id, "done")
        world.store.close()

    asyncio.run(tell())


def start_work(stack: contextlib.ExitStack, pool: EmbeddedPool, home: Path) -> None:
    """Everybody's programs, each with a token of the person's own."""
    (home / "lesson.py").write_text(PROGRAM)
    path = f"{Path(sys.executable).parent}{os.pathsep}{pool.environment['PATH']}"

    async def tokens() -> dict[str, str]:
        async with AdminClient(resolve_address(None, pool.state)) as client:
            return {
                person: (await client.create_token(f"{person}'s server", person))[1] for person, *_ in WORK
            }

    secrets = asyncio.run(tokens())
    for person, course, share, mib, how in WORK:
        command = [sys.executable, "-m", "gpukernel.cli", "run", "-p", str(share), "--course", course]
        process = subprocess.Popen(
            [*command, "--", "python", "lesson.py", str(mib), how],
            env=pool.environment | {"GPUKERNEL_POOL_TOKEN": secrets[person], "PATH": path},
            cwd=home,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(process.wait)
        stack.callback(process.terminate)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"


def signed_in(
    browser: Browser, hub: Hub, person: str, path: str, width: int, locale: str, after: str = ""
) -> Page:
    context = browser.new_context(
        viewport={"width": width, "height": 820}, locale=locale, device_scale_factor=1.5
    )
    page = context.new_page()
    page.goto(f"{hub.url}/hub/login?next={after or '/services/gpukernel/' + path}")
    page.locator("input[name=username]").fill(person)
    page.locator("input[name=password]").fill(ADMIN_PASSWORD if person == ADMIN else PASSWORD)
    page.keyboard.press("Enter")
    page.locator("h1").first.wait_for()
    page.wait_for_load_state("load")
    return page


def choice(browser: Browser, hub: Hub) -> None:
    """The page on which somebody in two courses chooses."""
    page = signed_in(browser, hub, "anna", "", 1180, "en-GB", after="/hub/spawn")
    page.locator("label.gpu-card").first.wait_for()
    page.screenshot(path=IMAGES / "choice.png", clip={"x": 0, "y": 0, "width": 1180, "height": 470})


def shot(page: Page, name: str, height: int = 0) -> None:
    page.wait_for_timeout(500)
    if height:
        page.screenshot(
            path=IMAGES / f"console-{name}.png",
            full_page=True,
            clip={"x": 0, "y": 0, "width": 1180, "height": height},
        )
    else:
        page.screenshot(path=IMAGES / f"console-{name}.png")


def main() -> None:
    """Take all of them."""
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (home / "state").mkdir()
        past(home / "state")
        (home / "courses.yaml").write_text(COURSES)
        pool = stack.enter_context(EmbeddedPool("v100:2", home / "state"))
        holders = stack.enter_context(Holders(resolve_address(None, pool.state)))
        holders.ask("import_courses", COURSES)
        start_work(stack, pool, home)
        holders.wait("georg", 0.25)
        holders.wait("hana", 0.3)
        hub = stack.enter_context(
            Hub(home, environment_of(pool.state, home), {"pool": resolve_address(None, pool.state)})
        )
        browser = stack.enter_context(sync_playwright()).chromium.launch(
            executable_path=str(CHROMIUM), args=QUIET
        )
        stack.callback(browser.close)
        choice(browser, hub)
        page = signed_in(browser, hub, "prof", "", 1180, "en-GB")
        eventually(
            lambda: "idle" in page.locator("#live").inner_text() and page.locator("#live .busy").count() > 4
        )
        shot(page, "course", page.evaluate("document.querySelector('#quotas').offsetTop - 12"))
        page.locator("#history").scroll_into_view_if_needed()
        page.locator("#history").screenshot(path=IMAGES / "console-history.png")
        page.get_by_label("Devices at one moment", exact=True).fill("0.2")
        page.get_by_label("Largest slice", exact=True).fill("0.1")
        page.locator("#quotas").get_by_role("button", name="Look at the effect").click()
        page.get_by_role("dialog").get_by_role("button", name="Apply").wait_for()
        shot(page, "quota")
        page = signed_in(browser, hub, "prof", "", 390, "zh-CN")
        shot(page, "phone-zh")
        page = signed_in(browser, hub, ADMIN, "admin", 1180, "en-GB")
        shot(page, "admin", page.evaluate("document.querySelector('#tokens').offsetTop - 12"))


if __name__ == "__main__":
    main()
