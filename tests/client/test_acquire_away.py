"""A request with a time to wait, at a pool whose database stays away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import gpukernel.common.proto.pool_pb2_grpc as rpc
from gpukernel.client.pool import PoolClient
from gpukernel.common.address import RETRY_AFTER
from gpukernel.common.errors import PoolUnreachable
from gpukernel.common.fork_safe_grpc import grpc
from gpukernel.common.model import Holder, SliceRequest


class Away(rpc.PoolServicer):
    """A pool that always says: ask again."""

    asked = 0

    async def Acquire(self, request: Any, context: Any) -> None:
        self.asked += 1
        await context.abort(grpc.StatusCode.UNAVAILABLE, "The database is away.", ((RETRY_AFTER, "50"),))


def test_who_does_not_wait_is_told_that_the_database_is_away() -> None:
    async def work() -> None:
        server, pool = grpc.aio.server(), Away()
        rpc.add_PoolServicer_to_server(pool, server)  # type: ignore[no-untyped-call]
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with PoolClient(f"127.0.0.1:{port}", "t") as client:
            client.patience = 0.5
            with pytest.raises(PoolUnreachable, match="database is away"):
                async with asyncio.timeout(20):
                    await client.acquire_now("k", SliceRequest(memory_bytes=2**20), Holder("anna"), 0)
        assert pool.asked > 1
        await server.stop(None)

    asyncio.run(work())
