"""Connections to a whole pool: whoever was let in stays, whoever proves nothing goes."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from gpukernel.client.pool import PoolClient
from gpukernel.common.address import socket_path
from gpukernel.pool.doors import connections
from gpukernel.pool.rpc.server import prepare_state, serve


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
