"""The console as people use it: real Hub, real proxy, real pool; what each may see and do, and what tries to get round that."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from gpukernel.common.errors import LeaseEnded, Refused
from gpukernel.common.model import SliceRequest
from tests.conftest import Pool, eventually
from tests.hub.console.people import COURSES, Holders, Visitor, active_tags, words, words_in
from tests.hub.hub import ADMIN, Hub, environment_of


@pytest.fixture
def prof(hub: Hub) -> Visitor:
    return Visitor(hub, "prof")


@pytest.fixture
def admin(hub: Hub) -> Visitor:
    return Visitor(hub, ADMIN)


# --- who sees what ---


def test_an_instructor_comes_straight_to_the_only_course_and_sees_who_holds_what(
    prof: Visitor, holders: Holders
) -> None:
    holders.hold("anna", 0.5, description="kernel 3f2a of lesson.ipynb")
    holders.hold("dora", 0.1, "hpc", "elsewhere")
    holders.wait("ben", 0.4)
    page = prof.see()
    assert page.url.endswith("/services/gpukernel/course/ml101")
    text = words(page)
    assert "anna kernel 3f2a of lesson.ipynb" in text
    assert "0.50 / 0.8 devices" in text
    assert "Course ml101 holds 0.50 of its 0.80 devices; 0.40 more does not fit." in text
    assert "elsewhere" not in text


def test_who_teaches_nothing_sees_their_own_slices_queue_hours_and_history(
    hub: Hub, prof: Visitor, holders: Holders
) -> None:
    prof.fill("course/ml101/quota", whom="student", gpu_hours_per_week="5", apply="yes")
    done = holders.hold("anna", 0.1, description="finished.ipynb")
    holders.ask("release", done.id)
    holders.hold("anna", 0.45, description="lesson.ipynb")
    holders.hold("ben", 0.1, description="secret.ipynb")
    holders.wait("anna", 0.4)
    page = Visitor(hub, "anna").see()
    assert page.status_code == 200
    assert page.url.endswith("/services/gpukernel/my")
    text = words(page)
    slices, _, rest = text.partition("You wait for" if "You wait for" in text else " Queue ")
    assert "lesson.ipynb ml101" in slices
    assert "finished.ipynb" not in slices
    assert "0.45 × Tesla V100" in slices
    waits, _, rest = rest.partition("GPU-hours since Monday")
    assert "Course ml101 holds" in waits
    hours, _, history = rest.partition("The last 14 days")
    assert re.search(r"ml101 \S.* 5 ", hours)
    assert "All together" in hours
    assert "finished.ipynb ml101" in history
    assert "lesson.ipynb ml101" in history
    assert "secret.ipynb" not in text
    # A teacher has the page, too, with what is theirs.
    own = prof.see("my")
    assert own.status_code == 200
    assert "You hold no slice now." in words(own)
    assert "lesson.ipynb" not in words(own)


def test_students_see_no_course_and_nobody_another_s(hub: Hub, prof: Visitor, holders: Holders) -> None:
    lease = holders.hold("dora", 0.1, "hpc")
    anna = Visitor(hub, "anna")
    for path in ("course/ml101", "course/hpc", "course/hpc/live", "course/hpc/use.csv", "admin"):
        page = anna.see(path)
        assert page.status_code == 403, path
    for path in (
        "course/hpc",
        "course/nothing",
        "course/hpc/use",
        f"course/hpc/lease/{lease.id}/end",
        "admin",
    ):
        assert prof.see(path).status_code == 403, path
    # The lease's id under the name of one's own course is no way round.
    assert prof.see(f"course/ml101/lease/{lease.id}/end").status_code == 404
    for action in ("end", "resize", "message"):
        answer = prof.fill(f"course/ml101/lease/{lease.id}/{action}", text="x", share="0.05")
        assert answer.status_code == 404
    assert holders.ask("renew", lease.id).state == "live"


def test_instructors_by_a_group_of_the_hub_teach_from_their_first_visit(hub: Hub) -> None:
    page = Visitor(hub, "tanja").see()
    assert page.url.endswith("/course/hpc")
    assert page.status_code == 200


def test_an_administrator_sees_all_and_is_named_in_the_audit(admin: Visitor, holders: Holders) -> None:
    assert "Parallel programming" in words(admin.see())
    page = admin.fill("course/hpc/offers", title="Parallel programming", term="spring", start="", offers="")
    assert page.status_code == 200
    assert "spring" in words(page)
    entry = holders.ask("audit", 1)[0]
    assert (entry.who, entry.subject) == (f"{ADMIN} through root", "course hpc")


def test_the_audit_says_the_difference_is_filtered_and_becomes_a_file(
    admin: Visitor, prof: Visitor, holders: Holders
) -> None:
    offers = {"title": "ML", "term": "", "start": "", "offers": "V100 x 0.02"}
    prof.fill("course/ml101/offers", **offers)
    prof.fill("course/ml101/offers", **{**offers, "offers": "V100 x 0.02\nV100 x 0.1"})
    prof.fill("course/ml101/quota", whom="student", devices="0.3", idle="33min", apply="yes")

    def rows(query: str) -> list[str]:
        page = admin.see(f"admin?{query}")
        table = page.text[page.text.index('id="audit"') :]
        return [" ".join(words_in(row).split()) for row in re.findall(r"<tr role=.*?</tr>", table, re.DOTALL)]

    newest = rows("")[:2]
    assert "prof student:ml101 Devices at one moment 0.5 → 0.3" in newest[0]
    assert re.search(r"Released when idle for .*33min", newest[0])
    assert newest[1].endswith("prof course ml101 Offers + V100 × 0.1")
    assert all("prof" in row and "ml101" in row for row in rows("who=PROF&about=course+ml101"))
    assert rows("who=nobody") == []
    assert "No such change." in words(admin.see("admin?who=nobody"))
    answer = admin.see("admin/changes.csv?who=prof&about=ml101")
    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
    table = list(csv.DictReader(io.StringIO(answer.content.decode())))
    assert table[-2]["change"] == "offers + V100 × 0.1"
    assert re.fullmatch(r"devices 0.5 → 0.3; .*idle .*33min.*", table[-1]["change"])
    assert prof.see("admin/changes.csv").status_code == 403


def test_strangers_are_sent_to_sign_in_and_services_are_not_people(hub: Hub) -> None:
    answer = requests.get(f"{hub.url}/services/gpukernel/", allow_redirects=False, timeout=60)
    assert answer.status_code == 302
    assert "/hub/api/oauth2/authorize" in answer.headers["Location"]
    api = f"{hub.url}/services/gpukernel/api/courses"
    assert requests.get(api, timeout=60).status_code == 401
    for token in (hub.token, "nonsense"):
        answer = requests.get(api, headers={"Authorization": f"token {token}"}, timeout=60)
        assert answer.status_code in (401, 403)
        assert set(answer.json()) == {"message"}


# --- what an instructor does ---


def test_an_instructor_writes_resizes_and_ends_without_javascript(prof: Visitor, holders: Holders) -> None:
    lease = holders.hold("anna", 0.5)
    at = f"course/ml101/lease/{lease.id}"
    assert "It appears in the notebook" in words(prof.see(f"{at}/message"))
    page = prof.fill(f"{at}/message", text="The lesson <b>ends</b> at 12.")
    assert "The message to anna is under way." in words(page)
    assert "&lt;b&gt;ends&lt;/b&gt;" in page.text
    assert holders.ask("renew", lease.id).notice == "prof: The lesson <b>ends</b> at 12."
    assert "The message" not in words(prof.see("course/ml101"))  # it is said once

    page = prof.fill(f"{at}/resize", share="0.25")
    assert "has its new size" in words(page)
    assert holders.ask("renew", lease.id).slices[0].weight == 0.25
    for share in ("0", "1.5", "nan", "half", ""):
        answer = prof.fill(f"{at}/resize", share=share)
        assert answer.status_code == 422
        assert "A size is a number above 0 and up to 1" in words(answer)
    answer = prof.fill(f"{at}/resize", share="0.75")
    assert answer.status_code == 422
    assert "anna, as a student of ml101, may hold at most 0.50 devices" in words(answer)

    page = prof.fill(f"{at}/end", reason="the lesson is over")
    assert "The slice of anna has ended." in words(page)
    with pytest.raises(LeaseEnded, match="prof ended it: the lesson is over"):
        holders.ask("renew", lease.id)


def test_a_quota_is_looked_at_then_applied_and_refuses_the_next_slice(
    prof: Visitor, holders: Holders
) -> None:
    holders.hold("anna", 0.4)
    fields = {"whom": "student", "devices": "0.2", "idle": "20min"}
    preview = words(prof.fill("course/ml101/quota", **fields))
    assert "Devices at one moment 0.5 0.2" in preview
    assert "1 person is above the new limit of 0.2 (Devices at one moment)" in preview
    shown = {(line.subject, line.bound): line.value for line in holders.ask("quotas")}
    assert shown["student:ml101", "devices"] == "0.5"
    page = prof.fill("course/ml101/quota", apply="yes", **fields)
    assert "The quotas are set; they count at once." in words(page)
    assert 'value="0.2"' in page.text
    with pytest.raises(Refused, match=r"ben, as a student of ml101, may hold at most 0\.20 devices"):
        holders.hold("ben", 0.3)
    assert "Nothing would change." in words(prof.fill("course/ml101/quota", **fields))
    for wrong, sentence in (
        ({"devices": "many"}, "Write a number from 0 to 100,000, such as 2.5, not “many”."),
        ({"devices": "1e12"}, "Write a number from 0 to 100,000, such as 2.5, not “1e12”."),
        ({"idle": "soon"}, "Write a time as 90s, 30min or 2h, from 1 s up to 3,650 days, not “soon”."),
        (
            {"idle": "0.00000001"},
            "Write a time as 90s, 30min or 2h, from 1 s up to 3,650 days, not “0.00000001”.",
        ),
        ({"leases": "1.5"}, "Write a whole number from 0 to 1,000,000, not “1.5”."),
    ):
        answer = prof.fill("course/ml101/quota", apply="yes", **{**fields, **wrong})
        assert answer.status_code == 422
        assert sentence in html.unescape(words(answer))
        (name,) = wrong
        # The sentence belongs to its field, which keeps what was written.
        field = re.search(rf'<input [^>]*id="student-{name}"[^>]*>', answer.text)
        assert field is not None
        assert f'aria-describedby="student-{name}-help student-{name}-wrong" aria-invalid="true"' in field[0]
        assert f'value="{wrong[name]}"' in field[0]
    now = {(line.subject, line.bound): line.value for line in holders.ask("quotas")}
    assert now["student:ml101", "devices"] == "0.2"
    # The course's own quota is the administrator's.
    answer = prof.fill("course/ml101/quota", whom="course", devices="8", apply="yes")
    assert answer.status_code == 403
    assert "instructors set those of their own students" in html.unescape(words(answer)) or (
        "Only the pool's administrator may set the quota of course:ml101" in html.unescape(words(answer))
    )


def test_the_queue_is_reordered_within_the_course(prof: Visitor, holders: Holders) -> None:
    holders.hold("anna", 0.5)
    first, second = holders.wait("ben", 0.5), holders.wait("carl", 0.45)
    assert words(prof.see()).index("ben waits") < words(prof.see()).index("carl waits")
    page = prof.fill("course/ml101/queue", key=second, before=first)
    assert "The order has changed." in words(page)
    assert words(page).index("carl waits") < words(page).index("ben waits")
    assert prof.fill("course/ml101/queue", key="nothing", before="").status_code == 404


def test_hours_are_looked_at_reserved_and_given_back(prof: Visitor, holders: Holders) -> None:
    fields = {"begins": "10:00", "ends": "12:00", "devices": "0.5", "days": "1"}
    preview = words(prof.fill("course/ml101/reservation", **fields))
    assert "Tuesday 10:00–12:00 : 0.5 devices" in preview
    assert holders.ask("reservations", "ml101")[0] == []
    page = prof.fill("course/ml101/reservation", apply="yes", **fields)
    assert "The hours are reserved." in words(page)
    assert "Tuesday 10:00–12:00" in words(page)
    (known,) = holders.ask("reservations", "ml101")[0]
    assert (known.reservation.days, known.reservation.devices) == ((1,), 0.5)
    for wrong, status, sentence in (
        ({"begins": "ten"}, 422, "Write a time of the day as 10:00"),
        ({"devices": "all"}, 422, "Write a number from 0 to 100,000"),
        ({"days": "9"}, 422, "on which weekdays"),
        ({"ends": "09:00"}, 422, "ends after it begins"),
        ({"days": "2", "devices": "5"}, 409, ""),
    ):
        answer = prof.fill("course/ml101/reservation", **{**fields, **wrong})
        assert (answer.status_code, sentence in words(answer)) == (status, True), wrong
    other = f"course/hpc/reservation/{known.reservation.id}/remove"
    assert prof.fill(other).status_code == 403
    assert prof.fill("course/ml101/reservation/none/remove").status_code == 404
    page = prof.fill(f"course/ml101/reservation/{known.reservation.id}/remove")
    assert "The reservation is gone." in words(page)
    assert holders.ask("reservations", "ml101")[0] == []


def test_room_that_others_hold_is_said_to_be_uncertain_before_and_after_and_is_kept_when_they_leave(
    prof: Visitor, holders: Holders
) -> None:
    fields = {"begins": "10:00", "ends": "12:00", "devices": "0.5", "days": "1"}
    none, certain = "None of it is certain yet: others hold it now", "certain yet"

    def ready() -> float:
        found: float = holders.ask("reservations", "ml101")[0][0].ready
        return found

    # Nothing is in the way: nothing is said, before as after.
    assert certain not in words(prof.fill("course/ml101/reservation", **fields))
    assert certain not in words(prof.fill("course/ml101/reservation", apply="yes", **fields))
    assert ready() == 0.5
    holders.ask("unreserve", holders.ask("reservations", "ml101")[0][0].reservation.id)

    lease = holders.hold("dora", 1.0, "hpc")
    assert none in words(prof.fill("course/ml101/reservation", **fields))
    assert holders.ask("reservations", "ml101")[0] == []
    page = words(prof.fill("course/ml101/reservation", apply="yes", **fields))
    assert "The hours are reserved." in page
    assert none in page
    holders.ask("resize", lease.id, SliceRequest(share=0.75))
    eventually(lambda: ready() == 0.25)
    assert "Only 0.25 of it are certain yet" in words(prof.see("course/ml101"))
    holders.ask("release", lease.id)
    eventually(lambda: ready() == 0.5)
    assert certain not in words(prof.see("course/ml101"))


def test_offers_are_checked_and_seen_by_the_course(prof: Visitor, holders: Holders) -> None:
    fields = {"title": "ML", "term": "", "start": "on_first_use", "offers": "V100 x 0.05\n0.1\n"}
    page = prof.fill("course/ml101/offers", **fields)
    assert "The course is saved" in words(page)
    known = {k.course.name: k.course for k in holders.ask("courses", on_behalf="anna")}["ml101"]
    assert [str(offer) for offer in known.profile.offers] == ["V100 × 0.05", "GPU × 0.1"]
    assert (known.title, known.profile.term, known.profile.start) == ("ML", "", "on_first_use")
    for wrong, sentence in (
        (
            {"offers": "V100 x 0.1\nV100 times two"},
            "“V100 times two” is no size; write V100 x 0.02, or 0.02 of any",
        ),
        ({"title": " "}, "A course needs a title: it is what people choose from."),
        ({"term": "a\tb"}, "Write it in printable characters, on one line."),
    ):
        answer = prof.fill("course/ml101/offers", **{**fields, **wrong})
        assert answer.status_code == 422
        assert sentence in html.unescape(words(answer))
        assert answer.text.count('aria-invalid="true"') == 1
    with pytest.raises(Refused, match="A course needs a title"):
        holders.ask("set_course", "ml101", {"title": "  "})


def test_the_forms_of_a_course_s_page_have_what_is_in_force(prof: Visitor, holders: Holders) -> None:
    before = holders.ask("export_courses")
    page = html.unescape(prof.see("course/ml101").text)
    form = page[page.index('id="offers-form"') :].partition("</form>")[0]
    title, term, start = (
        re.search(rf'name="{name}"[^>]* value="([^"]*)"', form) for name in ("title", "term", "start")
    )
    assert title is not None
    assert term is not None
    assert title[1] == "Machine <script>alert(1)</script> & learning"
    assert term[1] == "autumn 2026"
    assert ">V100 × 0.02\nV100 × 0.1</textarea>" in form
    assert start is None  # an option of a list
    # Who presses the button of the form as it stands changes nothing.
    offers = "V100 × 0.02\nV100 × 0.1"
    saved = prof.fill("course/ml101/offers", title=title[1], term=term[1], offers=offers, start="")
    assert "Nothing has changed." in words(saved)
    assert holders.ask("export_courses") == before


def test_a_reservation_that_cannot_be_is_explained_at_its_fields(prof: Visitor, holders: Holders) -> None:
    right = {"begins": "10:00", "ends": "12:00", "devices": "0.5", "days": "1"}
    for wrong, fields, sentence in (
        ({"begins": "ten"}, ["reserve-begins"], "Write a time of the day as 10:00, up to 24:00."),
        ({"ends": "9:00"}, ["reserve-ends"], "A reservation ends after it begins, on the same day"),
        (
            {"devices": "1e12"},
            ["reserve-devices"],
            "Write a number from 0 to 100,000, such as 2.5, not “1e12”.",
        ),
        (
            {"devices": "nan", "on": "soon"},
            ["reserve-devices", "reserve-on"],
            "“soon” is no day; write it as",
        ),
        ({"days": ""}, ["days"], "Say on which weekdays, or on which one day."),
    ):
        answer = prof.fill("course/ml101/reservation", apply="yes", **{**right, **wrong})
        assert answer.status_code == 422
        assert sentence in html.unescape(words(answer))
        assert all(f'id="{field}-wrong"' in answer.text for field in fields)
        assert answer.text.count("invalid-feedback") == len(fields)
    assert holders.ask("reservations", "ml101")[0] == []


def test_the_history_is_a_picture_a_table_and_a_file_without_formulas(
    prof: Visitor, holders: Holders
) -> None:
    lease = holders.hold("=1+1", 0.3)
    holders.ask("release", lease.id)
    page = prof.see("course/ml101/use?days=7")
    assert 'role="img"' in page.text
    assert page.text.count('class="bar"') == 7
    answer = prof.see("course/ml101/use.csv?days=7")
    assert answer.headers["Content-Type"].startswith("text/csv")
    assert answer.headers["Content-Disposition"] == 'attachment; filename="gpu-hours-ml101.csv"'
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert {row["course"] for row in rows} <= {"ml101"}
    assert all(cell[0] not in "=+-@\t\r" for row in rows for cell in row.values())
    for days in ("0", "-1", "400", "a", "99999999999999999999", "7.5"):
        assert prof.see(f"course/ml101/use?days={days}").status_code == 400


# --- what tries to get round it ---

FORMS = (
    "language",
    "course/ml101/queue",
    "course/ml101/quota",
    "course/ml101/offers",
    "course/ml101/reservation",
    "course/ml101/reservation/r/remove",
    "course/ml101/lease/00/end",
    "course/ml101/lease/00/resize",
    "course/ml101/lease/00/message",
    "admin/server/s/drain",
    "admin/server/s/undrain",
    "admin/token",
    "admin/token/gpk00/revoke",
    "admin/courses.yaml",
)


def test_a_form_of_another_site_is_refused(hub: Hub, admin: Visitor, holders: Holders) -> None:
    admin.see()
    own = admin.form_token()
    foreign = Visitor(hub, "chief").form_token()
    for path in FORMS:
        for token in (None, "", "x", foreign, own[:-1]):
            fields = {} if token is None else {"_xsrf": token}
            answer = admin.post(admin.at + path, data=fields, timeout=60)
            assert answer.status_code == 403, (path, token)
            assert "load the page again and repeat it" in words(answer)
        answer = admin.post(admin.at + path, data={"_xsrf": own, "language": "zh"}, timeout=60)
        assert "load the page again" not in words(answer), path
        assert "重新载入页面" not in words(answer), path
        admin.cookies.set("gpukernel-language", "en", path="/services/gpukernel/")


def test_the_json_api_wants_the_same_token_from_a_browser_s_cookies(admin: Visitor) -> None:
    admin.see()
    answer = admin.post(admin.at + "api/tokens", json={"name": "x", "scope": "admin"}, timeout=60)
    assert answer.status_code == 403
    assert "load the page again" in answer.json()["message"]
    headers = {"X-XSRFToken": admin.form_token()}
    answer = admin.post(
        admin.at + "api/tokens", json={"name": "x", "scope": "agent"}, headers=headers, timeout=60
    )
    assert answer.status_code == 200
    answer = admin.delete(
        admin.at + f"api/tokens/{answer.json()['token']['id']}", headers=headers, timeout=60
    )
    assert answer.json()["revoked"] > 0


def test_pages_carry_no_script_or_style_of_their_own_and_a_strict_policy(
    prof: Visitor, admin: Visitor, holders: Holders
) -> None:
    lease = holders.hold("anna", 0.5, description='<img src=x onerror="alert(2)">')
    holders.wait("ben", 0.5)
    pages = [
        prof.see(),
        prof.see(f"course/ml101/lease/{lease.id}/end"),
        prof.see("course/ml101/live"),
        prof.see("course/hpc"),
        prof.fill("course/ml101/quota", whom="student", devices="0.1"),
        admin.see(),
        admin.see("admin"),
        admin.see("admin/devices"),
        admin.see("admin/server/%3Cscript%3E/drain"),
        admin.fill("admin/courses.yaml", yaml='courses: {"<script>": {}}'),
    ]
    for page in pages:
        assert active_tags(page) == [], page.url
        assert "<script>alert" not in page.text
        assert "<img src=x" not in page.text
        policy = dict(part.split(" ", 1) for part in page.headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert page.headers["X-Content-Type-Options"] == "nosniff"
        assert page.headers["Cache-Control"] == "no-store"
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in pages[0].text


def test_the_language_is_chosen_kept_and_leads_nowhere_else(prof: Visitor) -> None:
    assert "Who holds what" in prof.see().text
    page = prof.fill("language", language="zh", back="/services/gpukernel/course/ml101")
    assert page.url.endswith("/course/ml101")
    assert '<html lang="zh-CN">' in page.text
    assert "谁占用了什么" in page.text
    for back in ("https://evil.example/", "//evil.example/", "/hub/logout", "/services/gpukernel/\\evil"):
        answer = prof.post(
            prof.at + "language",
            data={"_xsrf": prof.form_token(), "language": "en", "back": back},
            allow_redirects=False,
            timeout=60,
        )
        assert answer.headers["Location"] == "/services/gpukernel/"
    assert prof.fill("language", language="xx").status_code == 400
    asked = prof.see(headers={"Accept-Language": "zh-TW,zh;q=0.9"})
    assert "Who holds what" in asked.text  # the cookie decides


# --- the administrator's page ---


def test_an_administrator_drains_imports_and_makes_tokens(
    admin: Visitor, holders: Holders, running: tuple[Hub, Pool]
) -> None:
    holders.hold("anna", 0.25)
    (device,) = running[1].devices()
    page = admin.see("admin")
    assert "1 slice, 24.0 GiB of 32.0 GiB free" in words(page)
    page = admin.fill(f"admin/server/{device.server}/drain", deadline="2h")
    assert f"{device.server} gets no new slices; it holds 1." in words(page)
    with pytest.raises(Refused):
        holders.hold("ben", 0.1)
    assert "drained" in words(admin.see("admin"))
    admin.fill(f"admin/server/{device.server}/undrain")
    holders.hold("ben", 0.1)
    assert admin.fill(f"admin/server/{device.server}/drain", deadline="soon").status_code == 422

    made = admin.fill("admin/token", name="laptop", scope="person", person="anna", valid="1d")
    secret = re.search(r"gpk\w+\.[\w-]+", made.text)
    assert secret is not None
    assert secret[0] not in admin.see("admin").text
    identifier = secret[0].partition(".")[0]
    assert "opens nothing any more" in words(admin.fill(f"admin/token/{identifier}/revoke"))
    engines = admin.fill("admin/token", name="prolog", scope="slurm", person="", valid="1d")
    assert re.search(r"gpk\w+\.[\w-]+", engines.text) is not None
    assert "<option>slurm</option>" in admin.see("admin").text

    text = admin.see("admin/courses.yaml").text
    assert holders.ask("import_courses", text) == []
    preview = words(admin.fill("admin/courses.yaml", yaml=text.replace("autumn 2026", "spring 2027")))
    assert "spring 2027" in preview
    assert holders.ask("export_courses") == text
    broken = admin.fill("admin/courses.yaml", yaml="courses:\n  a: {weight: -1}\n  b: {nothing: 1}\n")
    assert "line 2: courses.a.weight" in words(broken)
    assert "line 3: courses.b.nothing: is not known here" in words(broken)
    bomb = "a: &a [x]\nb: &b [*a, *a]\n"
    assert "references are not used in this file" in words(admin.fill("admin/courses.yaml", yaml=bomb))
    applied = admin.fill("admin/courses.yaml", yaml=text.replace("autumn 2026", "spring 2027"), apply="yes")
    assert "The courses are what the file says." in words(applied)
    assert "spring 2027" in holders.ask("export_courses")


def test_a_token_that_cannot_be_is_explained_at_its_fields(admin: Visitor, holders: Holders) -> None:
    before = len(holders.ask("tokens"))
    right = {"name": "laptop", "scope": "person", "person": "anna", "valid": ""}
    for wrong, field, sentence in (
        ({"name": " "}, "token-name", "Write what the token is for."),
        ({"person": ""}, "token-person", "Write whose token it is."),
        ({"scope": "agent"}, "token-person", "Only a token of the scope person is somebody's"),
        ({"valid": "999999999d"}, "token-valid", "Write a time up to 3,650 days"),
        ({"valid": "soon"}, "token-valid", "Write a time up to 3,650 days as 30min, 2h or 120d, not “soon”."),
    ):
        answer = admin.fill("admin/token", **{**right, **wrong})
        assert answer.status_code == 422
        assert sentence in html.unescape(words(answer))
        assert f'id="{field}-wrong"' in answer.text
        assert answer.text.count('aria-invalid="true"') == 1
        assert 'value="laptop"' in answer.text or "name" in wrong
    assert len(holders.ask("tokens")) == before


# --- the JSON API ---


def token_of(hub: Hub, person: str) -> dict[str, str]:
    hub.ask("POST", f"/users/{person}")
    made = hub.ask("POST", f"/users/{person}/tokens", {"note": "tests", "expires_in": 600})
    return {"Authorization": f"token {made.json()['token']}"}


def test_scripts_ask_the_api_with_a_token_of_the_hub(hub: Hub, holders: Holders) -> None:
    lease = holders.hold("anna", 0.5)
    headers, at = token_of(hub, "prof"), f"{hub.url}/services/gpukernel/api"

    def ask(method: str, path: str, **options: object) -> requests.Response:
        return requests.request(method, f"{at}/{path}", headers=headers, timeout=60, **options)  # type: ignore[arg-type]

    assert [course["name"] for course in ask("GET", "courses").json()] == ["ml101"]
    live = ask("GET", "courses/ml101/live").json()
    assert [(held["id"], held["person"], held["share"]) for held in live["held"]] == [(lease.id, "anna", 0.5)]
    effects = ask("POST", "courses/ml101/quotas", json={"bounds": {"devices": "0.1"}}).json()["effects"]
    assert effects[0]["sentence"].startswith("1 student is above the new limit of 0.1")
    assert ask("POST", f"courses/ml101/leases/{lease.id}/message", json={"text": "hi"}).json() == {
        "notice": "prof: hi"
    }
    assert ask("POST", f"courses/ml101/leases/{lease.id}/end", json={}).json()["state"] in ("ending", "ended")
    assert ask("GET", "tokens").status_code == 403
    for path, body, status in (
        ("courses/ml101/quotas", {"bounds": {"devices": "x"}}, 409),
        ("courses/ml101/quotas", {"bounds": {}}, 400),
        ("courses/ml101/quotas", {"bounds": {"devices": "1"}, "more": 1}, 400),
        ("courses/ml101/queue", {"key": "none"}, 404),
        (f"courses/ml101/leases/{lease.id}/message", {"text": "x" * 301}, 400),
        ("courses/hpc/queue", {"key": "none"}, 403),
    ):
        answer = ask("POST", path, json=body)
        assert answer.status_code == status, (path, answer.text)
        assert set(answer.json()) == {"message"}
    assert ask("POST", "courses/ml101/queue", data="key=none").status_code == 415
    assert ask("GET", "nothing").status_code == 404
    assert ask("PUT", "courses").status_code == 405


def test_the_description_names_every_call_and_every_status(hub: Hub) -> None:
    at = f"{hub.url}/services/gpukernel/api/openapi.json"
    description = requests.get(at, headers=token_of(hub, "prof"), timeout=60).json()
    assert description["openapi"] == "3.1.0"
    assert len([o for path in description["paths"].values() for o in path]) == 23
    references = set(re.findall(r'"#/components/schemas/(\w+)"', str(description).replace("'", '"')))
    assert references <= set(description["components"]["schemas"])


# --- what goes away and comes back ---


@pytest.fixture
def short(tmp_path: Path) -> Iterator[tuple[Hub, Pool]]:
    (tmp_path / "courses.yaml").write_text(COURSES)
    with Pool("v100:1", tmp_path / "state") as pool:
        assert pool.gpukernel("quota", "import", str(tmp_path / "courses.yaml")).returncode == 0
        with Hub(tmp_path, environment_of(pool.state, tmp_path), {"pool": pool.address}) as hub:
            yield hub, pool


def test_the_console_says_that_the_pool_is_away_and_comes_back_with_it(short: tuple[Hub, Pool]) -> None:
    hub, pool = short
    prof = Visitor(hub, "prof")
    assert prof.see().status_code == 200
    pool.kill()
    page = prof.see("course/ml101")
    assert page.status_code == 503
    assert "No pool answers" in words(page)
    assert 'http-equiv="refresh"' in page.text  # the page asks again by itself
    pool.start()
    eventually(lambda: prof.see("course/ml101").status_code == 200)


def test_who_signs_out_or_is_no_instructor_any_more_is_out(short: tuple[Hub, Pool]) -> None:
    hub, pool = short
    prof = Visitor(hub, "prof")
    assert prof.see().status_code == 200
    with Holders(pool.address) as holders:
        holders.ask("import_courses", COURSES.replace("[prof]", "[other]").replace(", prof]", "]"))
        assert prof.see("course/ml101").status_code == 403
        holders.ask("import_courses", COURSES)
        assert prof.see("course/ml101").status_code == 200
    prof.get(f"{hub.url}/hub/logout", timeout=60)
    answer = prof.get(prof.at + "course/ml101", timeout=60)
    assert "/hub/login" in answer.url
