"""A student, a GPU server's agent and an engine's token try to place where they may not: by its calls, by keys that others will use, by
a size that no engine has given, and by a device that has another's UUID.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import grpc.aio
import pytest

import gpukernel.common.proto.pool_pb2 as pb
import gpukernel.common.proto.pool_pb2_grpc as rpc
from gpukernel.client.admin import AdminClient
from gpukernel.client.engines import EngineClient
from gpukernel.client.pool import PoolClient
from gpukernel.common.address import socket_path
from gpukernel.common.errors import NotAllowed, PoolError, Refused
from gpukernel.common.model import Holder, PlacedOn, Queued, SliceRequest
from gpukernel.engines.kubernetes.names import device_name
from gpukernel.engines.named_devices import devices_by
from gpukernel.engines.shards.allocation import JobShards
from gpukernel.engines.shards.folder import JobsFolder
from gpukernel.engines.shards.node import ShardNode
from gpukernel.engines.slurm.commands import Slurm
from gpukernel.pool.domain.fencing import Registration
from gpukernel.pool.rpc.server import RunningPool, serve
from tests.pool.world import Agent
from tests.ports import free_port

GIB = 2**30
SLURMS = "GPU-00000000-0000-0000-0000-000000000000"
POOLS = "GPU-00000001-0000-0000-0000-000000000000"
JOB = Holder("anna", description="job 12")
COURSES = "courses: {ml: {instructors: [prof], students: [anna]}}"


class Cluster:
    """A pool, its administrator, an engine, and its address over TCP."""

    def __init__(self, running: RunningPool, agent: Agent, admin: AdminClient, slurm: EngineClient) -> None:
        self.running, self.agent, self.admin, self.slurm = running, agent, admin, slurm
        self.address = slurm.address

    async def token(self, name: str, person: str = "", scope: str = "person") -> str:
        return (await self.admin.create_token(name, person, scope))[1]


@contextlib.asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Cluster]:
    address = f"127.0.0.1:{free_port()}"
    async with serve(folder / "state", address) as running:
        agent = Agent(running.manager, "s", devices=2)
        agent.tell_uuids()
        agent.attach()
        async with AdminClient(f"unix:{socket_path(folder / 'state')}") as admin:
            await admin.import_courses(COURSES)
            await admin.delegate("s/0", "slurm")
            _, token = await admin.create_token("prolog", scope="slurm")
            async with EngineClient(address, token) as slurm:
                yield Cluster(running, agent, admin, slurm)


def run(folder: Path, work: Callable[[Cluster], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(60), cluster(folder) as found:
            await work(found)

    asyncio.run(within())


@pytest.mark.parametrize(
    ("name", "person", "scope"),
    [
        ("laptop", "anna", "person"),
        ("laptop", "prof", "person"),  # an instructor
        ("laptop", "slurm", "person"),  # called like an engine
        ("slurm", "", "agent"),
        ("slurm", "", "service"),
    ],
)
def test_only_an_engine_places(tmp_path: Path, name: str, person: str, scope: str) -> None:
    async def work(cluster: Cluster) -> None:
        mine = await cluster.slurm.acquire_placed([PlacedOn(SLURMS, GIB)], "job-12", JOB)
        async with EngineClient(cluster.address, await cluster.token(name, person, scope)) as thief:
            for engine in ("", "slurm", "pool"):
                thief.engine = engine
                for call in (
                    thief.acquire_placed([PlacedOn(SLURMS, GIB)], "job-13", JOB),
                    thief.acquire_placed([PlacedOn(SLURMS, GIB)], "job-12", JOB),  # for its secret
                    thief.release_placed("job-12"),
                    thief.placed(),
                ):
                    with pytest.raises(NotAllowed, match=r"Only an engine|which may not do that"):
                        await call
        async with AdminClient(cluster.address, await cluster.token(name, person, scope)) as thief:
            with pytest.raises(NotAllowed):
                await thief.delegate("s/0", "pool")
        assert [(one.id, one.state) for one in await cluster.slurm.placed()] == [(mine.id, "live")]

    run(tmp_path, work)


def test_a_student_takes_no_job_s_key_in_advance(tmp_path: Path) -> None:
    async def work(cluster: Cluster) -> None:
        async with PoolClient(cluster.address, await cluster.token("laptop", "ben")) as ben:
            held = await ben.acquire_now("job-12", SliceRequest(share=0.9), Holder("ben"))
            waiting = ben.acquire("job-13", SliceRequest(share=0.9), Holder("ben"))
            assert isinstance(await anext(waiting), Queued)
            for key in ("job-12", "job-13"):
                lease = await cluster.slurm.acquire_placed([PlacedOn(SLURMS, GIB)], key, JOB)
                assert (lease.state, lease.holder.person) == ("live", "anna")
                await cluster.slurm.release_placed(key)
            assert [one.id for one in (await ben.leases())[0]] == [held.id]
            await waiting.aclose()

    run(tmp_path, work)


def test_a_student_has_the_secret_of_no_placed_lease_and_makes_none_larger(tmp_path: Path) -> None:
    async def work(cluster: Cluster) -> None:
        placed = await cluster.slurm.acquire_placed(
            [PlacedOn(SLURMS, GIB)], "job-12", replace(JOB, course="ml")
        )
        for person in ("anna", "prof"):
            async with PoolClient(cluster.address, await cluster.token("laptop", person)) as theirs:
                (seen,) = (await theirs.leases())[0]
                assert (seen.id, seen.secret) == (placed.id, "")
                with pytest.raises(Refused, match="Slurm has placed this slice and says how large it is"):
                    await theirs.resize(placed.id, SliceRequest(share=1.0))
        async with PoolClient(cluster.address, await cluster.token("laptop", "anna")) as anna:
            kernel = await anna.acquire_now("job-12", SliceRequest(share=0.1), Holder("anna", course="ml"))
            assert (kernel.decided_by, kernel.slices[0].uuid) == ("pool", POOLS)
            with pytest.raises(Refused, match="no device"):
                await anna.acquire_now(
                    "k", SliceRequest(share=0.1, device=SLURMS), Holder("anna", course="ml"), 0
                )
            # That her own slice ends early is hers to say; the job's epilog finds it gone.
            assert (await anna.release(placed.id)).state in ("ending", "ended")
        assert await cluster.slurm.release_placed("job-12") is None

    run(tmp_path, work)


def test_what_an_agent_says_decides_over_nothing(tmp_path: Path) -> None:
    async def work(cluster: Cluster) -> None:
        token = await cluster.token("r", scope="agent")
        device = pb.Device(
            id="r/0",
            server="r",
            name="H100",
            memory_bytes=80 * GIB,
            uuid="GPU-ffffffff-0000-0000-0000-000000000000",
            decided_by="slurm",
            next_decider="slurm",
        )
        async with grpc.aio.insecure_channel(cluster.address) as channel:
            call = rpc.AgentsStub(channel).Attach(metadata=(("authorization", f"Bearer {token}"),))
            await call.write(pb.AgentMessage(register=pb.Register(server="r", devices=[device])))
            while "r" not in {d.server for d in await cluster.admin.devices()}:
                await asyncio.sleep(0.05)
            assert {d.decided_by for d in await cluster.admin.devices() if d.server == "r"} == {"pool"}
            with pytest.raises(Refused, match="is decided by the pool"):
                await cluster.slurm.acquire_placed(
                    [PlacedOn("GPU-ffffffff-0000-0000-0000-000000000000", GIB)], "job-12", JOB
                )
            call.cancel()

    run(tmp_path, work)


def test_another_server_that_claims_an_engine_s_device_gets_none_of_its_leases(tmp_path: Path) -> None:
    async def work(cluster: Cluster) -> None:
        rogue = Agent(cluster.running.manager, "r")
        rogue.registration = Registration("account 1", "another machine", "place of r", "process")
        rogue.devices = [replace(cluster.agent.plugged[0], id=f"r/{SLURMS}", server="r")]
        rogue.attach()
        lease = await cluster.slurm.acquire_placed([PlacedOn(SLURMS, GIB)], "job-12", JOB)
        assert [piece.server for piece in lease.slices] == ["s"]
        cluster.agent.sessions.detach("s", cluster.agent)
        with pytest.raises(Refused, match=r"s/0 \(GPU-.*\) gets no new leases: away"):
            await cluster.slurm.acquire_placed([PlacedOn(SLURMS, GIB)], "job-13", JOB)

    run(tmp_path, work)


def test_a_server_that_says_an_engine_s_uuid_changes_nothing_that_the_engine_asks_for(tmp_path: Path) -> None:
    """Its device has twice the memory, so that a job's shards and a claim would be twice as much, or fit nowhere."""

    class Node(Slurm):
        async def show_node(self, node: str) -> str:
            return f"NodeName={node} Gres=gpu:1,shard:100"

    class Clients:
        def __init__(self, client: EngineClient) -> None:
            self.client = client

        async def __aenter__(self) -> EngineClient:
            return self.client

    async def work(cluster: Cluster) -> None:
        true = cluster.agent.plugged[0]
        rogue = Agent(cluster.running.manager, "t")
        rogue.registration = Registration("account 1", "another machine", "place of t", "process")
        rogue.devices = [
            replace(true, id=f"t/{SLURMS}", server="t", uuid=SLURMS, memory_bytes=2 * true.memory_bytes)
        ]
        rogue.attach()
        known = await cluster.slurm.devices()
        assert sorted(one.label for one in known if one.uuid == SLURMS) == ["s/0", "t/0"]
        node = ShardNode(
            Node({}), JobsFolder(tmp_path, "n1"), "n1", "s", [SLURMS], lambda: Clients(cluster.slurm)
        )  # type: ignore[arg-type, return-value]
        assert await node.placement(JobShards(50, 0)) == PlacedOn(SLURMS, true.memory_bytes // 2)
        for order in (known, known[::-1]):
            assert devices_by(device_name, order, "slurm")[device_name(SLURMS)].label == "s/0"

    run(tmp_path, work)


def test_a_revoked_engine_s_token_places_nothing(tmp_path: Path) -> None:
    async def work(cluster: Cluster) -> None:
        (token,) = await cluster.admin.tokens()
        await cluster.admin.revoke_token(token.id)
        with pytest.raises(PoolError, match="does not know this token"):
            await cluster.slurm.acquire_placed([PlacedOn(SLURMS, GIB)], "job-12", JOB)

    run(tmp_path, work)
