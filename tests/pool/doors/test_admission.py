"""Connections to a whole pool: whoever was let in stays, whoever proves nothing goes, and whose token was revoked is a stranger again."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import grpc
import grpc.aio
import pytest

import gpukernel.common.proto.pool_pb2 as pb
import gpukernel.common.proto.pool_pb2_grpc as rpc
from gpukernel.client.admin import AdminClient
from gpukernel.client.pool import PoolClient
from gpukernel.common.address import socket_path
from gpukernel.pool.doors import connections
from gpukernel.pool.rpc import callers
from gpukernel.pool.rpc.server import prepare_state, serve
from tests.ports import free_port


def test_who_was_let_in_stays_longer_than_a_stranger_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "STRANGER_SECONDS", 1.0)
    sent_away: list[connections.Arrival] = []
    send_away = connections.Connections._send_away

    def noted(self: connections.Connections, connection: connections.Arrival) -> None:
        sent_away.append(connection)
        send_away(self, connection)

    monkeypatch.setattr(connections.Connections, "_send_away", noted)

    async def work() -> None:
        async with serve(prepare_state(tmp_path / "state")) as pool, PoolClient(pool.address) as client:
            await client.leases()
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(str(socket_path(tmp_path / "state")))
                while not sent_away:
                    await asyncio.sleep(0.1)
                await asyncio.sleep(1.5)
                assert len(sent_away) == 1
            await client.leases()

    asyncio.run(work())


def test_a_revoked_token_is_tried_one_call_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An administrator's calls are not counted; those of a token that was one's are, or a thief keeps the pool busy with it."""
    now, most = 0, 0
    known = callers._known_caller

    async def counted(*arguments: object) -> object:
        nonlocal now, most
        now += 1
        most = max(most, now)
        try:
            await asyncio.sleep(0.01)
            return await known(*arguments)  # type: ignore[arg-type]
        finally:
            now -= 1

    monkeypatch.setattr(callers, "_known_caller", counted)

    async def work() -> None:
        nonlocal most
        address = f"127.0.0.1:{free_port()}"
        async with (
            serve(tmp_path / "state", address),
            AdminClient(f"unix:{socket_path(tmp_path / 'state')}") as admin,
            grpc.aio.insecure_channel(address) as channel,
        ):
            token, secret = await admin.create_token("lost", scope="admin")

            async def call() -> grpc.StatusCode:
                metadata = (("authorization", f"Bearer {secret}"),)
                try:
                    await rpc.PoolStub(channel).ListDevices(pb.ListDevicesRequest(), metadata=metadata)
                except grpc.aio.AioRpcError as error:
                    return error.code()
                return grpc.StatusCode.OK

            assert await call() is grpc.StatusCode.OK
            await asyncio.gather(*(call() for _ in range(20)))
            assert most > 1  # an administrator's are made together
            await admin.revoke_token(token.id)
            assert await call() is grpc.StatusCode.UNAUTHENTICATED
            most = 0
            assert set(await asyncio.gather(*(call() for _ in range(20)))) == {
                grpc.StatusCode.UNAUTHENTICATED
            }
            assert most == 1

    asyncio.run(work())
