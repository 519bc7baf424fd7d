"""A thief of a JupyterHub's token makes tokens of single-user servers with it, which open the pool once the Hub's is revoked."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gpukernel.client.admin import AdminClient
from gpukernel.client.hub import HubClient
from gpukernel.client.pool import PoolClient
from gpukernel.common.address import socket_path
from gpukernel.common.errors import PoolError, Refused
from gpukernel.pool.auth.tokens import create_token, list_tokens, revoke_token
from gpukernel.pool.rpc.server import serve
from gpukernel.pool.store.store import Store
from tests.ports import free_port

DAY = 86400.0
Tell = Callable[[str, AdminClient, Store], Awaitable[None]]


def in_a_pool(tmp_path: Path, tell: Tell) -> None:
    async def work() -> None:
        address, state = f"127.0.0.1:{free_port()}", tmp_path / "state"
        async with (
            serve(state, address, token_seconds=30 * DAY),
            AdminClient(f"unix:{socket_path(state)}") as admin,
        ):
            store = Store.in_directory(state)
            try:
                await tell(address, admin, store)
            finally:
                store.close()

    asyncio.run(work())


async def opens(address: str, secret: str) -> bool:
    try:
        async with PoolClient(address, secret) as client:
            await client.leases()
    except PoolError:
        return False
    return True


def test_what_was_made_with_a_stolen_token_is_revoked_with_it(tmp_path: Path) -> None:
    async def tell(address: str, admin: AdminClient, store: Store) -> None:
        hub, secret = await admin.create_token("hub", scope="service")
        _, others = await admin.create_token("another hub", scope="service")
        async with HubClient(address, secret) as thief, HubClient(address, others) as another:
            stolen = [await thief.open_server(person, "lab") for person in ("anna", "ben")]
            good = await another.open_server("carl", "lab")
        assert {one.made_with for one in await admin.tokens() if one.person in ("anna", "ben")} == {hub.id}
        assert (await admin.revoke_token(hub.id)).made_with_it == 2  # they still count
        assert [await opens(address, one) for one in (secret, *stolen, good)] == [False, True, True, True]
        assert (await admin.revoke_token(hub.id, cascade=True)).made_with_it == 2
        assert [await opens(address, one) for one in (secret, *stolen, good)] == [False, False, False, True]
        assert (await admin.revoke_token(hub.id, cascade=True)).made_with_it == 0

    in_a_pool(tmp_path, tell)


def test_the_command_says_what_still_counts(tmp_path: Path) -> None:
    async def tell(address: str, admin: AdminClient, store: Store) -> None:
        def revoke(*words: str) -> str:
            command = [sys.executable, "-m", "gpukernel.cli", "token", "revoke", hub.id, *words]
            command += ["--state", str(tmp_path / "state")]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout

        hub, secret = await admin.create_token("hub", scope="service")
        async with HubClient(address, secret) as thief:
            server = await thief.open_server("anna", "lab")
        said = f"Token {hub.id} (hub) is revoked.\n"
        assert await asyncio.to_thread(revoke) == (
            f"{said}Tokens made with it that still count: 1; "
            f"“gpukernel token revoke {hub.id} --cascade” revokes them, too.\n"
        )
        assert await opens(address, server)
        cascaded = await asyncio.to_thread(revoke, "--cascade")
        assert cascaded == f"{said}Tokens made with it that are revoked, too: 1.\n"
        assert not await opens(address, server)
        assert await asyncio.to_thread(revoke) == said

    in_a_pool(tmp_path, tell)


def test_so_it_is_with_what_an_administrators_made_over_several_steps(tmp_path: Path) -> None:
    async def tell(address: str, admin: AdminClient, store: Store) -> None:
        root, secret = await admin.create_token("root", scope="admin")
        async with AdminClient(address, secret) as thief:
            second, again = await thief.create_token("second", scope="admin")
        async with AdminClient(address, again) as thief:
            hub, of_hub = await thief.create_token("hub", scope="service")
            await thief.revoke_token(second.id)  # what it made is no less made with the first one
        async with HubClient(address, of_hub) as thief:
            server = await thief.open_server("anna", "lab")
        assert (await admin.revoke_token(root.id, cascade=True)).made_with_it == 2
        assert not await opens(address, server)
        kept = {one.id: one for one in await admin.tokens()}
        assert all(kept[one.id].revoked for one in (root, second, hub))
        said = [entry.after for entry in await admin.audit() if entry.subject == root.id]
        assert said == ["admin root", "revoked, with 2 made with it"]

    in_a_pool(tmp_path, tell)


def test_what_is_revoked_makes_none_while_its_call_is_under_way(tmp_path: Path) -> None:
    store, now = Store.in_directory(tmp_path), time.time()
    hub, *_ = create_token(store, "hub", "", "service", DAY, "root", now)
    revoke_token(store, hub.id, "root", now)
    with pytest.raises(Refused, match=rf"Token {hub.id} was revoked; make a new one\."):
        create_token(store, "another", "", "service", DAY, "hub", now, None, hub.id)
    assert [one.id for one in list_tokens(store)] == [hub.id]
    store.close()


def test_the_token_of_a_server_ends_after_the_pools_time(tmp_path: Path) -> None:
    async def tell(address: str, admin: AdminClient, store: Store) -> None:
        _, secret = await admin.create_token("hub", scope="service")
        async with HubClient(address, secret) as hub:
            await hub.open_server("anna", "lab")
        (server,) = [one for one in await admin.tokens() if one.person == "anna"]
        assert server.expires == pytest.approx(time.time() + 30 * DAY, abs=60)

    in_a_pool(tmp_path, tell)
