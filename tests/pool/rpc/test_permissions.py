"""Every RPC is called in every role against a real pool, and what is reached is compared with the table that the documentation shows.

The table's own code decides nothing here: a probe tries to reach four things with each RPC, and what it got hold of says what the
role's cell has to be.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio
import pytest

import gpukernel.common.proto.admin_pb2 as admin_pb
import gpukernel.common.proto.admin_pb2_grpc as admin_rpc
import gpukernel.common.proto.engines_pb2 as engines_pb
import gpukernel.common.proto.engines_pb2_grpc as engines_rpc
import gpukernel.common.proto.hub_pb2 as hub_pb
import gpukernel.common.proto.hub_pb2_grpc as hub_rpc
import gpukernel.common.proto.pool_pb2 as pb
import gpukernel.common.proto.pool_pb2_grpc as rpc
import gpukernel.common.proto.reservations_pb2 as reservations_pb
import gpukernel.common.proto.reservations_pb2_grpc as reservations_rpc
import gpukernel.common.proto.teaching_pb2 as teaching_pb
import gpukernel.common.proto.teaching_pb2_grpc as teaching_rpc
from docs.permission_table import ROLES, services
from gpukernel.client.admin import AdminClient
from gpukernel.client.engines import EngineClient
from gpukernel.common.address import socket_path
from gpukernel.common.model import Holder, Lease, PlacedOn, Queued, SliceRequest
from gpukernel.pool.auth.permissions import PERMISSIONS
from gpukernel.pool.rpc.callers import check_services
from gpukernel.pool.rpc.server import RunningPool, serve
from tests.pool.auth.test_identity import NOBODY, connecting_as, state
from tests.pool.world import Agent
from tests.ports import free_port

__all__ = ["state"]  # the fixture

# prof instructs ml, and is a student of bio.
COURSES = """
pool: {devices: 1000}
courses:
  ml: {instructors: [prof], students: [anna, nobody, ben, wim], each_student: {leases: 100, largest_slice: 0.3}, each_instructor: {leases: 100, largest_slice: 0.3}, quota: {devices: 50}}
  bio: {instructors: [dora], students: [anna, nobody, prof, carl, wanda], each_student: {leases: 100, largest_slice: 0.3}, quota: {devices: 50}}
"""


SLURMS = PlacedOn("GPU-00000000-0000-0000-0000-000000000000", 2**20)
"""On the one device of server t."""


class Thing(NamedTuple):
    """The thing that a probe tries to reach: something of a person in a course."""

    name: str
    person: str
    course: str


Reached = Callable[[grpc.aio.Channel, Any, Thing], Awaitable[bool]]


class World:
    """A pool with what the probes need, and an administrator who makes and removes things for them."""

    def __init__(self, running: RunningPool, admin: AdminClient, slurm: EngineClient) -> None:
        self.running, self.admin, self.slurm = running, admin, slurm
        self.waiting: dict[str, str] = {}

    @contextlib.asynccontextmanager
    async def lease(self, thing: Thing) -> AsyncIterator[Lease]:
        key = secrets.token_hex(8)
        slice_ = SliceRequest(share=0.01)
        lease = await self.admin.acquire_now(key, slice_, Holder(thing.person, course=thing.course))
        try:
            yield lease
        finally:
            await self.admin.release(lease.id)

    @contextlib.asynccontextmanager
    async def placed(self, thing: Thing) -> AsyncIterator[Lease]:
        holder = Holder(thing.person, course=thing.course)
        lease = await self.slurm.acquire_placed([SLURMS], secrets.token_hex(8), holder)
        try:
            yield lease
        finally:
            await self.slurm.release_placed(lease.key)


def things(person: str) -> list[Thing]:
    return [
        Thing("own in ml", person, "ml"),
        Thing("own in bio", person, "bio"),
        Thing("another's in ml", "ben", "ml"),
        Thing("another's in bio", "carl", "bio"),
    ]


def expected(cell: str, role: str, by_itself: str, rpc: str) -> set[str]:
    """Return the names of the things that a cell of the table promises."""
    if role == "engine" and cell == "own" and rpc.startswith("Engines/"):
        return {thing.name for thing in things("anna")}  # whoever's they are, it has placed them
    if role == "supply" and cell == "own" and not rpc.startswith("Tokens/"):
        # Nothing of these is its own (test_supplies.py), but the list of what is, and what it announces.
        own_rpcs = ("/ListTokens", "/AnnounceDevices")
        return {thing.name for thing in things("anna")} if rpc.endswith(own_rpcs) else set()
    own = {"own in ml"} if role == "server's token" else {"own in ml", "own in bio"}
    taught = {"own in ml", "another's in ml"}
    return {
        "–": set[str](),
        "own": own,
        "course": taught | (own if by_itself == "own" else set()),
        "all": {"own in ml", "own in bio", "another's in ml", "another's in bio"},
    }[cell]


# --- the probes ---

PROBES: dict[str, Callable[[World], Reached]] = {}


def probe(name: str) -> Callable[[Callable[..., Awaitable[bool]]], None]:
    def add(function: Callable[..., Awaitable[bool]]) -> None:
        PROBES[name] = lambda world: (
            lambda channel, metadata, thing: function(world, channel, metadata, thing)
        )

    return add


def answers(name: str, stub: Any, request: Any) -> None:
    """Add a probe for an RPC that concerns nobody's things: whoever gets an answer reaches all."""

    async def ask(world: World, channel: Any, metadata: Any, thing: Thing) -> bool:
        await getattr(stub(channel), name.partition("/")[2])(request(), metadata=metadata)
        return True

    PROBES[name] = lambda world: lambda channel, metadata, thing: ask(world, channel, metadata, thing)


@probe("Pool/Acquire")
async def _(world: World, channel: Any, metadata: Any, thing: Thing) -> bool:
    holder = pb.Holder(person=thing.person, course=thing.course)
    request = pb.AcquireRequest(key=secrets.token_hex(8), slice=pb.SliceRequest(share=0.01), holder=holder)
    async for event in rpc.PoolStub(channel).Acquire(request, metadata=metadata):
        lease = event.granted
        if lease.id:
            await world.admin.release(lease.id)
        return (lease.holder.person, lease.holder.course) == (thing.person, thing.course)
    return False


@probe("Pool/Hold")
async def _(world: World, channel: Any, metadata: Any, thing: Thing) -> bool:
    async with world.lease(thing) as lease:
        while True:
            call = rpc.PoolStub(channel).Hold(metadata=metadata)
            try:
                await call.write(pb.HoldRequest(hold=[lease.id]))
                return (await call.read()).lease.state != "ended"
            except grpc.aio.AioRpcError as error:
                # gRPC's client forgets why a call was ended where that happens in the moment of a write.
                if error.code() is not grpc.StatusCode.INTERNAL:
                    raise
            finally:
                call.cancel()


def _of_a_lease(name: str, stub: Any, request: Callable[[str], Any]) -> None:
    async def ask(world: World, channel: Any, metadata: Any, thing: Thing) -> bool:
        async with world.lease(thing) as lease:
            await getattr(stub(channel), name.partition("/")[2])(request(lease.id), metadata=metadata)
        return True

    PROBES[name] = lambda world: lambda channel, metadata, thing: ask(world, channel, metadata, thing)


_of_a_lease("Pool/Renew", rpc.PoolStub, lambda lease: pb.RenewRequest(lease_id=lease))
_of_a_lease("Pool/Release", rpc.PoolStub, lambda lease: pb.ReleaseRequest(lease_id=lease))
_of_a_lease("Pool/Interrupt", rpc.PoolStub, lambda lease: pb.InterruptRequest(lease_id=lease))
_of_a_lease(
    "Pool/Resize",
    rpc.PoolStub,
    lambda lease: pb.ResizeRequest(lease_id=lease, slice=pb.SliceRequest(share=0.02)),
)
_of_a_lease(
    "Teaching/SendMessage",
    teaching_rpc.TeachingStub,
    lambda lease: teaching_pb.MessageToHolder(lease_id=lease, text="hello"),
)
answers("Pool/ListDevices", rpc.PoolStub, pb.ListDevicesRequest)


@probe("Pool/ListLeases")
async def _(world: World, channel: Any, metadata: Any, thing: Thing) -> bool:
    async with world.lease(thing) as lease:
        reply = await rpc.PoolStub(channel).ListLeases(pb.ListLeasesRequest(), metadata=metadata)
    return lease.id in {one.id for one in reply.leases}


@probe("Agents/Attach")
async def _(world: World, channel: Any, metadata: Any, thing: Thing) -> bool:
    world.running.agents.attached.clear()
    server = f"server-{secrets.token_hex(4)}"
    call = rpc.AgentsStub(channel).Attach(metadata=metadata)
    with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):  # it was ended already
        await call.write(pb.AgentMessage(register=pb.Register(server=server)))
    attached = asyncio.create_task(world.running.agents.attached.wait())
    ended = asyncio.create_task(call.code())
    await asyncio.wait([attached, ended], return_when=asyncio.FIRST_COMPLETED)
    call.cancel()
    attached.cancel()
    reached = (await ended) is grpc.StatusCode.CANCELLED
    if reached:  # the token may enrol another server
        await world.admin.reset_server(server)
    return reached


@probe("Engines/AcquirePlaced")
async def _(world: World, channel: Any, metadata: Any, thing: Thing) -> bool:
    request = engines_pb.AcquirePlacedRequest(
        engine="slurm",
        key=secrets.token_hex(8),
        placed_on=[engines_pb.PlacedOn(uuid=SLURMS.uuid, memory_bytes=SLURMS.memory_bytes)],
        holder=pb.Holder(person=thing.person, course=thing.course),
    )
    reply = await engines_rpc.EnginesStub(channel).AcquirePlaced(request, metadata=metadata)
    if reply.lease.id:
        await world.slurm.release_placed(request.key)
    return (reply.lease.holder.person, reply.lease.holder.course) == (thing.person, thing.course)


@probe("Engines/ReleasePlaced")
async def _(world: World, channel: Any, metadata: Any, thing: Thing) -> bool:
    async with world.placed(thing) as lease:
        request = engines_pb.ReleasePlacedRequest(engine="slurm", key=lease.key)
        reply = await engines_rpc.EnginesStub(channel).ReleasePlaced(request, metadata=metadata)
        return reply.lease.id == lease.id


@probe("Engines/ListPlaced")
async def _(world: World, channel: Any, metadata: Any, thing: Thing) -> bool:
    async with world.placed(thing) as lease:
        request = engines_pb.ListPlacedRequest(engine="slurm")
        reply = await engines_rpc.EnginesStub(channel).ListPlaced(request, metadata=metadata)
        return lease.id in {one.id for one in reply.leases}


@probe("Hub/ListCourses")
async def _(world: World, channel: Any, metadata: Any, thing: Thing) -> bool:
    reply = await hub_rpc.HubStub(channel).ListCourses(hub_pb.ListCoursesRequest(), metadata=metadata)
    for course in reply.courses:
        if course.name == thing.course:
            return thing.name.startswith("own") or bool(course.members)  # who else is in it
    return False


@probe("Hub/Estimate")
async def _(world: World, channel: Any, metadata: Any, thing: Thing) -> bool:
    sizes = [hub_pb.Size(share=0.5)]
    request = hub_pb.EstimateRequest(course=thing.course, person=thing.person, sizes=sizes)
    (chance,) = (await hub_rpc.HubStub(channel).Estimate(request, metadata=metadata)).chances
    # The sentence names the member of a course who may not have so much.
    return thing.person in chance.sentence and thing.course in chance.sentence


answers("Hub/SetGroups", hub_rpc.HubStub, lambda: hub_pb.SetGroupsRequest(person="zoe"))
answers("Hub/OpenServer", hub_rpc.HubStub, lambda: hub_pb.OpenServerRequest(person="anna", server="other"))
answers("Hub/CloseServer", hub_rpc.HubStub, lambda: hub_pb.CloseServerRequest(person="anna", server="other"))
answers("Hub/ListServers", hub_rpc.HubStub, hub_pb.ListServersRequest)
answers(
    "Reservations/ListReservations",
    reservations_rpc.ReservationsStub,
    reservations_pb.ListReservationsRequest,
)


def _reservation(course: str, hour: int) -> Any:
    begins = hour * 60
    return reservations_pb.Reservation(course=course, days=[0], begins=begins, ends=begins + 60, devices=0.5)


@probe("Reservations/AddReservation")
async def _(world: World, channel: Any, metadata: Any, thing: Thing) -> bool:
    request = reservations_pb.AddReservationRequest(reservation=_reservation(thing.course, 8), check=True)
    await reservations_rpc.ReservationsStub(channel).AddReservation(request, metadata=metadata)
    return True


@probe("Reservations/RemoveReservation")
async def _(world: World, channel: Any, metadata: Any, thing: Thing) -> bool:
    stub = reservations_rpc.ReservationsStub(world.admin._channel)
    made = reservations_pb.AddReservationRequest(reservation=_reservation(thing.course, 10))
    with contextlib.suppress(grpc.aio.AioRpcError):  # it is there still
        await stub.AddReservation(made)
    listed = await stub.ListReservations(reservations_pb.ListReservationsRequest(course=thing.course))
    request = reservations_pb.RemoveReservationRequest(id=listed.reservations[0].id)
    await reservations_rpc.ReservationsStub(channel).RemoveReservation(request, metadata=metadata)
    return True


@probe("Teaching/SetQuota")
async def _(world: World, channel: Any, metadata: Any, thing: Thing) -> bool:
    request = teaching_pb.QuotaChange(subject=f"student:{thing.course}", bounds={"leases": "100"}, check=True)
    await teaching_rpc.TeachingStub(channel).SetQuota(request, metadata=metadata)
    return True


@probe("Teaching/SetCourse")
async def _(world: World, channel: Any, metadata: Any, thing: Thing) -> bool:
    fields = json.dumps({"title": "Title"})
    request = teaching_pb.CourseChange(course=thing.course, fields=fields, check=True)
    await teaching_rpc.TeachingStub(channel).SetCourse(request, metadata=metadata)
    return True


@probe("Teaching/MoveRequest")
async def _(world: World, channel: Any, metadata: Any, thing: Thing) -> bool:
    request = teaching_pb.RequestMove(key=world.waiting[thing.course])
    await teaching_rpc.TeachingStub(channel).MoveRequest(request, metadata=metadata)
    return True


@probe("Teaching/CourseUse")
async def _(world: World, channel: Any, metadata: Any, thing: Thing) -> bool:
    request = teaching_pb.CourseUseRequest(course=thing.course, begin=time.time() - 3600)
    await teaching_rpc.TeachingStub(channel).CourseUse(request, metadata=metadata)
    return True


@probe("Administration/ShowQuotas")
async def _(world: World, channel: Any, metadata: Any, thing: Thing) -> bool:
    async with world.lease(thing):
        stub = admin_rpc.AdministrationStub(channel)
        reply = await stub.ShowQuotas(admin_pb.ShowQuotasRequest(), metadata=metadata)
    ours = (f"student:{thing.course} {thing.person}", f"instructor:{thing.course} {thing.person}")
    return any(line.subject in ours for line in reply.lines)


@probe("Administration/SetQuota")
async def _(world: World, channel: Any, metadata: Any, thing: Thing) -> bool:
    request = admin_pb.SetQuotaRequest(subject=f"student:{thing.course}", bounds={"leases": "100"})
    await admin_rpc.AdministrationStub(channel).SetQuota(request, metadata=metadata)
    return True


@probe("Administration/Report")
async def _(world: World, channel: Any, metadata: Any, thing: Thing) -> bool:
    async with world.lease(thing) as lease:
        request = admin_pb.ReportRequest(begin=time.time() - 3600, end=time.time() + 3600)
        call = admin_rpc.AdministrationStub(channel).Report(request, metadata=metadata)
        return lease.id in {part.lease async for part in call}


@probe("Administration/RevokeToken")
async def _(world: World, channel: Any, metadata: Any, thing: Thing) -> bool:
    token, _ = await world.admin.create_token("for a moment", thing.person)
    request = admin_pb.RevokeTokenRequest(id=token.id)
    await admin_rpc.AdministrationStub(channel).RevokeToken(request, metadata=metadata)
    return True


@probe("Tokens/ShowToken")
async def _(world: World, channel: Any, metadata: Any, thing: Thing) -> bool:
    reply = await admin_rpc.TokensStub(channel).ShowToken(admin_pb.ShowTokenRequest(), metadata=metadata)
    return thing.name.startswith("own") and reply.token.course in ("", thing.course)


@probe("Tokens/RenewToken")
async def _(world: World, channel: Any, metadata: Any, thing: Thing) -> bool:
    other, _ = await world.admin.create_token("for a moment", thing.person)
    own = bool(metadata) and thing.name.startswith("own")
    request = admin_pb.RenewTokenRequest(id="" if own else other.id)
    await admin_rpc.TokensStub(channel).RenewToken(request, metadata=metadata)
    return True


ADMIN = admin_rpc.AdministrationStub
answers(
    "Administration/ImportCourses",
    ADMIN,
    lambda: admin_pb.ImportCoursesRequest(yaml="courses: {}", check=True),
)
answers("Administration/ExportCourses", ADMIN, admin_pb.ExportCoursesRequest)
answers(
    "Administration/CreateToken",
    ADMIN,
    lambda: admin_pb.CreateTokenRequest(name="x", person="anna", scope="person"),
)
answers("Administration/ListTokens", ADMIN, admin_pb.ListTokensRequest)
answers("Administration/Drain", ADMIN, lambda: admin_pb.DrainRequest(server="s", undo=True))
answers("Administration/Delegate", ADMIN, lambda: admin_pb.DelegateRequest(device=SLURMS.uuid, to="slurm"))
answers("Administration/ShowAudit", ADMIN, admin_pb.ShowAuditRequest)
answers("Administration/ShowConfinement", ADMIN, admin_pb.ShowConfinementRequest)
answers("Administration/ListGpuServers", ADMIN, admin_pb.ListGpuServersRequest)
answers("Administration/ResetGpuServer", ADMIN, lambda: admin_pb.ResetGpuServerRequest(server="s"))


@probe("Administration/ForgetGpuServer")
async def _(world: World, channel: Any, metadata: Any, thing: Thing) -> bool:
    try:
        await ADMIN(channel).ForgetGpuServer(
            admin_pb.ForgetGpuServerRequest(server="none"), metadata=metadata
        )
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
            raise
    return True


@probe("Administration/AnnounceDevices")
async def _(world: World, channel: Any, metadata: Any, thing: Thing) -> bool:
    try:
        await ADMIN(channel).AnnounceDevices(admin_pb.AnnounceDevicesRequest(supply="gpu"), metadata=metadata)
    except grpc.aio.AioRpcError as error:  # an administrator without a token of the pool
        if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
            raise
    return True


# --- the tests ---

REFUSED = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.NOT_FOUND,
)


@contextlib.asynccontextmanager
async def pool(state: Path) -> AsyncIterator[tuple[World, dict[str, tuple[str, str, str]]]]:
    """A world, and for each role its address, its token, and whose things are its own."""
    tcp = f"127.0.0.1:{free_port()}"
    async with contextlib.AsyncExitStack() as stack:
        running = await stack.enter_async_context(serve(state, tcp, everybody=True, calls_at_once=1e6))
        Agent(running.manager, "s", devices=4).attach()
        own = f"unix:{socket_path(state)}"
        admin = await stack.enter_async_context(AdminClient(own))
        await admin.import_courses(COURSES)
        slurms = Agent(running.manager, "t")
        slurms.tell_uuids()
        slurms.attach()
        await admin.delegate("t/0", "slurm")
        slurm = await stack.enter_async_context(EngineClient(own))
        slurm.engine = "slurm"
        world = World(running, admin, slurm)
        for course, person in (("ml", "wim"), ("bio", "wanda")):
            # It waits behind its person's own quota, and so in nobody's way.
            await admin.set_quota(f"person:{person}", {"leases": "1"})
            await admin.acquire_now(
                f"holds-{course}", SliceRequest(share=0.01), Holder(person, course=course), ttl_seconds=3600
            )
            waiting = admin.acquire(
                f"waits-{course}", SliceRequest(share=0.01), Holder(person, course=course)
            )
            assert isinstance(await anext(waiting), Queued)
            stack.push_async_callback(waiting.aclose)
            world.waiting[course] = f"waits-{course}"
        tokens = {
            # Named like people, to whom that gives nothing.
            scope: (await admin.create_token(name, scope=scope))[1]
            for scope, name in (
                ("service", "prof"),
                ("agent", "prof"),
                ("slurm", "prof"),
                ("supply", "prof"),
                ("admin", "root's laptop"),
            )
        }
        roles = {
            "stranger": (tcp, "", "anna"),
            "person's token": (tcp, (await admin.create_token("laptop", "anna"))[1], "anna"),
            "server's token": (tcp, await admin.open_server("anna", "hub", "ml"), "anna"),
            "instructor": (tcp, (await admin.create_token("laptop", "prof"))[1], "prof"),
            "service": (tcp, tokens["service"], "anna"),
            "agent": (tcp, tokens["agent"], "prof"),
            "engine": (tcp, tokens["slurm"], "anna"),
            "supply": (tcp, tokens["supply"], "anna"),
            "administrator": (tcp, tokens["admin"], "anna"),
            "pool's account": (own, "", "anna"),
        }
        if os.geteuid() == 0:  # only root can connect as another account
            there = await stack.enter_async_context(connecting_as(NOBODY.pw_uid, state))
            roles["person by unix socket"] = (there, "", "nobody")
        yield world, roles


def test_every_rpc_has_a_permission_and_a_probe() -> None:
    every = {f"{service.name}/{method.name}" for service in services() for method in service.methods}
    assert set(PERMISSIONS) == every
    assert set(PROBES) == every


def test_what_each_role_reaches_with_each_rpc_is_what_the_table_says(state: Path) -> None:
    async def work() -> None:
        wrong = []
        async with pool(state) as (world, roles):
            assert set(roles) | {"person by unix socket"} == set(ROLES)
            for role, (address, token, person) in roles.items():
                metadata = (("authorization", f"Bearer {token}"),) if token else ()
                async with grpc.aio.insecure_channel(address) as channel:
                    for name, permission in PERMISSIONS.items():
                        cell = ROLES[role](permission)
                        reach = PROBES[name](world)
                        reached = set()
                        for thing in things(person):
                            try:
                                if await reach(channel, metadata, thing):
                                    reached.add(thing.name)
                            except grpc.aio.AioRpcError as error:
                                if error.code() not in REFUSED:
                                    raise
                        if reached != (said := expected(cell, role, str(permission.person), name)):
                            wrong.append((role, name, cell, sorted(reached), sorted(said)))
        assert wrong == []

    asyncio.run(work())


def test_a_service_with_an_rpc_that_asks_for_no_permission_does_not_start() -> None:
    class PoolServicer:
        def Acquire(self) -> None: ...

    class PoolService(PoolServicer):
        def Acquire(self) -> None: ...

    with pytest.raises(TypeError, match="Pool/Acquire has no permission"):
        check_services(PoolService())

    class NewServicer:
        def Reveal(self) -> None: ...

    class NewService(NewServicer):
        def Reveal(self) -> None: ...

    with pytest.raises(TypeError, match="New/Reveal has no permission"):
        check_services(NewService())
