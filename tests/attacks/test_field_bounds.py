"""A student sends texts, lists and calls without end, and so takes the pool's memory and time from everybody else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

import gpukernel.common.proto.hub_pb2 as hub_pb
import gpukernel.common.proto.hub_pb2_grpc as hub_rpc
import gpukernel.common.proto.pool_pb2 as pb
import gpukernel.common.proto.pool_pb2_grpc as rpc
from gpukernel.client.admin import AdminClient
from gpukernel.client.pool import PoolClient
from gpukernel.common.address import socket_path
from gpukernel.pool.doors.call_rates import CALLS_AT_ONCE
from gpukernel.pool.rpc.server import serve
from tests.ports import free_port

LONG = "x" * 60_000
CALLS = int(CALLS_AT_ONCE) + 200


@contextlib.asynccontextmanager
async def student(state: Path) -> AsyncIterator[tuple[Any, tuple[tuple[str, str], ...], str]]:
    """A pool, and what a student needs to call it: a channel, metadata and the address."""
    address = f"127.0.0.1:{free_port()}"
    async with serve(state, address), AdminClient(f"unix:{socket_path(state)}") as admin:
        _, token = await admin.create_token("laptop", "mallory")
        async with grpc.aio.insecure_channel(address) as channel:
            yield channel, (("authorization", f"Bearer {token}"),), token


def asked(stub: Any, name: str) -> Any:
    return lambda channel: getattr(stub(channel), name)


ATTACKS: list[tuple[Any, Message]] = [
    (asked(rpc.PoolStub, "Renew"), pb.RenewRequest(lease_id=LONG)),
    (asked(rpc.PoolStub, "Release"), pb.ReleaseRequest(lease_id="x", reason=LONG)),
    (asked(rpc.PoolStub, "Release"), pb.ReleaseRequest(lease_id="x" * 3_000_000)),
    (asked(rpc.PoolStub, "Resize"), pb.ResizeRequest(slice=pb.SliceRequest(model=LONG))),
    (asked(hub_rpc.HubStub, "Estimate"), hub_pb.EstimateRequest(sizes=[hub_pb.Size(model=LONG[:5000])] * 10)),
]


@pytest.mark.parametrize(("method", "request_"), ATTACKS)
def test_a_message_beyond_its_bounds_is_refused_before_anybody_works_on_it(
    tmp_path: Path, method: Any, request_: Message
) -> None:
    async def work() -> None:
        async with student(tmp_path) as (channel, metadata, _):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await method(channel)(request_, metadata=metadata)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "at most" in str(refused.value.details())

    asyncio.run(work())


def test_who_calls_without_end_is_slowed_down_and_told_so(tmp_path: Path) -> None:
    async def work() -> None:
        async with student(tmp_path) as (channel, metadata, token):
            listing = rpc.PoolStub(channel).ListLeases
            codes = []
            for _ in range(CALLS):
                try:
                    await listing(pb.ListLeasesRequest(), metadata=metadata)
                    codes.append(grpc.StatusCode.OK)
                except grpc.aio.AioRpcError as error:
                    codes.append(error.code())
                    said = str(error.details())
            assert codes[0] is grpc.StatusCode.OK
            assert codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED) > (CALLS - CALLS_AT_ONCE) / 2
            assert "mallory calls the pool too often" in said
            # Our own client waits for as long as it was told, and is served.
            async with PoolClient(f"unix:{socket_path(tmp_path)}", token) as polite:
                assert await polite.devices() == []

    asyncio.run(work())
