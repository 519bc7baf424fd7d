"""A thief with a stolen token opens calls that last (Hold, Acquire, Attach) and keeps them after the token was revoked or has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import gpukernel.common.proto.pool_pb2 as pb
import gpukernel.common.proto.pool_pb2_grpc as rpc
from gpukernel.client.admin import AdminClient
from gpukernel.common.address import socket_path
from gpukernel.common.model import Holder, SliceRequest
from gpukernel.pool.auth.tokens import revoke_token
from gpukernel.pool.rpc.server import RunningPool, serve
from gpukernel.pool.store.store import Store
from tests.pool.world import Agent
from tests.ports import free_port

PATIENCE = 20.0
Call = Callable[[grpc.aio.Channel, tuple[tuple[str, str], ...]], Any]


async def _for_ever(*requests: Any) -> AsyncIterator[Any]:
    for request in requests:
        yield request
    await asyncio.Event().wait()


def hold(*leases: str) -> Call:
    def begin(channel: grpc.aio.Channel, metadata: Any) -> Any:
        return rpc.PoolStub(channel).Hold(_for_ever(pb.HoldRequest(hold=leases)), metadata=metadata)

    return begin


def wait_in_the_queue(channel: grpc.aio.Channel, metadata: Any) -> Any:
    request = pb.AcquireRequest(
        key="thief", slice=pb.SliceRequest(share=1), holder=pb.Holder(person="anna"), wait_seconds=-1
    )
    return rpc.PoolStub(channel).Acquire(request, metadata=metadata)


def attach_and_be_silent(channel: grpc.aio.Channel, metadata: Any) -> Any:
    register = pb.AgentMessage(register=pb.Register(server="thief"))
    return rpc.AgentsStub(channel).Attach(_for_ever(register), metadata=metadata)


async def opened(running: RunningPool, call: Any, kind: Call) -> None:
    """Wait until the pool serves the call."""
    async with asyncio.timeout(PATIENCE):
        if kind is attach_and_be_silent:
            await running.agents.attached.wait()
        else:
            await call.read()


async def status(call: Any) -> grpc.StatusCode | None:
    """Return how the pool ends the call; None where it does not."""
    try:
        async with asyncio.timeout(PATIENCE):
            code: grpc.StatusCode = await call.code()
            return code
    except TimeoutError:
        return None
    finally:
        call.cancel()


@pytest.mark.parametrize(
    "kind",
    [hold("0" * 16), None, wait_in_the_queue, attach_and_be_silent],
    ids=["hold nothing", "hold a lease", "wait in the queue", "attach and be silent"],
)
@pytest.mark.parametrize("how", ["revoked", "revoked by another pool", "expired"])
def test_no_call_outlives_its_token(tmp_path: Path, kind: Call | None, how: str) -> None:
    async def work() -> None:
        address, state = f"127.0.0.1:{free_port()}", tmp_path / "state"
        async with serve(state, address) as running, AdminClient(f"unix:{socket_path(state)}") as admin:
            Agent(running.manager, "s", devices=1).attach()
            lease = await admin.acquire_now("k", SliceRequest(share=0.5), Holder("anna"))
            begin = kind or hold(lease.id)
            who = ("", "agent") if kind is attach_and_be_silent else ("anna", "person")
            valid = 3.0 if how == "expired" else 0.0
            token, secret = await admin.create_token("stolen", *who, valid_seconds=valid)
            async with grpc.aio.insecure_channel(address) as channel:
                call = begin(channel, (("authorization", f"Bearer {secret}"),))
                await opened(running, call, begin)
                if how == "revoked":
                    await admin.revoke_token(token.id)
                elif how == "revoked by another pool":
                    other = Store.in_directory(state)
                    revoke_token(other, token.id, "another pool's administrator", time.time())
                    other.close()
                assert await status(call) is grpc.StatusCode.UNAUTHENTICATED
            if kind is wait_in_the_queue:
                assert (await admin.leases())[1] == []

    asyncio.run(work())


def test_a_call_whose_token_is_good_goes_on(tmp_path: Path) -> None:
    async def work() -> None:
        address, state = f"127.0.0.1:{free_port()}", tmp_path / "state"
        async with serve(state, address) as running, AdminClient(f"unix:{socket_path(state)}") as admin:
            Agent(running.manager, "s", devices=1).attach()
            lease = await admin.acquire_now("k", SliceRequest(share=0.5), Holder("anna"))
            (_, mine), (stolen, other) = [await admin.create_token(n, "anna") for n in ("mine", "stolen")]
            async with grpc.aio.insecure_channel(address) as channel:
                holds = rpc.PoolStub(channel).Hold
                asked = pb.HoldRequest(hold=[lease.id])
                good = holds(_for_ever(asked), metadata=(("authorization", f"Bearer {mine}"),))
                bad = holds(_for_ever(asked), metadata=(("authorization", f"Bearer {other}"),))
                assert {(await call.read()).lease.state for call in (good, bad)} == {"live"}
                await admin.revoke_token(stolen.id)
                assert await status(bad) is grpc.StatusCode.UNAUTHENTICATED
                assert not good.done()
                good.cancel()

    asyncio.run(work())
