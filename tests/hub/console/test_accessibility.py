"""Every page and dialog as axe-core sees it, in a real browser: on a phone and on a wide screen, light and dark, in both languages."""

from __future__ import annotations

import re
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

OF_THE_HUB = ("region", "landmark-one-main", "page-has-heading-one")
"""Findings of JupyterHub's own frame, around the part of its page that is ours."""

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
    """Return what axe-core finds, a line for each place; of a dialog that is open, what is in it."""
    page.evaluate(
        "Promise.allSettled(document.getAnimations().map(one => one.finished))"
    )  # colours that change
    modal = page.locator("dialog[open]").count()
    results = Axe().run(page, context={"include": [["dialog"]]} if modal else None)
    assert len(results.response["passes"]) > (5 if modal else 10)  # it looked
    return [
        f"{found['id']} ({found['impact']}): {node['target']} {node['html'][:150]} {node.get('failureSummary', '')}"
        for found in results.response["violations"]
        if not (found["id"] in OF_THE_HUB and "/hub/" in page.url and "/services/" not in page.url)
        for node in found["nodes"]
    ]


@pytest.mark.parametrize(("width", "scheme", "locale"), LOOKS)
def test_the_console_has_no_fault(
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
def test_the_administrator_s_pages_have_no_fault(
    signed: Signed, width: int, scheme: Literal["light", "dark"], locale: str
) -> None:
    page = signed.page(ADMIN, "", width, locale, scheme)
    assert faults(page) == []
    page = signed.page(ADMIN, "admin", width, locale, scheme)
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    expect(page.locator("#audit")).to_be_visible()
    assert faults(page) == []


@pytest.mark.parametrize(("width", "scheme", "locale"), LOOKS)
def test_the_page_before_a_server_starts_has_no_fault(
    signed: Signed, width: int, scheme: Literal["light", "dark"], locale: str
) -> None:
    page = signed.page("prof", "spawn/prof", width, locale, scheme, at="/hub/")
    expect(page.locator("label.gpu-card")).to_have_count(2)
    assert faults(page) == []


RING = """() => {
    const at = document.activeElement, shown = at.closest(".gpu-card")?.querySelector(".card") ?? at
    const style = getComputedStyle(shown)
    return [style.outlineStyle, parseFloat(style.outlineWidth), style.outlineColor, getComputedStyle(document.body).backgroundColor]
}"""


def contrast(above: str, below: str) -> float:
    """Return the contrast of two colours of CSS, the upper one perhaps transparent, as WCAG 2 defines it."""
    top, ground = ([float(part) for part in re.findall(r"[\d.]+", colour)] for colour in (above, below))
    part = top[3] if len(top) > 3 else 1.0
    mixed = [part * one + (1 - part) * other for one, other in zip(top[:3], ground[:3], strict=True)]

    def luminance(colour: list[float]) -> float:
        linear = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour)
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(mixed), luminance(ground)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_who_chooses_by_keyboard_sees_where_they_are(
    signed: Signed, scheme: Literal["light", "dark"]
) -> None:
    page = signed.page("prof", "spawn/prof", 1280, "en-GB", scheme, at="/hub/")
    seen = []
    for _ in range(20):
        page.keyboard.press("Tab")
        here = page.evaluate(
            "document.activeElement.closest('#spawn_form') && document.activeElement.matches('[type=radio], [type=submit]')"
        )
        if here:
            style, width, colour, ground = page.evaluate(RING)
            seen.append((style != "none" and width >= 2, contrast(colour, ground) >= 3))
    assert seen[:2] == [(True, True), (True, True)]  # a course, and Start


@pytest.mark.parametrize(("width", "scheme", "locale"), LOOKS)
def test_a_person_s_own_page_has_no_fault(
    signed: Signed, width: int, scheme: Literal["light", "dark"], locale: str
) -> None:
    page = signed.page("anna", "my", width, locale, scheme)
    expect(page.locator("table")).to_have_count(3)  # she waits for nothing
    assert faults(page) == []


@pytest.mark.parametrize(("width", "scheme", "locale"), [LOOKS[1], LOOKS[2]])
def test_no_dialog_of_the_console_has_a_fault(
    signed: Signed, width: int, scheme: Literal["light", "dark"], locale: str
) -> None:
    page = signed.page("prof", "course/ml101", width, locale, scheme)
    dialog = page.get_by_role("dialog")
    for action in ("message", "resize", "end"):
        page.locator(f"[id^={action}-]").first.click()
        expect(dialog).to_be_visible()
        assert faults(page) == [], action
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
    page.locator("#reservation-form").evaluate("form => form.closest('details').open = true")
    page.locator("#day-2").check()
    for field, text in (("begins", "10:00"), ("ends", "12:00"), ("devices", "0.1")):
        page.locator(f"#reserve-{field}").fill(text)
    page.locator("#reservation-form button").click()
    expect(dialog.locator("form")).to_be_visible()
    assert faults(page) == []
    page.keyboard.press("Escape")
    # Forms with a sentence at a field.
    page.locator("#reserve-begins").fill("ten")
    page.locator("#reservation-form button").click()
    expect(page.locator("#reserve-begins-wrong")).to_be_visible()
    assert faults(page) == []
    page = signed.page(ADMIN, "admin", width, locale, scheme)
    page.locator("#token-person").fill("anna")
    page.locator("#token-scope").select_option("agent")
    page.locator("#token-name").fill("laptop")
    page.locator("#token-form button").click()
    expect(page.locator("#token-person-wrong")).to_be_visible()
    assert faults(page) == []
    page.locator("#token-scope").select_option("person")
    page.locator("#token-form button").click()
    expect(page.locator("#secret")).to_be_visible()
    assert faults(page) == []
    page.keyboard.press("Escape")
    page.locator("[id^=drain-]").first.click()
    expect(page.locator("#deadline")).to_be_visible()
    assert faults(page) == []
    page.keyboard.press("Escape")
    for name, text in (
        ("wrong", "courses:\n  a: {weight: -1}\n"),
        ("right", COURSES.replace("autumn", "spring")),
    ):
        file = {"name": f"{name}.yaml", "mimeType": "application/yaml", "buffer": text.encode()}
        page.locator("#yaml-file").set_input_files(files=[file])  # type: ignore[list-item]
        page.locator("#file button").click()
        expect(page.locator(f"dialog {'.alert-danger' if name == 'wrong' else 'form'}")).to_be_visible()
        assert faults(page) == [], name
        page.keyboard.press("Escape")


@pytest.mark.parametrize(("width", "scheme", "locale"), [LOOKS[1], LOOKS[2]])
def test_the_other_pages_have_no_fault(
    signed: Signed, width: int, scheme: Literal["light", "dark"], locale: str
) -> None:
    page = signed.page(ADMIN, "", width, locale, scheme)
    expect(page.locator(".gk-card")).to_have_count(2)
    assert faults(page) == []
    # A dialog as a page, for browsers without JavaScript, and a refusal.
    address = signed.page("prof", "course/ml101", width, locale, scheme)
    href = address.locator("[id^=end-]").first.get_attribute("href")
    address.goto(f"{address.url.partition('/services/')[0]}{href}")
    expect(address.locator("#reason")).to_be_visible()
    assert faults(address) == []
    address.goto(address.url.replace("ml101", "hpc"))
    expect(address.get_by_role("alert")).to_be_visible()
    assert faults(address) == []


def test_ben_who_waits_has_no_fault_on_his_page(signed: Signed) -> None:
    page = signed.page("ben", "my", 390, "zh-CN", "dark")
    expect(page.locator("table")).to_have_count(3)  # he holds nothing
    assert faults(page) == []
