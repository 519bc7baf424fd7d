"""A student, an instructor and a real JupyterHub in a real browser: from signing in to a notebook on a slice, and to a quota's sentence."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

pytest.importorskip("playwright")

from playwright.sync_api import Page, expect

from tests.conftest import Pool
from tests.e2e.lab import CHROMIUM, Lab, browser_page
from tests.hub.hub import PASSWORD, Hub

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="needs Debian's chromium"),
]
T = TypeVar("T")
ADD = "import numpy as np\nfrom numba import cuda\nprint(cuda.to_device(np.arange(5)).copy_to_host().sum())"


def of(what: Callable[[], T]) -> T:
    """Playwright has an event loop in this thread; the pool is asked in another."""
    with ThreadPoolExecutor(1) as elsewhere:
        return elsewhere.submit(what).result()


def sign_in(page: Page, hub: Hub, person: str) -> None:
    page.goto(f"{hub.url}/hub/login")
    page.fill("#username_input", person)
    page.fill("#password_input", PASSWORD)
    page.click("#login_submit")


def test_from_signing_in_to_a_notebook_and_to_a_lowered_quota(hub: Hub, hub_pool: Pool) -> None:
    with browser_page() as page:
        sign_in(page, hub, "both")
        card = page.locator("label.gpu-card", has_text="Machine learning")
        expect(card).to_contain_text("V100 × 0.02")
        expect(card).to_contain_text("50 free now")
        # The keyboard alone is enough: the arrow keys choose, Enter starts.
        page.locator("input[name=course]:checked").focus()
        page.keyboard.press("ArrowDown")
        chosen = page.locator("input[name=course]:checked").get_attribute("value")
        if chosen != "ml101":
            page.keyboard.press("ArrowDown")
        expect(page.locator("input[value=ml101]")).to_be_checked()
        page.keyboard.press("Enter")
        lab = Lab(page)
        expect(lab.card("V100 × 0.02")).to_contain_text("655 MiB, 50 free", timeout=60_000)
        lab.start("V100 × 0.02", 0)
        lab.cell(ADD)
        expect(lab.output("10")).to_be_visible(timeout=60_000)
        mine = lab.show_panel().get_by_role("link", name="My GPU")
        expect(mine).to_have_attribute("href", re.compile("/services/gpukernel/my$"), timeout=60_000)
        (lease,) = of(hub_pool.live)
        assert (lease.holder.person, lease.holder.course) == ("both", "ml101")

        # What may never be had is refused with the quota's name, and offered no longer; what may be had later waits, and says for what.
        done = of(
            lambda: hub_pool.gpukernel("quota", "set", "student:ml101", "largest_slice=0.05", "leases=1")
        )
        assert done.returncode == 0, done.stderr
        lab.cell("%gpu resize 0.1")
        sentence = "both, as a student of ml101, may have slices of up to 0.05 of a device; 0.10 is larger."
        expect(lab.output(sentence)).to_be_visible()
        lab.launcher()
        expect(lab.card("V100 × 0.02")).to_contain_text("would wait", timeout=90_000)
        expect(lab.card("V100 × 0.1")).to_have_count(0)
        lab.start("V100 × 0.02", 1)
        expect(lab.status).to_contain_text("position 1")
        lab.cell(ADD)
        sentence = "both, as a student of ml101, holds 1 of their 1 leases"
        expect(lab.output(sentence)).to_be_visible(timeout=60_000)
        # The panel says it, too: it is where the slice in the way can be released.
        waits = lab.show_panel().locator(".gpukernel-card[data-state=waiting]")
        expect(waits).to_contain_text("Position 1 in the queue.")
        expect(waits).to_contain_text(sentence)


def test_on_a_phone_the_cards_stand_one_below_the_other(hub: Hub, hub_pool: Pool) -> None:
    with browser_page() as page:
        page.set_viewport_size({"width": 390, "height": 844})
        sign_in(page, hub, "both")
        cards = page.locator("label.gpu-card")
        expect(cards).to_have_count(2)
        first, second = (cards.nth(number).bounding_box() for number in (0, 1))
        assert first is not None
        assert second is not None
        assert second["y"] >= first["y"] + first["height"]
        assert first["x"] + first["width"] <= 390
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        # A screen reader hears a group of choices, each with its course.
        group = page.get_by_role("group", name="Which course is this for?")
        expect(group.get_by_role("radio")).to_have_count(2)
