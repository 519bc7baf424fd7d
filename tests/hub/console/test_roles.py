"""Instructors by a role of JupyterHub's: what it gives in the console, and how soon it is gone; real Hub, real proxy, real pool."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests

from hub_spawner.roles import course_of_role, courses_of, instructor_roles, role_of, scope_of
from tests.conftest import Pool, eventually
from tests.hub.console.people import Holders, Visitor, running_console, words
from tests.hub.hub import Hub, ServerRefused

COURSES = """
courses:
  ml101: {instructors: [prof], students: [anna], quota: {devices: 1}, each_student: {devices: 0.5}}
  HPC.2: {title: Parallel programming, instructors: [chief], students: [dora]}
  vision: {groups: [vision], instructor_groups: [vision-staff]}
"""
ROLES = """
c.JupyterHub.load_roles += [
    {"name": "gpukernel-instructor-ml101", "users": ["tina"], "groups": ["tutors"]},
    {"name": "gpukernel-instructor-_48_50_43_2e2", "users": ["hugo"]},
]
"""
BELIEVED = 60
"""The longest time, in seconds, for which a right that the Hub took away may count."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Hub, Pool]]:
    home = tmp_path_factory.mktemp("roles")
    groups = {"tutors": ["udo"], "vision": ["vera"], "vision-staff": ["vera"]}
    file = str(home / "courses.yaml")
    with running_console(home, COURSES, groups=groups, extra=ROLES, courses=file) as both:
        yield both


def script(
    hub: Hub, person: str, method: str, path: str, *, scopes: list[str] | None = None, **options: object
) -> requests.Response:
    """The console's API with a token that `person` made, for all that they may or for `scopes`."""
    body = {"note": "tests", "expires_in": 600} | ({"scopes": scopes} if scopes else {})
    made = hub.ask("POST", f"/users/{person}/tokens", body)
    made.raise_for_status()
    headers = {"Authorization": f"token {made.json()['token']}"}
    at = f"{hub.url}/services/gpukernel/api/{path}"
    return requests.request(method, at, headers=headers, timeout=60, **options)  # type: ignore[arg-type]


def test_who_holds_the_role_sets_the_quotas_of_that_course_and_of_no_other(
    hub: Hub, holders: Holders
) -> None:
    lease = holders.hold("anna", 0.4)
    tina = Visitor(hub, "tina")
    page = tina.see()
    assert page.url.endswith("/services/gpukernel/course/ml101")
    assert "anna a notebook" in words(page)
    page = tina.fill("course/ml101/quota", whom="student", devices="0.45", apply="yes")
    assert "The quotas are set" in words(page)
    assert {line.value for line in holders.ask("quotas") if line.subject == "student:ml101"} == {"0.45"}
    entry = holders.ask("audit", 1)[0]
    assert (entry.who, entry.action) == ("tina (instructor by root)", "quota")
    # The course's own quota is the administrator's to say, and other courses are others'.
    assert tina.fill("course/ml101/quota", whom="course", devices="2", apply="yes").status_code == 403
    for course in ("HPC.2", "vision", "nothing"):
        assert tina.see(f"course/{course}").status_code == 403
        answer = tina.post(
            f"{tina.at}course/{course}/quota",
            data={
                "_xsrf": tina.form_token("course/ml101"),
                "whom": "student",
                "devices": "1",
                "apply": "yes",
            },
            timeout=60,
        )
        assert answer.status_code == 403
    assert "The slice of anna has ended." in words(tina.fill(f"course/ml101/lease/{lease.id}/end"))
    # It teaches, it does not enrol: slices are for those who are in the course.
    with pytest.raises(ServerRefused, match=r"in no course|not in course"):
        hub.start_server("tina", {"course": "ml101"})


def test_a_course_whose_name_no_role_could_have_has_a_role_nevertheless(hub: Hub) -> None:
    page = Visitor(hub, "hugo").see()
    assert page.url.endswith("/course/HPC.2")
    assert "Parallel programming" in words(page)


def test_a_script_s_token_teaches_only_where_it_was_made_for_that(hub: Hub) -> None:
    names = [course["name"] for course in script(hub, "tina", "GET", "courses").json()]
    assert names == ["ml101"]
    access = "access:services!service=gpukernel"
    answer = script(hub, "tina", "GET", "courses", scopes=[access])
    assert (answer.status_code, answer.json()) == (200, [])
    body = {"bounds": {"devices": "0.1"}, "check": False}
    answer = script(hub, "tina", "POST", "courses/ml101/quotas", scopes=[access], json=body)
    assert answer.status_code == 403
    answer = script(
        hub, "tina", "POST", "courses/ml101/quotas", scopes=[access, scope_of("ml101")], json=body
    )
    assert answer.status_code == 200
    # Nobody makes a token for what they may not themselves.
    with pytest.raises(requests.HTTPError):
        script(hub, "anna", "GET", "courses", scopes=[access, scope_of("ml101")])


def test_a_role_that_is_given_or_taken_while_somebody_is_signed_in_counts_soon(hub: Hub) -> None:
    nina, udo = Visitor(hub, "nina"), Visitor(hub, "udo")
    assert udo.see("course/ml101").status_code == 200
    assert nina.see().url.endswith("/my")
    hub.ask("DELETE", "/groups/tutors/users", {"users": ["udo"]}).raise_for_status()
    hub.ask("POST", "/groups/tutors/users", {"users": ["nina"]}).raise_for_status()
    try:
        # No form of a page that is open already gets through either.
        token = udo.form_token("course/ml101")
        eventually(lambda: udo.see("course/ml101").status_code == 403, BELIEVED)
        fields = {"_xsrf": token, "whom": "student", "devices": "1", "apply": "yes"}
        answer = udo.post(f"{udo.at}course/ml101/quota", data=fields, timeout=60)
        assert answer.status_code == 403
        eventually(lambda: nina.see("course/ml101").status_code == 200, BELIEVED)
    finally:
        hub.ask("DELETE", "/groups/tutors/users", {"users": ["nina"]})
        hub.ask("POST", "/groups/tutors/users", {"users": ["udo"]})


@pytest.mark.thorough
def test_a_group_that_is_left_counts_no_more_in_the_console_nor_in_a_server_that_runs(
    hub: Hub, running: tuple[Hub, Pool]
) -> None:
    vera, pool = Visitor(hub, "vera"), running[1]
    assert vera.see("course/vision").status_code == 200
    hub.start_server("vera", {"course": "vision"})
    try:
        hub.ask("DELETE", "/groups/vision-staff/users", {"users": ["vera"]}).raise_for_status()
        # The console's process tells the pool without that vera or her server come by.
        with Holders(pool.address) as holders:
            eventually(
                lambda: {k.role for k in holders.ask("courses", on_behalf="vera")} == {"student"}, BELIEVED
            )
        eventually(lambda: vera.see("course/vision").status_code == 403, BELIEVED)
    finally:
        hub.stop_server("vera")


# --- names ---


@pytest.mark.parametrize("course", ["ml101", "ML101", "HPC.2", "a-", "-", "_", "x_y", "C++", "机器学习", "Ω"])
def test_every_course_has_a_role_and_a_scope_of_its_own(course: str) -> None:
    roles, scopes = instructor_roles([], {}, [course], "access:services!service=gpukernel")
    (role,) = roles
    assert course_of_role(role["name"]) == course
    assert courses_of([*scopes, "self", "custom:other:instruct:ml101"]) == {course}
    assert scope_of(course) in role["scopes"]


def test_a_scope_that_is_narrowed_or_of_another_kind_teaches_nothing() -> None:
    for scope in (
        scope_of("ml101") + "!user=tina",
        "custom:gpukernel:instruct:ML101",
        "custom:gpukernel:instruct:_6dl101",  # there is one way to write a course
        "custom:gpukernel:instruct:_ff",
        "custom:gpukernel:instruct:",
        "custom:gpukernel:instruct:*",
    ):
        assert courses_of([scope]) == frozenset(), scope
    assert course_of_role("gpukernel-console") == ""
    assert role_of("ml101") == "gpukernel-instructor-ml101"


def test_what_an_administrator_wrote_about_a_role_stays() -> None:
    written = [{"name": role_of("later"), "users": ["tina"], "description": "D", "scopes": ["read:users"]}]
    roles, scopes = instructor_roles(written, {"custom:x:y": {"description": "Y"}}, [], "access:it")
    assert roles == [{**written[0], "scopes": ["read:users", scope_of("later"), "access:it"]}]
    assert set(scopes) == {"custom:x:y", scope_of("later")}
    assert written[0]["scopes"] == ["read:users"]
