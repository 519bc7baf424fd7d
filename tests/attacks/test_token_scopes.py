"""Somebody gets hold of a Hub administrator's token that was made for one service alone (``access:services``), and has the console make
an administrator's token of the pool with it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests

from tests.hub.console.people import Visitor, running_console
from tests.hub.hub import ADMIN, Hub

COURSES = "courses: {ml101: {instructors: [prof], students: [anna]}}"
ROLES = """
c.JupyterHub.load_roles += [
    {"name": "gpukernel-admin", "users": ["rector"]},
    {"name": "helpdesk", "users": ["helper"], "scopes": ["admin-ui", "list:users"]},
]
"""
ACCESS = "access:services!service=gpukernel"
POOL_ADMIN = "custom:gpukernel:admin"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    home = tmp_path_factory.mktemp("scopes")
    with running_console(home, COURSES, extra=ROLES) as both:
        yield both[0]


def hub_token(hub: Hub, person: str, *scopes: str) -> str:
    """A token that `person` made, for all that they may or for `scopes`."""
    body = {"note": "tests", "expires_in": 600} | ({"scopes": list(scopes)} if scopes else {})
    made = hub.ask("POST", f"/users/{person}/tokens", body)
    made.raise_for_status()
    return str(made.json()["token"])


def ask(hub: Hub, method: str, path: str, token: str, body: object = None) -> requests.Response:
    at = f"{hub.url}/services/gpukernel/{path}"
    headers = {"Authorization": f"token {token}"}
    return requests.request(method, at, headers=headers, json=body, timeout=60)


def administers(hub: Hub, token: str) -> bool:
    """Try every way by which the console administers; they open together or not at all."""
    everything = hub_token(hub, ADMIN)
    known = len(ask(hub, "GET", "api/tokens", everything).json())
    made = ask(hub, "POST", "api/tokens", token, {"name": "stolen", "scope": "admin"})
    assert len(ask(hub, "GET", "api/tokens", everything).json()) == known + made.ok
    others = [
        ask(hub, "GET", "api/tokens", token),
        ask(hub, "GET", "api/audit", token),
        ask(hub, "GET", "api/courses.yaml", token),
        ask(hub, "GET", "admin", token),
        ask(hub, "GET", "admin/courses.yaml", token),
        ask(hub, "POST", "api/courses/ml101/quotas", token, {"whom": "course", "bounds": {"devices": "1"}}),
    ]
    statuses = {answer.status_code for answer in (made, *others)}
    assert statuses in ({200}, {403}), statuses
    return statuses == {200}


def test_a_token_for_the_service_alone_administers_nothing(hub: Hub) -> None:
    assert not administers(hub, hub_token(hub, ADMIN, ACCESS))
    assert not administers(hub, hub_token(hub, ADMIN, "access:services"))
    assert not administers(hub, hub_token(hub, ADMIN, ACCESS, "read:users", "list:users", "admin:servers"))


def test_a_token_administers_where_it_was_made_for_that(hub: Hub) -> None:
    assert administers(hub, hub_token(hub, ADMIN))
    assert administers(hub, hub_token(hub, ADMIN, ACCESS, "admin-ui"))
    assert administers(hub, hub_token(hub, "rector", ACCESS, POOL_ADMIN))
    assert not administers(hub, hub_token(hub, "rector", ACCESS))


def test_nobody_gives_a_token_more_than_they_have(hub: Hub) -> None:
    hub.ask("POST", "/users/anna")
    for scopes in ((ACCESS, POOL_ADMIN), (ACCESS, "admin-ui")):
        with pytest.raises(requests.HTTPError):
            hub_token(hub, "anna", *scopes)
    assert not administers(hub, hub_token(hub, "anna"))


def test_the_hub_s_administration_page_alone_does_not_administer_the_pool(hub: Hub) -> None:
    assert not administers(hub, hub_token(hub, "helper"))
    assert not administers(hub, hub_token(hub, "helper", ACCESS, "admin-ui"))
    assert Visitor(hub, "helper").see("admin").status_code == 403


@pytest.mark.parametrize("person", [ADMIN, "rector"])
def test_a_browser_session_has_the_scopes_of_its_person(hub: Hub, person: str) -> None:
    visitor = Visitor(hub, person)
    assert visitor.see("admin").status_code == 200
    assert "Administration" in visitor.see().text
    made = visitor.fill("admin/token", name="laptop", scope="person", person="anna", valid="1d")
    assert made.status_code == 200
    # Its cookies alone are not enough.
    answer = visitor.post(visitor.at + "api/tokens", json={"name": "x", "scope": "admin"}, timeout=60)
    assert answer.status_code == 403
    assert Visitor(hub, "prof").see("admin").status_code == 403


def test_a_token_does_not_bypass_the_check_of_forms_by_a_cookie(hub: Hub) -> None:
    """A page of another site that sends a form has the session's cookies, and no token of ours."""
    visitor = Visitor(hub, ADMIN)
    visitor.see("admin")
    for fields in ({}, {"_xsrf": "x" * 32}):
        body = {"name": "x", "scope": "admin", **fields}
        assert visitor.post(visitor.at + "admin/token", data=body, timeout=60).status_code == 403
