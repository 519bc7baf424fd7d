"""Forms about one slice, one server or one file, with wrong input of every kind: one sentence at the field in the reader's language.

What was written stays, nothing changes, and the form that is written right goes on.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("playwright")

from playwright.sync_api import Locator, Page, expect

from tests.hub.console.people import Holders
from tests.hub.console.signed import Signed
from tests.hub.hub import ADMIN

LANGUAGES = ("en-GB", "zh-CN")
LONG = "x" * 10_000
SIZE = {
    "en-GB": "A size is a number above 0 and up to 1, for example 0.05.",
    "zh-CN": "大小是大于 0、不超过 1 的数，例如 0.05。",
}
QUOTA = {"en-GB": "hold at most 0.80 devices at one moment", "zh-CN": "同时最多占用 0.80 块设备"}
FIRST = {"en-GB": "Write a message first.", "zh-CN": "请先填写消息。"}
MESSAGE = {
    "en-GB": "A message has at most 300 characters; this one has %s.",
    "zh-CN": "消息最多 300 个字符；这条有 %s 个。",
}
PRINTABLE = {"en-GB": "Write the message in printable characters.", "zh-CN": "消息只能包含可打印字符。"}
REASON = {
    "en-GB": "A reason has at most 150 characters; this one has %s.",
    "zh-CN": "理由最多 150 个字符；这条有 %s 个。",
}
REASON_PRINTABLE = {"en-GB": "Write the reason in printable characters.", "zh-CN": "理由只能包含可打印字符。"}
DEADLINE = {
    "en-GB": "Write a time from 1 s up to 3,650 days as 30min, 2h or 1d, not “%s”.",
    "zh-CN": "请填写 1 秒到 3,650 天之间的时间，例如 30min、2h 或 1d，而不是“%s”。",
}
ENDED = {"en-GB": "This slice has ended.", "zh-CN": "该切片已结束。"}
TOO_OLD = {"en-GB": "This form is too old", "zh-CN": "表单已过期"}
NO_FILE = {"en-GB": "Choose a file, or write one.", "zh-CN": "请选择文件。"}
NOT_TEXT = {"en-GB": "The file is not UTF-8 text.", "zh-CN": "文件不是 UTF-8 文本。"}


def is_refused(page: Page, field: Locator, text: str, sentence: str) -> None:
    """Write `text`, send the form, and find `sentence` at the field, which has the focus and what was written."""
    field.fill(text)
    written = field.input_value()
    field.locator("xpath=ancestor::form").locator("button[type=submit]").click()
    wrong = page.locator(f"#{field.get_attribute('id')}-wrong")
    expect(wrong).to_have_role("alert")
    if sentence in QUOTA.values():
        expect(wrong).to_contain_text(sentence)
    else:
        expect(wrong).to_have_text(sentence)
    expect(page.get_by_role("alert")).to_have_count(1)
    expect(field).to_have_attribute("aria-invalid", "true")
    assert f"{field.get_attribute('id')}-wrong" in (field.get_attribute("aria-describedby") or "").split()
    expect(field).to_be_focused()
    expect(field).to_have_value(written)
    assert written.replace("\r\n", "\n") == text
    # A sentence that is long stays inside of the dialog.
    assert page.evaluate(
        "document.querySelector('dialog').scrollWidth <= document.querySelector('dialog').clientWidth"
    )


def opened(page: Page, button: str, field: str) -> Locator:
    page.locator(button).click()
    found = page.locator(field)
    expect(found).to_be_focused()
    return found


@pytest.mark.parametrize("locale", LANGUAGES)
def test_a_new_size(signed: Signed, holders: Holders, locale: str) -> None:
    lease = holders.hold("anna", 0.3)
    page = signed.page("prof", locale=locale)
    field = opened(page, f"#resize-{lease.id}", "#share")
    expect(field).to_have_value("0.3")
    for text in ("", "  ", "half", "-1", "0", "1e12", "nan", "inf", "0,5", LONG, "<b>0.1</b>"):
        is_refused(page, field, text, SIZE[locale])
    is_refused(page, field, "0.9", QUOTA[locale])  # the pool's own refusal
    assert holders.ask("renew", lease.id).slices[0].weight == pytest.approx(0.3, abs=1e-4)
    field.fill("0.2")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert holders.ask("renew", lease.id).slices[0].weight == pytest.approx(0.2, abs=1e-4)


@pytest.mark.parametrize("locale", LANGUAGES)
def test_a_message(signed: Signed, holders: Holders, locale: str) -> None:
    lease = holders.hold("anna", 0.3)
    page = signed.page("prof", locale=locale)
    field = opened(page, f"#message-{lease.id}", "#text")
    is_refused(page, field, "", FIRST[locale])
    is_refused(page, field, " \n ", FIRST[locale])
    is_refused(page, field, "\n" + "说" * 301, MESSAGE[locale] % "301")
    is_refused(page, field, LONG, MESSAGE[locale] % "10000")
    is_refused(page, field, "a\u200bb", PRINTABLE[locale])
    assert holders.ask("renew", lease.id).notice == ""
    # Two clicks at once are one message.
    field.fill("<b>nan</b> & 0")
    before = sum(entry.action == "message" for entry in holders.ask("audit", 1000))
    page.get_by_role("dialog").locator("button[type=submit]").dblclick()
    expect(page.get_by_role("dialog")).to_be_hidden()
    row = page.locator("#live").get_by_role("row", name=re.compile("anna"))
    expect(row).to_contain_text("prof: <b>nan</b> & 0")
    assert sum(entry.action == "message" for entry in holders.ask("audit", 1000)) == before + 1


@pytest.mark.parametrize("locale", LANGUAGES)
def test_the_reason_of_an_end(signed: Signed, holders: Holders, locale: str) -> None:
    lease = holders.hold("anna", 0.3)
    page = signed.page("prof", locale=locale)
    field = opened(page, f"#end-{lease.id}", "#reason")
    is_refused(page, field, "x" * 151, REASON[locale] % "151")
    is_refused(page, field, LONG, REASON[locale] % "10000")
    is_refused(page, field, "a\u200bb", REASON_PRINTABLE[locale])
    assert holders.ask("renew", lease.id).state == "live"


@pytest.mark.parametrize("locale", LANGUAGES)
def test_a_deadline(signed: Signed, holders: Holders, locale: str) -> None:
    (device,) = holders.ask("devices")
    page = signed.page(ADMIN, "admin", locale=locale)
    field = opened(page, f"#drain-{device.server}", "#deadline")
    for text in ("soon", "-1", "-2h", "0", "0h", "1e12", "nan", "inf", "2 weeks", "1.5h", "<b>2h</b>"):
        is_refused(page, field, text, DEADLINE[locale] % text)
    is_refused(page, field, "999999999d", DEADLINE[locale] % "999999999d")
    is_refused(page, field, LONG, DEADLINE[locale] % ("x" * 20 + "…"))
    assert holders.ask("devices")[0].available
    field.fill("2h")
    page.get_by_role("dialog").locator("button[type=submit]").dblclick()
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.locator(f"#undrain-{device.server}").click()
    expect(page.locator(f"#drain-{device.server}")).to_be_visible()


@pytest.mark.parametrize("locale", LANGUAGES)
def test_a_file_of_courses(signed: Signed, holders: Holders, locale: str) -> None:
    before = holders.ask("export_courses")
    page = signed.page(ADMIN, "admin", locale=locale)
    wrong = page.locator("#yaml-file-wrong")
    page.locator("#file-form button").click()
    expect(wrong).to_have_text(NO_FILE[locale])
    expect(page.locator("#yaml-file")).to_be_focused()
    for content, sentence in ((b" \n", NO_FILE[locale]), (b"\xff\xfe\x00", NOT_TEXT[locale])):
        file: Any = {"name": "c.yaml", "mimeType": "application/yaml", "buffer": content}
        page.locator("#yaml-file").set_input_files(files=[file])
        page.locator("#file-form button").click()
        expect(page.locator("#yaml-file")).to_have_value("")  # the form has been replaced
        expect(wrong).to_have_text(sentence)
        expect(page.get_by_role("dialog")).to_be_hidden()
    assert holders.ask("export_courses") == before


@pytest.mark.parametrize("locale", LANGUAGES)
def test_a_slice_that_has_gone_and_a_token_that_is_stale(
    signed: Signed, holders: Holders, locale: str
) -> None:
    lease = holders.hold("anna", 0.3)
    page = signed.page("prof", locale=locale)
    dialog = page.get_by_role("dialog")
    field = opened(page, f"#message-{lease.id}", "#text")
    field.fill("What took an hour to write.")
    token = page.locator("#lease-form input[name=_xsrf]").input_value()
    cookies = page.context.cookies()

    def sends(sentence: str) -> None:
        dialog.locator("button[type=submit]").click()
        expect(page.locator("#dialog-answer")).to_contain_text(sentence)
        expect(field).to_have_value("What took an hour to write.")

    # A token of another sign-in, in the form and in its header.
    page.evaluate(
        """token => { document.querySelector("#lease-form input[name=_xsrf]").value = token;
                      document.body.setAttribute("hx-headers", JSON.stringify({"X-XSRFToken": token})); }""",
        "2|" + token[2:][::-1],
    )
    sends(TOO_OLD[locale])
    # Signed out elsewhere: the page behind the dialog is not loaded again, or what is written would be gone.
    page.context.clear_cookies()
    with page.expect_response(lambda answer: answer.url.endswith("/live") and answer.status == 403):
        pass
    said = "Sign in to JupyterHub again." if locale == "en-GB" else "请重新登录 JupyterHub。"
    expect(page.get_by_role("status")).to_contain_text(said)
    sends(TOO_OLD[locale])
    assert holders.ask("renew", lease.id).notice == ""
    # Signed in again, but the slice has ended.
    page.context.add_cookies(cookies)  # type: ignore[arg-type]
    holders.ask("release", lease.id)
    page.evaluate(
        """token => { document.querySelector("#lease-form input[name=_xsrf]").value = token;
                      document.body.setAttribute("hx-headers", JSON.stringify({"X-XSRFToken": token})); }""",
        token,
    )
    sends(ENDED[locale])


def test_who_is_signed_out_and_writes_nothing_signs_in_again(signed: Signed, holders: Holders) -> None:
    page = signed.page("prof")
    page.context.clear_cookies()
    page.wait_for_url(re.compile("/hub/login"))


@pytest.mark.parametrize("locale", LANGUAGES)
def test_another_course_s_slice_and_a_server_that_is_not_there(
    signed: Signed, holders: Holders, locale: str
) -> None:
    other = holders.hold("dora", 0.1, "hpc")
    page = signed.page("prof", locale=locale)
    at = page.url.partition("/services/")[0] + "/services/gpukernel/"
    for action in ("end", "resize", "message"):
        page.goto(f"{at}course/ml101/lease/{other.id}/{action}")
        expect(page.get_by_role("alert")).to_have_text(ENDED[locale])
    page = signed.page(ADMIN, "admin", locale=locale)
    page.goto(f"{at}admin/server/nowhere/drain")
    missing = (
        "The pool has no GPU server nowhere." if locale == "en-GB" else "资源池中没有 GPU 服务器 nowhere。"
    )
    expect(page.get_by_role("alert")).to_have_text(missing)
    # A server that went while its dialog was open.
    page.goto(f"{at}admin")
    field = opened(page, "[id^=drain-]", "#deadline")
    field.fill("2h")
    page.locator("#drain-form").evaluate(
        "form => form.setAttribute('hx-post', form.getAttribute('hx-post').replace(/server.*/, 'server/nowhere/drain'))"
    )
    page.evaluate("htmx.process(document.getElementById('drain-form'))")
    page.get_by_role("dialog").locator("button[type=submit]").click()
    expect(page.locator("#dialog-answer")).to_contain_text(missing)
    expect(field).to_have_value("2h")
