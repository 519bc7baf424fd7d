"""A pool that asks for client certificates at one address and not at another."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpukernel.client.admin import AdminClient
from gpukernel.client.pool import PoolClient
from gpukernel.common.address import socket_path
from gpukernel.common.connection import Connection
from gpukernel.common.errors import PoolError
from gpukernel.pool.auth.certificate_authority import init_authority
from gpukernel.pool.auth.listeners import Listener, read_listeners
from gpukernel.pool.rpc.server import prepare_state, serve
from tests.ports import free_port


def test_each_address_asks_for_certificates_or_does_not(tmp_path: Path) -> None:
    async def opens(at: int, connection: Connection) -> bool:
        there = replace(connection, address=f"tls://localhost:{at}")
        try:
            async with PoolClient(there.address, there) as client:
                await client.devices()
        except PoolError:
            return False
        return True

    async def work() -> None:
        state, campus, inner = prepare_state(tmp_path / "state"), free_port(), free_port()
        init_authority(state, ["localhost"], time.time())
        listeners = read_listeners((f"127.0.0.1:{campus}=require", f"127.0.0.1:{inner}"), False)
        async with serve(state, also_listen=listeners), AdminClient(f"unix:{socket_path(state)}") as admin:
            _, annas = await admin.create_connection("laptop", "anna")
            _, bens = await admin.create_connection("laptop", "ben")
            assert annas.address == f"tls://localhost:{campus}"  # the first
            bare = replace(annas, certificate="")
            others = replace(annas, certificate=bens.certificate)
            pools = Connection("", (state / "pool.token").read_text().strip(), annas.authority)
            answers = {
                at: [await opens(at, one) for one in (annas, bare, others, pools)] for at in (campus, inner)
            }
            assert answers == {campus: [True, False, False, False], inner: [True, True, True, True]}
            # Nor is a token that has a certificate worth anything without it at the socket for containers.
            async with PoolClient(f"unix:{socket_path(state)}", annas.token) as client:
                with pytest.raises(PoolError, match="certificate"):
                    await client.devices()

    asyncio.run(work())


def test_addresses_are_written_with_what_they_ask_for() -> None:
    assert read_listeners(("0.0.0.0:1", "[::1]:2=off", "pool.example.edu:3=require"), True) == (
        Listener("0.0.0.0:1", True),
        Listener("[::1]:2", False),
        Listener("pool.example.edu:3", True),
    )


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["h:1=maybe"], "write h:1=require or h:1=off"),
        (["7437"], "“7437” is no address to listen at; write HOST:PORT"),
        (["tls://h:1"], "no address to listen at"),
        (["h:1", "h:1=off"], "h:1 is there twice"),
    ],
)
def test_what_is_no_listener_is_named(texts: list[str], words: str) -> None:
    with pytest.raises(PoolError, match=words):
        read_listeners(texts, False)
