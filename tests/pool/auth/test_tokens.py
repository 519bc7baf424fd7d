"""Tokens end, are renewed by those who may, and stay revoked."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest

import gpukernel.client.tokens as client_tokens
import gpukernel.common.proto.admin_pb2 as pb
import gpukernel.common.proto.admin_pb2_grpc as rpc
from gpukernel.client.admin import AdminClient
from gpukernel.client.tokens import TokenRenewal, TokensClient, write_renewed
from gpukernel.common.address import socket_path
from gpukernel.common.connection import (
    Connection,
    certificate_days_left,
    read_connection_file,
    write_connection,
)
from gpukernel.common.errors import NotAllowed, PoolError, Refused
from gpukernel.pool.auth.certificate_authority import init_authority
from gpukernel.pool.auth.tokens import warn_of_ends
from gpukernel.pool.rpc.server import prepare_state, serve
from gpukernel.pool.store.store import Store
from tests.ports import free_port

DAY = 86400.0


def test_a_token_ends_after_the_pool_s_time_unless_an_administrator_says_when(tmp_path: Path) -> None:
    async def work() -> None:
        state = tmp_path / "state"
        async with (
            serve(state, token_seconds=30 * DAY) as _,
            AdminClient(f"unix:{socket_path(state)}") as admin,
        ):
            (usual, _), (short, _), (never, _) = [
                await admin.create_token("gpu1", scope="agent", valid_seconds=v) for v in (None, DAY, 0)
            ]
            now = time.time()
            assert usual.expires == pytest.approx(now + 30 * DAY, abs=60)
            assert short.expires == pytest.approx(now + DAY, abs=60)
            assert never.expires == 0
            # A client of an earlier version says 0 where nobody said anything.
            stub = rpc.AdministrationStub(admin._channel)
            old = await stub.CreateToken(pb.CreateTokenRequest(name="gpu2", scope="agent"))
            assert old.token.expires == pytest.approx(now + 30 * DAY, abs=60)

    asyncio.run(work())


def test_holders_renew_their_own_and_administrators_any(tmp_path: Path) -> None:
    async def work() -> None:
        state, tcp = tmp_path / "state", f"127.0.0.1:{free_port()}"
        async with serve(state, tcp), AdminClient(f"unix:{socket_path(state)}") as admin:
            agent, secret = await admin.create_token("gpu1", scope="agent", valid_seconds=DAY)
            other, _ = await admin.create_token("gpu2", scope="agent", valid_seconds=DAY)
            anna, annas = await admin.create_token("laptop", "anna", valid_seconds=DAY)
            async with TokensClient(tcp, secret) as client:
                own = await client.own_token()
                assert own is not None
                assert (own.id, own.expires, own.renewed) == (agent.id, agent.expires, 0)
                renewed, _ = await client.renew_token()
                assert renewed.expires - renewed.renewed == pytest.approx(DAY)
                assert renewed.expires > agent.expires
                again, _ = await client.renew_token()  # no longer than it was made for
                assert again.expires - again.renewed == pytest.approx(DAY)
                with pytest.raises(NotAllowed, match="gpu1 may renew their own token only"):
                    await client.renew_token(other.id)
            async with TokensClient(tcp, annas) as client:
                with pytest.raises(NotAllowed, match="anna asks the pool's administrator"):
                    await client.renew_token()
            assert (await admin.renew_token(anna.id))[0].expires > anna.expires
            with pytest.raises(Refused, match="no token that could be renewed"):
                await admin.renew_token()
            with pytest.raises(PoolError, match="There is no token gpk00"):
                await admin.renew_token("gpk00")
            await admin.revoke_token(agent.id)
            with pytest.raises(PoolError, match="was revoked; make a new one"):
                await admin.renew_token(agent.id)
            async with TokensClient(tcp, secret) as client:
                with pytest.raises(PoolError, match="does not know this token"):
                    await client.own_token()
            async with TokensClient(tcp, (state / "agent.token").read_text().strip()) as client:
                assert await client.own_token() is None

    asyncio.run(work())


def test_a_program_that_runs_renews_its_token_at_half_time_with_the_certificate_in_its_file(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        state, port = prepare_state(tmp_path / "state"), free_port()
        init_authority(state, ["localhost"], time.time())
        async with (
            serve(state, f"127.0.0.1:{port}", require_certificates=True),
            AdminClient(f"unix:{socket_path(state)}") as admin,
        ):
            token, connection = await admin.create_connection("gpu1", scope="agent", valid_seconds=40 * DAY)
            file = tmp_path / "gpu1.pool"
            file.write_text(write_connection(connection, "the way in"))
            now, used = time.time(), list[Connection]()
            renewal = TokenRenewal(lambda: TokensClient(str(file)), file, used.append, lambda: now)
            looked = await renewal.look()
            assert looked is not None
            assert (looked.expires, used) == (token.expires, [])  # it is new
            now += 21 * DAY  # by the program's clock alone
            renewed = await renewal.look()
            assert renewed is not None
            assert renewed.expires > token.expires
            (changed,) = used
            assert changed.certificate not in ("", connection.certificate)
            assert read_connection_file(file).certificate == changed.certificate
            assert file.read_text().startswith("# the way in\n")
            assert file.stat().st_mode & 0o777 == 0o600
            days = certificate_days_left(changed)
            assert days is not None
            assert days == pytest.approx(40, abs=1)
            async with TokensClient(str(file)) as client:
                assert (await client.own_token()) is not None

    asyncio.run(work())


def test_what_cannot_be_renewed_stands_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        state, tcp = tmp_path / "state", f"127.0.0.1:{free_port()}"
        async with serve(state, tcp), AdminClient(f"unix:{socket_path(state)}") as admin:
            token, secret = await admin.create_token("laptop", "anna", valid_seconds=20 * DAY)
            await admin.create_token("fresh", "ben", valid_seconds=20 * DAY)
            soon = time.time() + 19 * DAY
            renewal = TokenRenewal(lambda: TokensClient(tcp, secret), clock=lambda: soon)
            with caplog.at_level(logging.WARNING, client_tokens.__name__):
                await renewal.look()
            assert f"token {token.id} ends in 1 days and was not renewed" in caplog.text
        store = Store.in_directory(state)
        assert warn_of_ends(store, time.time()) == []
        sentences = warn_of_ends(store, soon)
        assert [f"gpukernel token renew {token.id}" in one for one in sentences] == [True, False]
        assert warn_of_ends(store, soon + 2 * DAY) == []  # they are over
        store.close()

    asyncio.run(work())


def test_a_connection_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "gone.pool"
    with pytest.raises(PoolError, match="cannot be read from"):
        write_renewed(file, "certificate")
    assert list(tmp_path.iterdir()) == []
