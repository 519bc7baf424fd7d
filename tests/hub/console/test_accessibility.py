"""Pages as axe-core sees them, in a real browser: on a phone and on a wide screen, light and dark, in both languages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest

pytest.importorskip("playwright")
pytest.importorskip("axe_playwright_python")

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from gpukernel.common.reservations import Reservation
from tests.conftest import Pool
from tests.hub.console.people import COURSES, Holders, running_console
from tests.hub.console.signed import Signed
from tests.hub.hub import ADMIN, Hub

GRAVE = ("serious", "critical")
LOOKS: list[tuple[int, Literal["light", "dark"], str]] = [
    (390, "light", "en-GB"),
    (390, "dark", "zh-CN"),
    (1280, "light", "zh-CN"),
    (1280, "dark", "en-GB"),
]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Hub, Pool]]:
    home = tmp_path_factory.mktemp("accessible")
    options = {"courses": str(home / "courses.yaml"), "environments": {"PyTorch": {}, "Numba": {}}}
    with running_console(home, COURSES, "v100:2", **options) as (hub, pool), Holders(pool.address) as holders:
        # Something in every table: slices, a queue, history, a reservation, a message.
        done = holders.hold("ben", 0.1)
        holders.ask("release", done.id)
        lease = holders.hold("anna", 0.45, description="kernel 3f2a of lesson.ipynb")
        holders.ask("send_message", lease.id, "The lesson ends at 12.")
        holders.hold("dora", 0.1, "hpc", "elsewhere")
        holders.wait("ben", 0.4)
        holders.wait("carl", 0.45)
        holders.ask("reserve", Reservation("ml101", (1,), "", 600, 720, 0.5))
        yield hub, pool


@pytest.fixture
def signed(browser: Browser, hub: Hub) -> Iterator[Signed]:
    """Whatever it says: axe-core itself tries to style what it looks at."""
    found = Signed(browser, hub)
    yield found
    found.close()


def faults(page: Page) -> list[str]:
    """Return what axe-core calls serious or critical, a line for each place."""
    results = Axe().run(page)
    assert len(results.response["passes"]) > 10  # it looked
    return [
        f"{found['id']} ({found['impact']}): {node['target']} {node['html'][:150]} {node.get('failureSummary', '')}"
        for found in results.response["violations"]
        if found["impact"] in GRAVE
        for node in found["nodes"]
    ]


@pytest.mark.parametrize(("width", "scheme", "locale"), LOOKS)
def test_the_console_has_no_serious_fault(
    signed: Signed, width: int, scheme: Literal["light", "dark"], locale: str
) -> None:
    page = signed.page("prof", "course/ml101", width, locale, scheme)
    # All that is folded up, too: the forms of quotas, offers and reservations, and the history's table.
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    for part in ("live", "queue", "quotas", "offers", "reservations", "history"):
        expect(page.locator(f"#{part}").first).to_be_visible()
    assert faults(page) == []
    page.locator("#quotas input[name=devices]").fill("0.1")
    page.locator("#quotas button").first.click()
    expect(page.get_by_role("dialog").locator("table")).to_be_visible()
    assert faults(page) == []


@pytest.mark.parametrize(("width", "scheme", "locale"), LOOKS)
def test_the_administrator_s_pages_have_no_serious_fault(
    signed: Signed, width: int, scheme: Literal["light", "dark"], locale: str
) -> None:
    page = signed.page(ADMIN, "", width, locale, scheme)
    assert faults(page) == []
    page = signed.page(ADMIN, "admin", width, locale, scheme)
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    expect(page.locator("#audit")).to_be_visible()
    assert faults(page) == []


@pytest.mark.parametrize(("width", "scheme", "locale"), LOOKS)
def test_the_page_before_a_server_starts_has_no_serious_fault(
    signed: Signed, width: int, scheme: Literal["light", "dark"], locale: str
) -> None:
    page = signed.page("prof", "spawn/prof", width, locale, scheme, at="/hub/")
    expect(page.locator("label.gpu-card")).to_have_count(2)
    assert faults(page) == []


@pytest.mark.parametrize(("width", "scheme", "locale"), LOOKS)
def test_a_person_s_own_page_has_no_serious_fault(
    signed: Signed, width: int, scheme: Literal["light", "dark"], locale: str
) -> None:
    page = signed.page("anna", "my", width, locale, scheme)
    expect(page.locator("table")).to_have_count(3)  # she waits for nothing
    assert faults(page) == []
