"""Servers that a Hub starts for courses: what they may do in the pool, and what is left when they are gone."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest

from gpukernel.client.hub import HubClient, OpenedServer
from gpukernel.client.pool import PoolClient
from gpukernel.common.errors import PoolError
from tests.conftest import Pool, eventually
from tests.hub.hub import Hub, ServerRefused, Single


def opened(pool: Pool) -> list[OpenedServer]:
    async def ask() -> list[OpenedServer]:
        async with HubClient(pool.address) as client:
            return await client.servers()

    return asyncio.run(ask())


def listed(single: Single) -> set[str]:
    """The slices in a server's launcher."""
    specs = single.ask("GET", "/api/kernelspecs").json()["kernelspecs"]
    return {name for name in specs if name.startswith("gpu-")}


def environment(pid: int) -> dict[str, str]:
    content = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(line.split("=", 1) for line in content if "=" in line)


def test_a_student_in_one_course_gets_a_server_a_kernel_and_a_slice_for_it(hub: Hub, hub_pool: Pool) -> None:
    hub.start_server("anna")
    single = hub.server("anna")
    # What the course offers, and nothing else.
    eventually(lambda: listed(single) == {"gpu-v100-0.02", "gpu-v100-0.1"})
    session = single.start_kernel("gpu-v100-0.1")
    assert session.status_code == 201, session.text
    (lease,) = hub_pool.live()
    assert (lease.holder.person, lease.holder.course, lease.holder.server) == ("anna", "ml101", "jupyterhub")
    # The quota stands in the pool, whatever size is asked for by name.
    refused = single.start_kernel("gpu-v100-0.75", "b.ipynb")
    assert refused.status_code == 500
    assert (
        "anna, as a student of ml101, may have slices of up to 0.50 of a device" in refused.json()["message"]
    )
    hub.stop_server("anna")
    assert hub_pool.live() == []
    assert opened(hub_pool) == []


def test_groups_of_the_hub_are_courses_and_strangers_are_told_why_not(hub: Hub, hub_pool: Pool) -> None:
    hub.start_server("carl")
    assert [(one.person, one.course) for one in opened(hub_pool)] == [("carl", "ml101")]
    with pytest.raises(ServerRefused, match="You are in no course that uses GPUs; ask your instructor"):
        hub.start_server("eve")
    with pytest.raises(ServerRefused, match="You are not in course phys; your courses: ml101"):
        hub.start_server("anna", {"course": "phys"})
    # The Hub remembers what was asked for last; what cannot be is forgotten.
    hub.start_server("anna")
    with pytest.raises(ServerRefused, match="Choose one of your courses"):
        hub.start_server("both", {"course": ""})
    # Taken out of the group: the next start is refused.
    hub.stop_server("carl")
    hub.ask("DELETE", "/groups/ml101/users", {"users": ["carl"]}).raise_for_status()
    with pytest.raises(ServerRefused, match="You are in no course"):
        hub.start_server("carl")


def test_who_is_in_two_courses_is_charged_to_the_chosen_one_whatever_their_code_says(
    hub: Hub, hub_pool: Pool
) -> None:
    hub.start_server("both", {"course": "phys"})
    single = hub.server("both")
    eventually(lambda: "gpu-v100-0.05" in single.ask("GET", "/api/kernelspecs").json()["kernelspecs"])
    assert single.start_kernel("gpu-v100-0.05").status_code == 201
    (lease,) = hub_pool.live()
    assert lease.holder.course == "phys"
    # With the server's token one cannot ask for another course, or as another person.
    token = environment(hub.pid("both"))["GPUKERNEL_POOL_TOKEN"]

    async def ask() -> None:
        from gpukernel.common.model import Holder, SliceRequest

        async with PoolClient(hub_pool.address, token) as thief:
            got = await thief.acquire_now("x", SliceRequest(share=0.01), Holder("anna", course="ml101"))
            assert (got.holder.person, got.holder.course) == ("both", "phys")

    asyncio.run(ask())
    hub.stop_server("both")
    eventually(lambda: hub_pool.live() == [])

    async def stolen() -> None:
        async with PoolClient(hub_pool.address, token) as thief:
            with pytest.raises(PoolError, match="does not know this token"):
                await thief.leases()

    asyncio.run(stolen())


def test_a_stolen_token_is_worth_nothing_after_signing_out(hub: Hub, hub_pool: Pool) -> None:
    hub.start_server("anna")
    token = environment(hub.pid("anna"))["GPUKERNEL_POOL_TOKEN"]

    async def works() -> bool:
        async with PoolClient(hub_pool.address, token) as thief:
            try:
                await thief.leases()
            except PoolError as error:
                return "does not know this token" not in str(error)
            return True

    assert asyncio.run(works())
    hub.browse("anna").get(f"{hub.url}/hub/logout").raise_for_status()
    eventually(lambda: not asyncio.run(works()))


def test_a_named_server_is_one_of_its_own(hub: Hub, hub_pool: Pool) -> None:
    hub.start_server("both", {"course": "phys"})
    hub.start_server("both", {"course": "ml101"}, name="second")
    assert {(one.server, one.course) for one in opened(hub_pool)} == {
        ("jupyterhub", "phys"),
        ("jupyterhub/second", "ml101"),
    }
    hub.stop_server("both")
    assert [one.server for one in opened(hub_pool)] == ["jupyterhub/second"]


def test_a_server_that_is_killed_holds_nothing_afterwards(hub: Hub, hub_pool: Pool) -> None:
    hub.start_server("anna")
    single = hub.server("anna")
    eventually(lambda: "gpu-v100-0.1" in single.ask("GET", "/api/kernelspecs").json()["kernelspecs"])
    assert single.start_kernel("gpu-v100-0.1").status_code == 201
    os.kill(hub.pid("anna"), signal.SIGKILL)
    eventually(lambda: hub_pool.live() == [], 60)
    eventually(lambda: opened(hub_pool) == [], 60)
    hub.start_server("anna")  # and a new one starts


def test_the_choice_page_shows_cards_and_remembers(hub: Hub, hub_pool: Pool) -> None:
    browser = hub.browse("both")
    page = browser.get(f"{hub.url}/hub/spawn")
    assert page.status_code == 200
    assert "Machine learning" in page.text
    assert "Physics &lt;script&gt;" in page.text
    assert "<script>alert(1)" not in page.text
    assert "50 free now" in page.text
    first = re.search(r'value="(\w+)"\s+required\s+checked', page.text)
    assert first is not None
    other = {"ml101": "phys", "phys": "ml101"}[first[1]]
    # A form from elsewhere, without the Hub's token, starts nothing.
    assert browser.post(f"{hub.url}/hub/spawn", data={"course": "phys"}).status_code == 403
    assert hub.running() == set()
    action = re.search(r'id="spawn_form"\s+action="([^"]+)"', page.text)
    assert action is not None
    started = browser.post(f"{hub.url}{action[1]}", data={"course": other}, allow_redirects=False)
    assert started.status_code == 302, started.text
    eventually(lambda: [one.course for one in opened(hub_pool)] == [other])
    eventually(lambda: hub.ask("GET", "/users/both").json()["servers"].get("", {}).get("ready"), 90)
    hub.stop_server("both")
    page = browser.get(f"{hub.url}/hub/spawn")
    assert re.search(rf'value="{other}"\s+required\s+checked', page.text)


def test_a_hub_that_is_killed_and_started_again_has_lost_and_doubled_nothing(
    hub: Hub, hub_pool: Pool
) -> None:
    hub.start_server("anna")
    hub.start_server("ben")
    single = hub.server("anna")
    eventually(lambda: "gpu-v100-0.1" in single.ask("GET", "/api/kernelspecs").json()["kernelspecs"])
    assert single.start_kernel("gpu-v100-0.1").status_code == 201
    before = {lease.id for lease in hub_pool.live()}
    hub.kill()
    os.kill(int((hub.home / "proxy.pid").read_text()), signal.SIGTERM)
    hub.start()
    eventually(lambda: hub.running() == {("anna", ""), ("ben", "")})
    assert {lease.id for lease in hub_pool.live()} == before
    assert len(opened(hub_pool)) == 2
    assert single.ask("GET", "/api/kernels").json()[0]["execution_state"] in ("idle", "starting", "busy")
    hub.stop_server("anna")
    assert hub_pool.live() == []


def test_a_pool_that_starts_again_finds_servers_and_their_tokens_as_they_were(
    hub: Hub, hub_pool: Pool
) -> None:
    hub.start_server("anna")
    single = hub.server("anna")
    hub_pool.kill()
    hub_pool.start()
    eventually(lambda: "gpu-v100-0.1" in single.ask("GET", "/api/kernelspecs").json()["kernelspecs"])
    assert single.start_kernel("gpu-v100-0.1").status_code == 201
    hub.start_server("ben")
    assert len(opened(hub_pool)) == 2


def test_no_secret_stands_in_a_command_line_or_in_the_hubs_log(hub: Hub, hub_pool: Pool) -> None:
    hub.start_server("anna")
    token = environment(hub.pid("anna"))["GPUKERNEL_POOL_TOKEN"]
    assert token not in hub.log.read_text()
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert token not in process.read_text()
        except OSError:
            continue
