"""A registration that a partition held up arrives after the agent has attached by another connection: it lists no worker that lives since then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio

import gpukernel.common.proto.pool_pb2 as pb
import gpukernel.common.proto.pool_pb2_grpc as rpc
from gpukernel.client.admin import AdminClient
from gpukernel.common.model import Holder, Queued, SliceRequest
from tests.attacks.test_lying_agent import Liar, device, pool, run

WHOLE = SliceRequest(share=1.0)


class Stream:
    """One connection of an agent; `attach` says the registration, as it was when it was sent."""

    def __init__(self, agent: Liar) -> None:
        self._says: asyncio.Queue[pb.AgentMessage] = asyncio.Queue()
        self._call = rpc.AgentsStub(agent._channel).Attach(self._said(), metadata=agent._metadata)

    async def _said(self) -> AsyncIterator[pb.AgentMessage]:
        while True:
            yield await self._says.get()

    def say(self, **message: Any) -> None:
        self._says.put_nowait(pb.AgentMessage(**message))

    async def attach(self, epoch: int, instance: str = "one") -> pb.PoolMessage:
        """Return the pool's answer."""
        register = pb.Register(
            server="evil",
            devices=[device("evil")],
            machine="m",
            place="p",
            instance=instance,
            epoch=epoch,
        )
        self.say(register=register)
        return await self.hear()

    async def hear(self) -> Any:
        async with asyncio.timeout(20):
            return await self._call.read()


def test_late_registrations_free_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with pool(tmp_path) as (_, admin, agent, _):
            now, late, of_the_one_before = Stream(agent), Stream(agent), Stream(agent)
            attached = await now.attach(0)
            assert attached.WhichOneof("message") == "valid"
            held = asyncio.create_task(admin.acquire_now("held", WHOLE, Holder("anna")))
            started = (await now.hear()).start_worker
            now.say(worker_starting=pb.WorkerStarting(lease_id=started.lease_id))
            now.say(worker_ready=pb.WorkerReady(lease_id=started.lease_id, endpoints=["unix:/x"]))
            lease = await held
            for stream, instance in ((late, "one"), (of_the_one_before, "zero")):
                answer = await stream.attach(0, instance)
                assert (answer.WhichOneof("message"), answer.epoch) == ("register_again", attached.epoch)
                assert await stream.hear() is grpc.aio.EOF
            assert [one.state for one in (await admin.leases())[0] if one.id == lease.id] == ["live"]
            assert await waits(admin)
            # An agent that lives says what it has been told.
            again = Stream(agent)
            answer = await again.attach(attached.epoch)
            assert (answer.WhichOneof("message"), answer.epoch) == ("valid", attached.epoch + 1)

    run(work)


async def waits(admin: AdminClient) -> bool:
    """Return whether somebody else who asks for the whole device has to wait."""
    async with asyncio.timeout(20):
        async for event in admin.acquire("other", WHOLE, Holder("ben"), 0.5):
            return isinstance(event, Queued)
    return False
