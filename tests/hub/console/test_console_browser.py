"""The console in a real browser: keyboard, focus, dialogs, times, phones, and what JavaScript adds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("playwright")

from playwright.sync_api import expect

from gpukernel.common.errors import Refused
from tests.hub.console.people import Holders
from tests.hub.console.signed import Signed
from tests.hub.hub import ADMIN


def test_the_live_view_changes_by_itself_and_leaves_the_focus_where_it_is(
    signed: Signed, holders: Holders
) -> None:
    first = holders.hold("anna", 0.3, description='<img src=x onerror="alert(1)">')
    page = signed.page("prof")
    row = page.locator("#live").get_by_role("row", name=re.compile("anna"))
    expect(row).to_contain_text('<img src=x onerror="alert(1)">')
    button = row.get_by_role("button", name=re.compile("^Message"))
    button.focus()
    second = holders.hold("ben", 0.2)
    expect(page.locator("#live").get_by_role("row", name=re.compile("ben"))).to_be_visible()
    expect(page.locator("#live dd").first).to_contain_text("0.50")
    expect(button).to_be_focused()
    assert page.evaluate("document.activeElement.id") == f"message-{first.id}"
    holders.ask("release", second.id)
    expect(page.locator("#live").get_by_role("row", name=re.compile("ben"))).to_have_count(0)
    expect(button).to_be_focused()


def test_a_message_by_keyboard_alone(signed: Signed, holders: Holders) -> None:
    lease = holders.hold("anna", 0.3)
    page = signed.page("prof")
    button = page.locator(f"#message-{lease.id}")
    button.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    expect(page.locator("#text")).to_be_focused()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(button).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#text")).to_be_focused()
    page.keyboard.type("It is noon.")
    # What is being written survives that the page behind the dialog looks again.
    with page.expect_response(re.compile(r"/course/ml101/live$")):
        pass
    expect(page.locator("#text")).to_have_value("It is noon.")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("The message to anna is under way.")
    expect(dialog).to_be_hidden()
    expect(page.locator("#live").get_by_role("row", name=re.compile("anna"))).to_contain_text(
        "prof: It is noon."
    )
    assert holders.ask("renew", lease.id).notice == "prof: It is noon."


def test_a_quota_s_effect_is_shown_before_it_is_applied(signed: Signed, holders: Holders) -> None:
    holders.hold("anna", 0.4)
    page = signed.page("prof")
    dialog = page.get_by_role("dialog")
    page.locator("#quotas").get_by_label("Devices at one moment", exact=True).fill("0.1")
    page.locator("#quotas").get_by_role("button", name="Look at the effect").click()
    expect(dialog).to_contain_text("1 person is above the new limit of 0.1")
    expect(dialog).to_contain_text("anna")
    dialog.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("status")).to_contain_text("The quotas are set; they count at once.")
    expect(dialog).to_be_hidden()
    with pytest.raises(Refused, match=r"may hold at most 0\.10 devices"):
        holders.hold("ben", 0.2)


@pytest.mark.parametrize(
    ("locale", "sentences"),
    [
        (
            "en-GB",
            [
                "Write a number from 0 to 100,000, such as 2.5, not “1e12”.",
                "A course needs a title: it is what people choose from.",
                "Write a time of the day as 10:00, up to 24:00.",
            ],
        ),
        (
            "zh-CN",
            [
                "请填写介于 0 到 100,000 之间的数，例如 2.5，而不是“1e12”。",
                "课程需要一个标题，供人选择。",
                "请按 10:00 的格式填写时间，最晚 24:00。",
            ],
        ),
    ],
)
def test_what_is_wrong_in_a_form_stands_at_its_field(
    signed: Signed, holders: Holders, locale: str, sentences: list[str]
) -> None:
    page = signed.page("prof", locale=locale)
    for form, field, text, sentence in (
        ("#quota-form-student", "#student-devices", "1e12", sentences[0]),
        ("#offers-form", "#title", " ", sentences[1]),
        ("#reservation-form", "#reserve-begins", "ten", sentences[2]),
    ):
        page.locator(field).evaluate("field => field.closest('details')?.setAttribute('open', '')")
        if form == "#reservation-form":
            page.locator("#day-1").check()
            page.locator("#reserve-ends").fill("12:00")
            page.locator("#reserve-devices").fill("0.5")
        page.locator(field).fill(text)
        page.locator(f"{form} button").click()
        wrong = page.locator(f"{field}-wrong")
        expect(wrong).to_have_text(sentence)
        expect(wrong).to_have_role("alert")
        expect(page.locator(field)).to_have_attribute("aria-invalid", "true")
        expect(page.locator(field)).to_be_focused()
        expect(page.locator(field)).to_have_value(text.strip())
        assert f"{field[1:]}-wrong" in (page.locator(field).get_attribute("aria-describedby") or "")
        expect(page.get_by_role("dialog")).to_be_hidden()
    # Written right, the same form goes on.
    page.locator("#student-devices").fill("0.4")
    page.locator("#quota-form-student button").click()
    expect(page.get_by_role("dialog")).to_be_visible()


def test_new_times_count_for_slices_held_now_where_the_box_is_ticked(
    signed: Signed, holders: Holders
) -> None:
    lease = holders.hold("anna", 0.2)
    page = signed.page("prof")
    dialog = page.get_by_role("dialog")
    for hours, tick in (("2h", False), ("3h", True)):
        page.locator("#student-longest_lease").fill(hours)
        page.locator("#quota-form-student button").click()
        expect(dialog).to_contain_text("1 slice held now keeps its old limit (Longest time of a slice)")
        if tick:
            dialog.get_by_label("Also for slices held now").check()
        dialog.get_by_role("button", name="Apply").click()
        said = page.get_by_role("status")
        expect(said).to_contain_text(
            "1 slice held now has the new times, too." if tick else "The quotas are set"
        )
        expect(dialog).to_be_hidden()
        until = next(one.until for one in holders.ask("leases")[0] if one.id == lease.id)
        assert (until > 0) == tick


def test_who_waits_is_moved_and_a_slice_is_ended(signed: Signed, holders: Holders) -> None:
    lease = holders.hold("anna", 0.5)
    holders.wait("ben", 0.5)
    holders.wait("carl", 0.45)
    page = signed.page("prof")
    places = page.locator("#queue tbody tr")
    expect(places.nth(1)).to_contain_text("carl")
    places.nth(1).get_by_role("button", name=re.compile("Up")).click()
    expect(places.nth(0)).to_contain_text("carl")
    expect(page.get_by_role("status")).to_contain_text("The order has changed.")
    page.locator(f"#end-{lease.id}").click()
    page.get_by_label("Reason, for the student").fill("the lesson is over")
    page.get_by_role("dialog").get_by_role("button", name="End the slice").click()
    expect(page.get_by_role("status")).to_contain_text("The slice of anna has ended.")
    # carl, who was moved up, is served next.
    expect(page.locator("#live").get_by_role("row", name=re.compile("carl"))).to_contain_text("0.45")


def test_times_are_those_of_the_reader(signed: Signed, holders: Holders) -> None:
    holders.ask("set_quota", "student:ml101", {"longest_lease": "1h"})
    lease = holders.hold("anna", 0.1)
    page = signed.page("prof")
    until = page.locator("#live time:not([data-relative])").first
    in_shanghai = page.evaluate(
        "when => new Intl.DateTimeFormat('en-GB', {timeStyle: 'short', timeZone: 'Asia/Shanghai'}).format(when * 1000)",
        lease.until,
    )
    expect(until).to_contain_text(in_shanghai.replace("\u202f", " ").split(" ")[0])


@pytest.mark.parametrize("locale", ["en-GB", "zh-CN"])
@pytest.mark.parametrize("path", ["", "admin"])
def test_nothing_sticks_out_on_a_phone(signed: Signed, holders: Holders, path: str, locale: str) -> None:
    holders.hold("anna", 0.5, description="kernel 3f2a of " + "a-long-name-" * 8 + ".ipynb")
    holders.wait("ben", 0.5)
    page = signed.page(ADMIN if path else "prof", path, width=390, locale=locale)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for name in ("quotas", "offers", "history") if not path else ("courses", "tokens", "audit"):
        expect(page.locator(f"#{name}")).to_be_visible()


def test_on_a_phone_words_are_whole_and_the_chart_is_readable(signed: Signed, holders: Holders) -> None:
    holders.hold("anna", 0.5)
    page = signed.page("anna", "my", width=400)
    together = page.get_by_role("rowheader", name="All together")
    words = page.evaluate(
        """e => { const range = document.createRange(), word = /\\S+/g, text = e.firstChild; let found = [], one;
                  while ((one = word.exec(text.data))) { range.setStart(text, one.index); range.setEnd(text, word.lastIndex);
                      found.push(range.getClientRects().length); }
                  return found; }""",
        together.element_handle(),
    )
    assert words == [1, 1]  # each in one line
    page = signed.page(ADMIN, "course/ml101", width=400)
    label = page.locator(".gk-chart text").last
    label.scroll_into_view_if_needed()
    box = label.bounding_box()
    assert box is not None
    assert box["height"] >= 10
    # The parts of a page are named in one line each, and none is cut off; so are the buttons at the top.
    for path in ("admin", "course/ml101"):
        page = signed.page(ADMIN, path, width=400)
        edge = page.evaluate(
            "Math.max(...[...document.querySelectorAll('.gk-sections a, header a, header button')].map(e => e.getBoundingClientRect().right))"
        )
        assert edge <= 400, path
    middles = page.evaluate(
        """[...document.querySelectorAll("header nav a, header button")].map(e => e.getBoundingClientRect())
            .map(box => Math.round((box.top + box.bottom) / 2))"""
    )
    assert len(middles) >= 5
    assert max(middles) - min(middles) <= 4


def test_every_field_and_button_has_a_name_and_every_page_one_heading(
    signed: Signed, holders: Holders, tmp_path: Path
) -> None:
    holders.hold("anna", 0.5)
    holders.wait("ben", 0.5)
    for person, path in (("prof", ""), (ADMIN, ""), (ADMIN, "admin"), (ADMIN, "course/hpc")):
        page = signed.page(person, path)
        nameless = page.evaluate(
            """() => [...document.querySelectorAll("input:not([type=hidden]), select, textarea, button, a, svg[role=img]")]
                .filter(e => !(e.textContent || "").trim() && !e.getAttribute("aria-label") && !e.title
                        && !e.getAttribute("aria-labelledby") && !(e.labels && e.labels.length))
                .map(e => e.outerHTML.slice(0, 120))"""
        )
        assert nameless == [], path
        assert page.locator("h1").count() == 1
        twice = page.evaluate(
            """() => { const ids = [...document.querySelectorAll("[id]")].map(e => e.id);
                       return ids.filter((id, n) => ids.indexOf(id) !== n); }"""
        )
        assert twice == [], path
        assert page.locator("main").count() == 1
