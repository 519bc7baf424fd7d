"""A JupyterHub's requests to the pool: courses by group, servers with tokens of their own, and prospects before a choice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from gpukernel.client.admin import AdminClient
from gpukernel.client.hub import HubClient
from gpukernel.client.pool import PoolClient
from gpukernel.common.address import socket_path
from gpukernel.common.course import Offered
from gpukernel.common.errors import LeaseEnded, NotAllowed, PoolError, Refused
from gpukernel.common.model import Holder, Lease, Queued, SliceRequest
from gpukernel.pool.rpc.server import RunningPool, serve
from tests.common.test_course_profiles import COURSES
from tests.pool.world import Agent

QUARTER = SliceRequest(share=0.25)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(within())


@contextlib.asynccontextmanager
async def hub(folder: Path) -> AsyncIterator[tuple[RunningPool, AdminClient, str]]:
    """A pool of one device with the courses above, a client that may do all, and the pool's address."""
    async with serve(folder / "state") as running:
        Agent(running.manager, "s", devices=1).attach()
        address = f"unix:{socket_path(folder / 'state')}"
        async with AdminClient(address) as admin:
            await admin.import_courses(COURSES)
            yield running, admin, address


def test_groups_make_members_and_a_changed_group_counts_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with hub(tmp_path) as (running, admin, address):
            holder = Holder("anna", course="ml101")
            with pytest.raises(Refused, match="anna is not in course ml101"):
                await admin.acquire_now("k", QUARTER, holder)
            await admin.set_groups("anna", ["ml101", "other"])
            await admin.set_groups("tutor", ["ml101-staff", "ml101"])
            lease = await admin.acquire_now("k", QUARTER, holder)
            assert lease.role == "student"
            with pytest.raises(Refused, match="anna, as a student of ml101, holds 1 of their 1 leases"):
                await admin.acquire_now("k2", QUARTER, holder, wait_seconds=0)
            async with HubClient(address, on_behalf="anna") as anna:
                found = {one.course.name: one for one in await anna.courses()}
                assert {name: one.role for name, one in found.items()} == {
                    "ml101": "student",
                    "phys": "student",
                }
                profile = found["ml101"].course.profile
                assert profile.offers[:2] == (Offered(0.25, "V100"), Offered(0.5))
                assert profile.offers[2:] == (Offered(1.0, "V100", "batch"), Offered(0.5, "", "scavenger"))
                assert profile.priority == "batch"
                assert not found["ml101"].course.profile.groups  # not a student's business
            async with HubClient(address, on_behalf="tutor") as tutor:
                found = {one.course.name: one for one in await tutor.courses()}
                assert found["ml101"].role == "instructor"
                assert dict(found["ml101"].course.members) == {"prof": "instructor"}
                # An instructor by group ends a student's slice.
                assert (await tutor.release(lease.id, "ended by tutor")).state in ("ending", "ended")
            await admin.set_groups("anna", [])
            with pytest.raises(Refused, match="not in course ml101"):
                await admin.acquire_now("k3", QUARTER, holder)
            # The file says nothing about groups of people, and takes none away.
            await admin.set_groups("anna", ["ml101"])
            await admin.import_courses(COURSES.replace("leases: 1", "leases: 2"))
            assert running.manager.policy().role("ml101", "anna") == "student"

    run(work)


def test_on_behalf_of_a_person_one_may_do_what_the_person_may(tmp_path: Path) -> None:
    async def work() -> None:
        async with hub(tmp_path) as (_, admin, address):
            await admin.set_groups("anna", ["ml101"])
            lease = await admin.acquire_now("k", QUARTER, Holder("anna", course="ml101"))
            async with AdminClient(address, on_behalf="anna") as anna:
                assert [one.id for one in (await anna.leases())[0]] == [lease.id]
                with pytest.raises(PoolError, match="Only the pool's administrator may do that, not anna"):
                    await anna.export_courses()
                with pytest.raises(PoolError, match="Only the pool's administrator may do that, not anna"):
                    await anna.set_quota("student:ml101", {"leases": "9"})
            async with AdminClient(address, on_behalf="ben") as ben:
                assert (await ben.leases())[0] == []
                with pytest.raises(LeaseEnded):
                    await ben.release(lease.id)
            async with AdminClient(address, on_behalf="prof") as prof:
                assert [one.id for one in (await prof.leases())[0]] == [lease.id]
                await prof.set_quota("student:ml101", {"leases": "2"})
            # A person cannot say for whom they ask.
            token = await admin.open_server("anna", "jupyterhub", "ml101")
            async with PoolClient(address, token, on_behalf="prof") as thief:
                with pytest.raises(PoolError, match="anna may not ask on behalf of others"):
                    await thief.leases()

    run(work)


def test_a_role_that_the_hub_vouches_for_makes_an_instructor_for_one_call(tmp_path: Path) -> None:
    async def work() -> None:
        async with hub(tmp_path) as (_, admin, address):
            await admin.set_groups("anna", ["ml101"])
            lease = await admin.acquire_now("k", QUARTER, Holder("anna", course="ml101"))
            _, service = await admin.create_token("the hub", "", "service")
            async with AdminClient(address, service, on_behalf="tina", teaches=["ml101"]) as tina:
                roles = {known.course.name: known.role for known in await tina.courses()}
                assert roles["ml101"] == "instructor"
                assert roles.get("phys") != "instructor"
                assert [one.id for one in (await tina.leases())[0]] == [lease.id]
                await tina.set_quota("student:ml101", {"leases": "3"})
                await tina.set_course("ml101", {"term": "spring"})
                for forbidden in ("course:ml101", "student:phys", "pool"):
                    with pytest.raises(NotAllowed, match="administrator"):
                        await tina.set_quota(forbidden, {"leases": "9"})
                with pytest.raises(NotAllowed, match="instructor of course phys"):
                    await tina.set_course("phys", {"term": "spring"})
                await tina.release(lease.id, "tina ended it")
            written = {entry.action: entry.who for entry in await admin.audit(10)}
            assert {written[action] for action in ("quota", "course", "end")} == {
                "tina (instructor by the hub)"
            }
            # Whom the pool itself knows as an instructor is named as always.
            async with AdminClient(address, service, on_behalf="prof", teaches=["ml101"]) as prof:
                await prof.set_quota("student:ml101", {"leases": "4"})
            assert (await admin.audit(1))[0].who == "prof"
            # What was said of one call counts for no other, and a course that there is not is nobody's.
            for teaches in ((), ("phys",), ("nothing", "")):
                async with AdminClient(address, service, on_behalf="tina", teaches=teaches) as tina:
                    with pytest.raises(NotAllowed, match="may do that, not tina"):
                        await tina.set_quota("student:ml101", {"leases": "5"})
            # Nobody says so of themselves: neither a person, nor the service.
            server = await admin.open_server("anna", "jupyterhub", "ml101")
            _, own = await admin.create_token("laptop", "anna")
            for token in (server, own, service):
                async with AdminClient(address, token, teaches=["ml101"]) as thief:
                    with pytest.raises(NotAllowed, match="Nobody says of themselves"):
                        await thief.set_quota("student:ml101", {"leases": "5"})
            async with AdminClient(address, own, on_behalf="anna", teaches=["ml101"]) as thief:
                with pytest.raises(NotAllowed, match="anna may not ask on behalf of others"):
                    await thief.set_quota("student:ml101", {"leases": "5"})

    run(work)


def test_a_server_has_a_token_of_its_own_and_ends_with_everything_that_it_holds(tmp_path: Path) -> None:
    async def work() -> None:
        async with hub(tmp_path) as (running, admin, address):
            await admin.set_groups("anna", ["ml101"])
            await admin.set_quota("student:ml101", {"leases": "none"})
            with pytest.raises(PoolError, match="ben is not in course ml101"):
                await admin.open_server("ben", "jupyterhub", "ml101")
            token = await admin.open_server("anna", "jupyterhub", "ml101")
            other = await admin.open_server("anna", "jupyterhub/second", "phys")
            async with PoolClient(address, token) as mine, PoolClient(address, other) as second:
                # Whatever the code in a server says of itself, the token says who, where and for which course.
                claimed = Holder("prof", server="elsewhere", course="phys")
                lease = await mine.acquire_now("a", QUARTER, claimed)
                assert (lease.holder.person, lease.holder.server, lease.holder.course) == (
                    "anna",
                    "jupyterhub",
                    "ml101",
                )
                kept = await second.acquire_now("b", QUARTER, claimed)
                queued = mine.acquire("w", SliceRequest(share=0.5), Holder("anna"))
                full = await admin.acquire_now("full", SliceRequest(share=0.5), Holder("root"))
                assert isinstance(await anext(queued), Queued)
                assert await admin.close_server("anna", "jupyterhub") == 1
                with pytest.raises(Refused, match="given up: its server was stopped"):
                    await anext(queued)
                for attempt in (mine.renew(lease.id), mine.leases(), mine.release(kept.id)):
                    with pytest.raises(PoolError, match="does not know this token"):
                        await attempt
                assert running.manager.lease(lease.id).state in ("ending", "ended")  # type: ignore[union-attr]
                assert running.manager.waiting() == []
                assert (await second.renew(kept.id)).state == "live"
                assert await admin.close_server("anna", "jupyterhub") == 0  # again: nothing changes
                await admin.release(full.id)
            assert [(s.person, s.server, s.course) for s in await admin.servers()] == [
                ("anna", "jupyterhub/second", "phys")
            ]
            # Started again without having been stopped: what it had is over.
            newer = await admin.open_server("anna", "jupyterhub/second", "phys")
            assert running.manager.lease(kept.id).state in ("ending", "ended")  # type: ignore[union-attr]
            async with PoolClient(address, other) as stale, PoolClient(address, newer) as fresh:
                with pytest.raises(PoolError, match="does not know this token"):
                    await stale.leases()
                assert isinstance(await fresh.acquire_now("d", QUARTER, Holder("anna")), Lease)
            async with HubClient(address, on_behalf="anna") as anna:
                for attempt in (
                    anna.open_server("anna", "x"),
                    anna.close_server("anna", "jupyterhub/second"),
                    anna.set_groups("anna", ["ml101-staff"]),
                    anna.servers(),
                ):
                    with pytest.raises(PoolError, match="Only a JupyterHub may do that, not anna"):
                        await attempt

    run(work)


def test_prospects_are_told_before_the_choice_and_take_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with hub(tmp_path) as (running, admin, address):
            await admin.set_groups("anna", ["ml101"])
            await admin.set_groups("ben", ["ml101"])
            sizes = [Offered(0.25, "V100"), Offered(0.75), Offered(0.25, "A100")]
            async with HubClient(address, on_behalf="anna") as anna:
                quarter, large, absent = await anna.estimate("ml101", sizes)
                assert (quarter.state, quarter.free, quarter.memory_bytes) == ("free", 4, 8 * 2**30)
                assert large.state == "refused"
                assert large.sentence.startswith("anna, as a student of ml101, may have slices of up to 0.50")
                assert absent.state == "refused"
                assert "has no A100" in absent.sentence
                assert running.manager.leases(True) == []
                lease = await admin.acquire_now("k", QUARTER, Holder("anna", course="ml101"))
                (quarter,) = await anna.estimate("ml101", sizes[:1])
                assert (quarter.state, quarter.free) == ("wait", 3)
                assert quarter.sentence.startswith("anna, as a student of ml101, holds 1 of their 1 leases")
                await admin.release(lease.id)
                # All in use by somebody who promised to be gone in a quarter of an hour.
                async for event in admin.acquire(
                    "all", SliceRequest(share=1.0), Holder("root"), longest_seconds=900
                ):
                    assert isinstance(event, Lease)
                (quarter,) = await anna.estimate("ml101", sizes[:1])
                assert (quarter.state, quarter.free) == ("wait", 0)
                assert 800 < quarter.wait_seconds <= 901
                assert quarter.sentence == "All V100 are in use now."
                queued = admin.acquire("ben", QUARTER, Holder("ben", course="ml101"))
                assert isinstance(await anext(queued), Queued)
                (quarter,) = await anna.estimate("ml101", sizes[:1])
                assert (quarter.state, quarter.waiting) == ("wait", 1)
                assert quarter.sentence == "One request waits before you."
                with pytest.raises(PoolError, match="There is no course chem"):
                    await anna.estimate("chem", sizes)
                with pytest.raises(PoolError, match="at most 100 entries; this message has"):
                    await anna.estimate("ml101", sizes * 50)
            async with HubClient(address, on_behalf="eve") as eve:
                with pytest.raises(PoolError, match="eve is not in course ml101"):
                    await eve.estimate("ml101", sizes, person="anna")

    run(work)


def test_requests_without_a_course_can_be_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with hub(tmp_path) as (_, admin, _):
            await admin.set_groups("anna", ["ml101"])
            free = await admin.acquire_now("k", QUARTER, Holder("anna"))
            await admin.import_courses(COURSES + "without_course: {leases: 0}\n")
            assert "without_course" in await admin.export_courses()
            with pytest.raises(
                Refused, match="What names no course may hold no slices: the quota is 0 leases"
            ):
                await admin.acquire_now("k2", QUARTER, Holder("anna"))
            assert (await admin.renew(free.id)).state == "live"  # nobody loses what they hold
            await admin.acquire_now("k3", QUARTER, Holder("anna", course="ml101"))
            await admin.set_quota("without_course", {"leases": "none"})
            await admin.acquire_now("k4", QUARTER, Holder("anna"))

    run(work)
