"""The service of engines over a real pool: what a token of theirs opens, and what it does not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest

import gpukernel.common.proto.engines_pb2 as pb
import gpukernel.common.proto.engines_pb2_grpc as rpc
from gpukernel.client.admin import AdminClient, Delegated
from gpukernel.client.engines import EngineClient
from gpukernel.common.address import socket_path
from gpukernel.common.errors import NotAllowed, Refused
from gpukernel.common.model import Holder, PlacedOn, SliceRequest
from gpukernel.pool.rpc.server import serve
from tests.pool.world import Agent
from tests.ports import free_port

GIB = 2**30
UUIDS = [f"GPU-0000000{n}-0000-0000-0000-000000000000" for n in range(3)]
JOB = Holder("anna", description="job 12")


@contextlib.asynccontextmanager
async def pool(folder: Path) -> AsyncIterator[tuple[AdminClient, str]]:
    """An administrator's client of a pool with a device of each decider, and its address over TCP."""
    address = f"127.0.0.1:{free_port()}"
    async with serve(folder / "state", address) as running:
        agent = Agent(running.manager, "s", devices=3)
        agent.tell_uuids()
        agent.attach()
        async with AdminClient(f"unix:{socket_path(folder / 'state')}") as admin:
            await admin.delegate("s/1", "slurm")
            await admin.delegate(UUIDS[2], "kubernetes")
            yield admin, address


def run(folder: Path, work: Callable[[AdminClient, str], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(60), pool(folder) as (admin, address):
            await work(admin, address)

    asyncio.run(within())


async def token(admin: AdminClient, scope: str) -> str:
    return (await admin.create_token(f"the {scope} of the cluster", scope=scope))[1]


def test_an_engine_places_finds_and_releases_by_key(tmp_path: Path) -> None:
    async def work(admin: AdminClient, address: str) -> None:
        async with EngineClient(address, await token(admin, "slurm")) as slurm:
            lease = await slurm.acquire_placed([PlacedOn(UUIDS[1], GIB)], "job-12", JOB)
            assert (lease.state, lease.decided_by, lease.expires, lease.ttl_seconds) == (
                "live",
                "slurm",
                0,
                0,
            )
            assert lease.secret
            assert lease.slices[0].endpoints == ("unix:/x",)
            again = await slurm.acquire_placed([PlacedOn(UUIDS[1], GIB)], "job-12", JOB)
            assert (again.id, again.secret) == (lease.id, lease.secret)
            with pytest.raises(Refused, match="job-12 has another lease") as refusal:
                await slurm.acquire_placed([PlacedOn(UUIDS[1], 2 * GIB)], "job-12", JOB)
            assert refusal.value.code == "different"
            (listed,) = await slurm.placed("job-12")
            assert (listed.id, listed.secret) == (lease.id, "")
            assert await slurm.placed("job-13") == []
            with pytest.raises(Refused, match="nan is no time at which something began"):
                await slurm.acquire_placed([PlacedOn(UUIDS[1], GIB)], "job-13", JOB, began=float("nan"))
            ended = await slurm.release_placed("job-12", "job 12 is over")
            assert ended is not None
            assert (ended.state, ended.end_reason) == ("ended", "job 12 is over")
            assert await slurm.release_placed("job-12") is None
            assert await slurm.release_placed("never-seen") is None
            assert await slurm.placed() == []

    run(tmp_path, work)


def test_an_engine_reaches_nothing_of_another_ones(tmp_path: Path) -> None:
    async def work(admin: AdminClient, address: str) -> None:
        async with (
            EngineClient(address, await token(admin, "slurm")) as slurm,
            EngineClient(address, await token(admin, "kubernetes")) as kubernetes,
        ):
            claim = await kubernetes.acquire_placed([PlacedOn(UUIDS[2], GIB)], "uid/1", JOB)
            with pytest.raises(Refused, match="is decided by kubernetes, not by slurm"):
                await slurm.acquire_placed([PlacedOn(UUIDS[2], GIB)], "uid/1", JOB)
            with pytest.raises(Refused, match="is decided by the pool, not by slurm"):
                await slurm.acquire_placed([PlacedOn(UUIDS[0], GIB)], "uid/1", JOB)
            assert await slurm.release_placed("uid/1") is None
            assert await slurm.placed() == []
            slurm.engine = "kubernetes"
            for call in (
                slurm.acquire_placed([PlacedOn(UUIDS[2], GIB)], "uid/2", JOB),
                slurm.release_placed("uid/1"),
                slurm.placed(),
            ):
                with pytest.raises(
                    NotAllowed, match="the slurm of the cluster is slurm's, and may not ask for"
                ):
                    await call
            assert [one.id for one in await kubernetes.placed()] == [claim.id]
            # Nothing else is an engine's to ask.
            for call in (
                slurm.acquire_now("k", SliceRequest(share=0.1), JOB),
                slurm.renew(claim.id),
                slurm.release(claim.id),
                slurm.leases(),
            ):
                with pytest.raises(
                    NotAllowed, match="the slurm of the cluster is for an engine, which may not"
                ):
                    await call
            assert {d.uuid: d.decided_by for d in await slurm.devices()} == dict(
                zip(UUIDS, ("pool", "slurm", "kubernetes"), strict=True)
            )

    run(tmp_path, work)


def test_an_administrator_says_for_which_engine(tmp_path: Path) -> None:
    async def work(admin: AdminClient, address: str) -> None:
        async with EngineClient(admin.address) as root:
            with pytest.raises(Refused, match="“” is not one of kubernetes, slurm"):
                await root.acquire_placed([PlacedOn(UUIDS[1], GIB)], "job-12", JOB)
            with pytest.raises(Refused, match="“” is not one of kubernetes, slurm"):
                await root.placed()
            root.engine = "slurm"
            lease = await root.acquire_placed([PlacedOn(UUIDS[1], GIB)], "job-12", JOB)
            assert [one.id for one in await root.placed()] == [lease.id]
            for wrong in ("", "a b", "x" * 129):
                with pytest.raises(Refused, match="is no key: it has 1 to 128 letters"):
                    await root.release_placed(wrong)
            with pytest.raises(Refused, match="at most 64 entries"):
                await root.acquire_placed([PlacedOn(str(n), GIB) for n in range(65)], "many", JOB)

    run(tmp_path, work)


def test_devices_are_given_away_and_listed_with_their_deciders(tmp_path: Path) -> None:
    async def work(admin: AdminClient, address: str) -> None:
        kernel = await admin.acquire_now("kernel", SliceRequest(share=0.5), Holder("anna"))
        with pytest.raises(Refused, match="1 lease that the pool placed is on s/0") as refusal:
            await admin.delegate("s/0", "slurm")
        assert refusal.value.code == "in_use"
        given = await admin.delegate("s/0", "slurm", when_free=True)
        assert given == Delegated("s/0", UUIDS[0], "pool", "slurm", 1)
        shown = {d.id: (d.decided_by, d.next_decider, d.condition) for d in await admin.devices()}
        assert shown == {
            "s/0": ("pool", "slurm", "slurm decides over it once it is free"),
            "s/1": ("slurm", "", "slurm decides over it"),
            "s/2": ("kubernetes", "", "kubernetes decides over it"),
        }
        await admin.release(kernel.id)
        while (await admin.devices())[0].decided_by == "pool":  # the pool's clock looks every second
            await asyncio.sleep(0.05)
        assert await admin.delegate("s/0", "pool") == Delegated("s/0", UUIDS[0], "pool", "", 0)
        changes = [(e.who, e.before, e.after) for e in await admin.audit() if e.action == "delegate"][2:]
        assert [change[2] for change in changes] == ["pool, then slurm", "slurm", "pool"]

    run(tmp_path, work)


def test_leases_are_listed_by_key_and_by_decider(tmp_path: Path) -> None:
    async def work(admin: AdminClient, address: str) -> None:
        async with EngineClient(admin.address) as root:
            root.engine = "slurm"
            placed = await root.acquire_placed([PlacedOn(UUIDS[1], GIB)], "job-12", JOB)
        kernel = await admin.acquire_now("kernel", SliceRequest(share=0.5), Holder("anna"))
        waiting = admin.acquire("waits", SliceRequest(share=1.0), Holder("anna"))
        await anext(waiting)
        for wanted, leases, keys in (
            ({}, {placed.id, kernel.id}, {"waits"}),
            ({"key": "job-12"}, {placed.id}, set()),
            ({"key": "waits"}, set(), {"waits"}),
            ({"decided_by": "pool"}, {kernel.id}, {"waits"}),
            ({"decided_by": "slurm"}, {placed.id}, set()),
            ({"decided_by": "slurm", "key": "kernel"}, set(), set()),
        ):
            found, queue = await admin.leases(**wanted)
            assert {one.id for one in found} == leases, wanted
            assert {one.key for one in queue} == keys, wanted
        await waiting.aclose()

    run(tmp_path, work)


def test_an_engines_token_may_renew_itself(tmp_path: Path) -> None:
    async def work(admin: AdminClient, address: str) -> None:
        text = await token(admin, "slurm")
        async with AdminClient(address, text) as slurm:
            renewed, _ = await slurm.renew_token()
            assert renewed.scope == "slurm"
        with pytest.raises(
            Refused, match=r"There is no scope “engine”; it is one of person, .*kubernetes, slurm"
        ):
            await admin.create_token("x", scope="engine")

    run(tmp_path, work)


def test_a_stranger_is_told_that_a_token_is_needed(tmp_path: Path) -> None:
    async def work(admin: AdminClient, address: str) -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await rpc.EnginesStub(channel).ListPlaced(pb.ListPlacedRequest(engine="slurm"))
            assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED

    run(tmp_path, work)
