"""A student fills the queue with requests that the own quota holds back, and so keeps other courses from devices that are free.

Or makes hundreds of calls at once, as many as nobody is refused, so that everybody else's next call waits for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import grpc.aio
import pytest

import gpukernel.common.proto.pool_pb2 as pb
import gpukernel.common.proto.pool_pb2_grpc as rpc
from gpukernel.client.admin import AdminClient
from gpukernel.common.address import socket_path
from gpukernel.common.errors import Refused
from gpukernel.common.model import Holder, Lease, Queued, SliceRequest
from gpukernel.pool.rpc.server import serve
from tests.pool.world import Agent
from tests.ports import free_port

COURSES = """
courses:
  flooded: {students: "*", each_student: {leases: 1}}
  honest: {students: "*"}
"""
TINY = SliceRequest(share=0.001)


async def wait(stack: contextlib.AsyncExitStack, client: AdminClient, key: str, person: str) -> bool:
    """Ask for a slice in a call that stays open; return False where the request was refused."""
    events = client.acquire(key, TINY, Holder(person, course="flooded"), ttl_seconds=600)
    stack.push_async_callback(events.aclose)
    try:
        first = await anext(events)
    except Refused:
        return False
    assert isinstance(first, Queued | Lease)
    return True


@pytest.mark.parametrize(("people", "each"), [(1, 300), (30, 11)], ids=["one person", "with accomplices"])
def test_requests_behind_their_own_quota_hold_up_no_other_course(
    tmp_path: Path, people: int, each: int
) -> None:
    async def work() -> None:
        async with contextlib.AsyncExitStack() as stack:
            running = await stack.enter_async_context(serve(tmp_path))
            Agent(running.manager, "s", devices=4).attach()
            client = await stack.enter_async_context(AdminClient(f"unix:{socket_path(tmp_path)}"))
            await client.import_courses(COURSES)
            # The honest course has something already, so the order puts the flooded one first.
            await client.acquire_now(
                "first", SliceRequest(share=1.0), Holder("anna", course="honest"), 5, 600
            )
            entered = 0
            for number in range(people * each):
                entered += await wait(stack, client, f"flood {number}", f"mallory {number % people}")
            assert (await client.devices())[1].promised_bytes == 0, "three devices are free"
            lease = await client.acquire_now(
                "second", SliceRequest(share=1.0), Holder("ben", course="honest"), 5
            )
            assert lease.state == "live"
            waiting = (await client.leases())[1]
            assert len(waiting) == entered - people
            assert {one.reason for one in waiting} == {
                f"mallory {number}, as a student of flooded, holds 1 of their 1 leases; one more does not fit."
                for number in range(people)
            }
            if people == 1:
                with pytest.raises(Refused, match="mallory 0 has 20 requests waiting, of at most 20"):
                    await client.acquire_now("one more", TINY, Holder("mallory 0", course="flooded"))

    asyncio.run(work())


def test_calls_of_a_person_made_at_once_hold_up_nobody_else_s(tmp_path: Path) -> None:
    calls = 150

    async def work() -> int:
        address = f"127.0.0.1:{free_port()}"
        async with (
            serve(tmp_path, address) as running,
            AdminClient(f"unix:{socket_path(tmp_path)}") as admin,
            grpc.aio.insecure_channel(address) as channel,
        ):
            Agent(running.manager, "s", devices=4).attach()
            tokens = {name: (await admin.create_token("laptop", name))[1] for name in ("mallory", "anna")}
            stub = rpc.PoolStub(channel)

            async def call(name: str) -> None:
                metadata = (("authorization", f"Bearer {tokens[name]}"),)
                await stub.ListDevices(pb.ListDevicesRequest(), metadata=metadata)

            await asyncio.gather(call("mallory"), call("anna"))  # they are known from now on
            flood = [asyncio.create_task(call("mallory")) for _ in range(calls)]
            while not any(one.done() for one in flood):
                await asyncio.sleep(0)
            await call("anna")
            left = sum(not one.done() for one in flood)
            await asyncio.gather(*flood)
            return left

    assert asyncio.run(work()) > calls / 2
