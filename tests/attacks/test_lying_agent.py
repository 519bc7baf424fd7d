"""A GPU server that was taken over ends leases on other servers, takes their devices' names, breaks the books with large numbers, and uses up
students' calls.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
import grpc.aio
import pytest
import sqlalchemy as sa

import gpukernel.common.proto.hub_pb2 as hub_pb
import gpukernel.common.proto.hub_pb2_grpc as hub_rpc
import gpukernel.common.proto.pool_pb2 as pb
import gpukernel.common.proto.pool_pb2_grpc as rpc
from gpukernel.client.admin import AdminClient
from gpukernel.common.address import socket_path
from gpukernel.common.model import Holder, SliceRequest
from gpukernel.pool.domain.fencing import LARGEST_EPOCH
from gpukernel.pool.rpc import agents
from gpukernel.pool.rpc.agent_reports import reported_usage
from gpukernel.pool.rpc.server import serve
from gpukernel.pool.store.schema import servers
from gpukernel.pool.store.servers import Attachment
from tests.pool.world import Agent
from tests.ports import free_port

GIB = 2**30


class Liar:
    """An agent of our own, with the token of one GPU server."""

    def __init__(self, channel: Any, token: str) -> None:
        self._channel = channel
        self._metadata = (("authorization", f"Bearer {token}"),)

    async def attach(self, *then: pb.AgentMessage, **register: Any) -> str:
        """Attach, say these messages, and return why that was refused; empty where it was not."""

        async def said() -> AsyncIterator[pb.AgentMessage]:
            yield pb.AgentMessage(register=pb.Register(**register))
            for message in then:
                yield message
            await asyncio.sleep(0.4)

        try:
            async with asyncio.timeout(20):
                call = rpc.AgentsStub(self._channel).Attach(said(), metadata=self._metadata)
                async for _ in call:
                    pass
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        return ""

    async def estimate(self, person: str) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError):
            await hub_rpc.HubStub(self._channel).Estimate(
                hub_pb.EstimateRequest(person=person), metadata=self._metadata
            )


def device(server: str, index: int = 0, memory_bytes: int = 32 * GIB, **other: Any) -> pb.Device:
    return pb.Device(
        **{"id": f"{server}/{index}", "name": "Tesla V100", **other},
        server=server,
        index=index,
        memory_bytes=memory_bytes,
    )


@contextlib.asynccontextmanager
async def pool(folder: Path) -> AsyncIterator[tuple[Any, AdminClient, Liar, str]]:
    """A pool, an administrator's client of it, an agent that lies, and the pool's address."""
    address = f"127.0.0.1:{free_port()}"
    async with (
        serve(folder / "state", address) as running,
        AdminClient(f"unix:{socket_path(folder / 'state')}") as admin,
        grpc.aio.insecure_channel(address) as channel,
    ):
        _, token = await admin.create_token("evil", scope="agent")
        yield running, admin, Liar(channel, token), address


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(within())


def lies(lease: str) -> Iterator[pb.AgentMessage]:
    """The messages of an agent that could end a lease."""
    yield pb.AgentMessage(worker_ended=pb.WorkerEnded(lease_id=lease, device_index=0, reason="it died"))
    yield pb.AgentMessage(end_lease=pb.EndLease(lease_id=lease, reason="out"))
    yield pb.AgentMessage(
        worker_ready=pb.WorkerReady(lease_id=lease, device_index=0, endpoints=["tcp:evil:1"])
    )
    refused = pb.WorkerLimited(lease_id=lease, device_index=0, memory_bytes=1, done=False)
    yield pb.AgentMessage(worker_limited=refused)
    fault = pb.DeviceFault(device_index=0, sentence="broken")
    yield pb.AgentMessage(heartbeat=pb.Heartbeat(devices_checked=True, faults=[fault]))


def test_an_agent_says_nothing_of_another_server_s_leases(tmp_path: Path) -> None:
    async def work() -> None:
        async with pool(tmp_path) as (running, admin, liar, _):
            Agent(running.manager, "good").attach()
            lease = await admin.acquire_now("a", SliceRequest(share=0.5), Holder("anna"))
            before = running.manager.store.leases.get(lease.id)
            assert not await liar.attach(
                *lies(lease.id), server="evil", instance="i", devices=[device("evil")]
            )
            after = running.manager.store.leases.get(lease.id)
            assert after is not None
            assert (after.state, after.slices) == ("live", before.slices)
            assert not after.end_reason

    run(work)


def test_an_agent_renews_no_lease_of_another_server(tmp_path: Path) -> None:
    async def work() -> None:
        async with pool(tmp_path) as (running, admin, liar, _):
            Agent(running.manager, "good").attach()
            lease = await admin.acquire_now("a", SliceRequest(share=0.5), Holder("anna"))
            store = running.manager.store
            before = store.leases.get(lease.id).expires
            state = pb.WorkerState(lease_id=lease.id, device_index=0, usage=pb.Usage(connections=1))
            beat = pb.AgentMessage(heartbeat=pb.Heartbeat(workers=[state]))
            await asyncio.sleep(0.1)
            assert not await liar.attach(beat, server="evil", instance="i", devices=[device("evil")])
            assert store.leases.get(lease.id).expires == before

    run(work)


def test_a_device_that_is_another_server_s_is_refused_and_keeps_nobody_out(tmp_path: Path) -> None:
    async def work() -> None:
        async with pool(tmp_path) as (running, _, liar, _):
            stolen = device("evil", id="good/0")
            assert "its device 0 is evil/0" in await liar.attach(
                server="evil", instance="i", devices=[stolen]
            )
            Agent(running.manager, "good").attach()
            assert [one.id for one in running.manager.devices() if one.available] == ["good/0"]

    run(work)


NUMBERS: list[tuple[str, dict[str, Any]]] = [
    ("at most 9007199254740992", {"epoch": 2**63 - 2}),
    ("at most 9007199254740992", {"epoch": 2**64 - 1}),
    ("1 MiB to 1 PiB", {"devices": [device("evil", memory_bytes=0)]}),
    ("1 MiB to 1 PiB", {"devices": [device("evil", memory_bytes=2**63)]}),
    ("each its own", {"devices": [device("evil"), device("evil")]}),
    ("each its own", {"devices": [device("evil", 2**31)]}),
    ("2³¹ multiprocessors", {"devices": [device("evil", multiprocessors=2**31)]}),
]


@pytest.mark.parametrize(("sentence", "register"), NUMBERS)
def test_a_number_that_nobody_can_count_with_is_refused_with_a_sentence(
    tmp_path: Path, sentence: str, register: dict[str, Any]
) -> None:
    async def work() -> None:
        async with pool(tmp_path) as (_, admin, liar, _):
            why = await liar.attach(**{"server": "evil", "instance": "i", **register})
            assert sentence in why
            # The server is not lost by it: its own agent attaches, and an administrator may forget it.
            again = {"server": "evil", "instance": "j", "place": "p", "devices": [device("evil")]}
            assert not await liar.attach(**again)
            assert [one.id for one in await admin.devices()] == ["evil/0"]

    run(work)


def test_the_highest_epoch_locks_nobody_out_of_the_name(tmp_path: Path) -> None:
    """The pool counts on from what an agent says that it has seen; who comes later says what the pool has told."""

    async def work() -> None:
        async with pool(tmp_path) as (running, admin, liar, address):
            assert not await liar.attach(
                server="evil", instance="i", place="p", devices=[device("evil")], epoch=LARGEST_EPOCH
            )
            await admin.reset_server("evil")
            _, token = await admin.create_token("another", scope="agent")
            async with grpc.aio.insecure_channel(address) as channel:
                honest = Liar(channel, token)
                register = {"server": "evil", "instance": "j", "place": "p", "devices": [device("evil")]}
                with running.manager.store.reader.connect() as db:
                    heard = db.execute(sa.select(servers.c.epoch)).scalar_one()
                assert heard > LARGEST_EPOCH
                assert not await honest.attach(**register, epoch=heard)
                assert "comes from no pool" in await honest.attach(**register, epoch=heard + 9)

    run(work)


@pytest.mark.parametrize(
    "usage",
    [
        pb.Usage(memory_used_bytes=2**64 - 1),
        pb.Usage(gpu_seconds=float("nan")),
        pb.Usage(idle_seconds=float("inf")),
        pb.Usage(gpu_seconds=-1),
    ],
)
def test_figures_that_are_no_counts_are_left_out(usage: pb.Usage) -> None:
    good = pb.WorkerState(lease_id="a", device_index=0, usage=pb.Usage(launches=7))
    found = reported_usage(
        [good, pb.WorkerState(lease_id="b", device_index=0, usage=usage)], lambda _, number: f"s/{number}"
    )
    assert {lease: figures.launches for (lease, _), figures in found.items()} == {"a": 7}


def test_a_device_with_less_memory_than_is_promised_keeps_no_server_out(tmp_path: Path) -> None:
    async def work() -> None:
        async with pool(tmp_path) as (running, admin, _, _):
            agent = Agent(running.manager, "good")
            agent.attach()
            lease = await admin.acquire_now("a", SliceRequest(share=0.5), Holder("anna"))
            agent.devices = [replace(agent.devices[0], memory_bytes=GIB)]
            agent.attach()
            (shown,) = await admin.devices()
            assert not shown.available
            await admin.release(lease.id)
            agent.attach()
            (shown,) = await admin.devices()
            assert shown.available
            assert shown.memory_bytes == GIB

    run(work)


def test_an_agent_s_calls_count_for_nobody_else(tmp_path: Path) -> None:
    async def work() -> None:
        async with pool(tmp_path) as (_, admin, liar, address):
            _, token = await admin.create_token("laptop", "anna")
            for _ in range(14):
                await asyncio.gather(*(liar.estimate("anna") for _ in range(20)))
            metadata = (("authorization", f"Bearer {token}"),)
            async with grpc.aio.insecure_channel(address) as channel:
                for _ in range(50):
                    await rpc.PoolStub(channel).ListDevices(pb.ListDevicesRequest(), metadata=metadata)

    run(work)


def test_a_server_that_reads_nothing_of_what_it_is_told_fills_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of its heartbeats is answered, and the answers waited for it: 150 kB a second at its rate of messages."""
    monkeypatch.setattr(agents, "MOST_UNREAD", 50)
    sessions, sent = mock.Mock(), 0
    sessions.heard.return_value = 60.0

    async def heartbeats() -> AsyncIterator[pb.AgentMessage]:
        nonlocal sent
        for sent in range(1, 1001):
            yield pb.AgentMessage(heartbeat=pb.Heartbeat(number=sent))

    async def work() -> None:
        service = agents.AgentsService(mock.Mock(), mock.Mock())
        service._sessions = sessions
        orders = agents._Stream()
        await service._read(Attachment("evil", "i", 1, None, False), heartbeats(), orders)
        assert sent == 51
        assert [orders.outgoing.get_nowait() for _ in range(orders.outgoing.qsize())] == [None, None]

    run(work)


def test_a_server_that_attaches_without_end_is_told_to_wait(tmp_path: Path) -> None:
    async def work() -> None:
        async with pool(tmp_path) as (running, _, liar, _):
            said = await asyncio.gather(
                *(
                    liar.attach(server="evil", instance="i")
                    for _ in range(int(agents.ATTACHMENTS_AT_ONCE) + 20)
                )
            )
            refused = [why for why in said if "attaches too often; try again in" in why]
            assert 15 <= len(refused) <= 20
            Agent(running.manager, "good").attach()

    run(work)


def test_a_token_of_one_server_uses_up_no_attachments_of_another(tmp_path: Path) -> None:
    async def work() -> None:
        async with pool(tmp_path) as (_, admin, liar, address):
            _, token = await admin.create_token("good", scope="agent")
            async with grpc.aio.insecure_channel(address) as channel:
                good = Liar(channel, token)
                register = {"server": "good", "place": "g", "devices": [device("good")]}
                assert not await good.attach(**register, instance="g")
                said = await asyncio.gather(
                    *(
                        liar.attach(**register, instance="e")
                        for _ in range(int(agents.ATTACHMENTS_AT_ONCE) + 20)
                    )
                )
                assert sum("attaches too often" in why for why in said) >= 15
                assert all(said)
                assert not await good.attach(**register, instance="g")

    run(work)
