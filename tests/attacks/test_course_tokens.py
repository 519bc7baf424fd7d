"""The code in one course's server takes its token from the environment and reaches the person's leases in other courses; an agent's
token that is called like an instructor reads and rules the course.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc.aio
import pytest

import gpukernel.common.proto.pool_pb2 as pb
import gpukernel.common.proto.pool_pb2_grpc as rpc
from gpukernel.client.admin import AdminClient
from gpukernel.common.address import socket_path
from gpukernel.common.errors import LeaseEnded, PoolError, Refused
from gpukernel.common.model import Holder, Lease, SliceRequest
from gpukernel.pool.rpc.server import serve
from tests.pool.world import Agent
from tests.ports import free_port

COURSES = (
    "courses: {ml: {instructors: [prof], students: [anna]}, bio: {instructors: [prof], students: [anna]}}"
)
TENTH = SliceRequest(share=0.1)


@contextlib.asynccontextmanager
async def pool(folder: Path) -> AsyncIterator[tuple[AdminClient, str]]:
    """An administrator's client of a pool with both courses, and its address over TCP."""
    address = f"127.0.0.1:{free_port()}"
    async with serve(folder / "state", address) as running:
        Agent(running.manager, "s", devices=2).attach()
        async with AdminClient(f"unix:{socket_path(folder / 'state')}") as admin:
            await admin.import_courses(COURSES)
            yield admin, address


async def held(admin: AdminClient, course: str) -> Lease:
    return await admin.acquire_now(f"kernel-{course}", TENTH, Holder("anna", course=course))


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(within())


def test_a_server_s_token_reaches_its_own_course_s_leases_only(tmp_path: Path) -> None:
    async def work() -> None:
        async with pool(tmp_path) as (admin, address):
            ml, bio = await held(admin, "ml"), await held(admin, "bio")
            token = await admin.open_server("anna", "hub", "ml")
            async with AdminClient(address, token) as thief:
                assert [lease.id for lease in (await thief.leases())[0]] == [ml.id]
                with pytest.raises(Refused, match="in use by somebody else"):  # its answer has the secret
                    await thief.acquire_now(bio.key, TENTH, Holder("anna", course="bio"))
                for attempt in (thief.renew, thief.interrupt, thief.release):
                    with pytest.raises(LeaseEnded, match="knows no lease"):
                        await attempt(bio.id)
                with pytest.raises(LeaseEnded, match="knows no lease"):
                    await thief.resize(bio.id, SliceRequest(share=0.2))
                assert [one.course.name for one in await thief.courses()] == ["ml"]
                assert {part.course for part in await thief.report(time.time() - 3600)} == {"ml"}
                assert (await thief.resize(ml.id, SliceRequest(share=0.2))).id == ml.id
                assert (await thief.release(ml.id)).state in ("ending", "ended")
            states = {lease.id: lease.state for lease in (await admin.leases())[0]}
            assert states[bio.id] == "live"

    run(work)


def test_a_server_s_token_ends_no_request_of_another_course(tmp_path: Path) -> None:
    async def work() -> None:
        async with pool(tmp_path) as (admin, address):
            token = await admin.open_server("anna", "hub", "ml")
            whole = SliceRequest(share=1.0, devices=2)
            first = await admin.acquire_now("first", whole, Holder("ben"))
            waits = asyncio.create_task(
                admin.acquire_now("kernel-bio", TENTH, Holder("anna", course="bio"), 30)
            )
            while not (await admin.leases())[1]:
                await asyncio.sleep(0.02)
            async with AdminClient(address, token) as thief:
                with pytest.raises(Refused, match="in use by somebody else"):
                    await thief.acquire_now("kernel-bio", TENTH, Holder("anna", course="ml"))
            await admin.release(first.id)
            assert (await waits).holder.course == "bio"

    run(work)


def test_a_server_s_token_watches_its_own_course_s_leases_only(tmp_path: Path) -> None:
    async def work() -> None:
        async with pool(tmp_path) as (admin, address):
            ml, bio = await held(admin, "ml"), await held(admin, "bio")
            token = await admin.open_server("anna", "hub", "ml")

            async def asks() -> AsyncIterator[pb.HoldRequest]:
                yield pb.HoldRequest(hold=[bio.id, ml.id])
                await asyncio.Event().wait()

            async with grpc.aio.insecure_channel(address) as channel:
                call = rpc.PoolStub(channel).Hold(asks(), metadata=(("authorization", f"Bearer {token}"),))
                answers = {}
                async for reply in call:
                    answers[reply.lease.id] = reply.lease.state
                    if len(answers) == 2:
                        call.cancel()
                        break
            assert answers == {bio.id: "ended", ml.id: "live"}

    run(work)


def test_an_instructor_s_server_instructs_its_own_course_only(tmp_path: Path) -> None:
    async def work() -> None:
        async with pool(tmp_path) as (admin, address):
            bio = await held(admin, "bio")
            token = await admin.open_server("prof", "hub", "ml")
            async with AdminClient(address, token) as thief:
                await thief.set_quota("student:ml", {"leases": "4"})
                with pytest.raises(PoolError, match="not prof"):
                    await thief.set_quota("student:bio", {"leases": "0"})
                with pytest.raises(LeaseEnded, match="knows no lease"):
                    await thief.release(bio.id)
                assert (await thief.leases())[0] == []

    run(work)


@pytest.mark.parametrize("scope", ["agent", "service"])
def test_a_token_that_is_called_like_an_instructor_instructs_nothing(tmp_path: Path, scope: str) -> None:
    async def work() -> None:
        async with pool(tmp_path) as (admin, address):
            await held(admin, "ml")
            _, token = await admin.create_token("prof", scope=scope)
            async with AdminClient(address, token) as thief:
                with pytest.raises(PoolError, match="prof"):
                    await thief.set_quota("student:ml", {"leases": "0"})
                with pytest.raises(PoolError, match="prof"):
                    await thief.course_use("ml", time.time() - 3600)
                if scope == "agent":
                    for attempt in (thief.report(time.time() - 3600), thief.quotas(), thief.reservations()):
                        with pytest.raises(PoolError, match="prof"):
                            await attempt

    run(work)
