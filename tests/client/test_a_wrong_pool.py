"""One of several pools is on a wrong database, where nobody's token is known: the others have the leases."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gpukernel.agent import agent as agent_module
from gpukernel.agent.agent import Agent
from gpukernel.agent.inventory import simulated
from gpukernel.client import pool as pool_module
from gpukernel.client.admin import AdminClient
from gpukernel.client.pool import PoolClient
from gpukernel.common.address import socket_path
from gpukernel.common.connection import connection_to
from gpukernel.common.errors import UnknownToken
from gpukernel.common.model import Holder, SliceRequest
from gpukernel.pool.rpc.server import prepare_state, serve
from tests.pool.world import Agent as FakeAgent
from tests.ports import free_port

ANNA, HALF = Holder("anna"), SliceRequest(share=0.5)


class Pools:
    """Two pools with a database each; `addresses` begins with the one that knows no token of the other."""

    def __init__(self, folder: Path) -> None:
        wrong, self.right = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self.addresses = f"{wrong},{self.right}"
        self._wrong = serve(folder / "wrong", wrong)
        self._state = folder / "right"
        self._stack = contextlib.AsyncExitStack()

    async def start(self) -> None:
        """Start the right one, also again."""
        self.running = await self._stack.enter_async_context(serve(self._state, self.right))

    async def stop(self) -> None:
        await self._stack.aclose()

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        async with self._wrong:
            await self.start()
            try:
                yield
            finally:
                await self.stop()

    async def token(self, scope: str) -> tuple[str, str]:
        """Return the number of a new token, and its text."""
        async with self._administrator() as client:
            line, token = await client.create_token(scope, scope=scope)
            return line.id, token

    async def revoke(self, token: str) -> None:
        async with self._administrator() as client:
            await client.revoke_token(token)

    def _administrator(self) -> AdminClient:
        return AdminClient(f"unix:{socket_path(self._state)}")


@pytest.fixture
def pools(tmp_path: Path) -> Pools:
    return Pools(tmp_path)


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.02)


def test_a_holder_hears_that_its_leases_are_over_when_no_pool_knows_it(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpukernel.client.keepalive.AGAIN_SECONDS", 0.05)

    async def story() -> None:
        async with pools.run():
            server = FakeAgent(pools.running.manager)
            server.attach()
            number, token = await pools.token("service")
            async with PoolClient(pools.addresses, token) as client:
                assert client._ways.current == 0
                lease = await client.acquire_now("k", HALF, ANNA)
                over: list[str] = []
                client.keepalive.keep(lease.id, lambda lease: None, over.append)
                # While the right pool is away, the wrong one refuses.
                await pools.stop()
                await until(lambda: client._hold_refused == {0})
                await pools.start()
                server.manager = pools.running.manager
                server.attach()
                assert (await client.renew(lease.id)).id == lease.id
                assert over == []
                # Refused by both, it is over.
                await pools.revoke(number)
                await until(lambda: over)
                assert "does not know this token" in over[0]

    asyncio.run(story())


@pytest.mark.parametrize("call", ["devices", "acquire", "create"])
def test_a_call_goes_on_to_the_pool_that_knows_the_token(
    pools: Pools, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "AGAIN_SECONDS", 0.0)

    async def make(client: AdminClient) -> object:
        if call == "devices":
            return await client.devices()
        if call == "create":  # what may not be repeated was not done where it was refused
            return await client.create_token("anna", "anna")
        return await client.acquire_now("k", HALF, ANNA)

    async def story() -> None:
        async with pools.run():
            FakeAgent(pools.running.manager).attach()
            _, token = await pools.token("admin")
            async with AdminClient(pools.addresses, token) as client:
                assert client._ways.current == 0
                assert await make(client)
                assert client._ways.current == 1
            async with AdminClient(pools.addresses, "gpk0.unknown") as client:
                with pytest.raises(UnknownToken):
                    await make(client)

    asyncio.run(story())


def test_an_agent_ends_when_every_pool_refuses_it(
    pools: Pools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(agent_module, "RETRY_SECONDS", 0.1)

    async def story() -> None:
        async with pools.run():
            number, token = await pools.token("agent")
            state = prepare_state(tmp_path / "agent")
            connection = connection_to(pools.addresses, token)
            agent = Agent(connection, "gpu1", simulated("v100:1"), state, confinement="off")
            running = asyncio.create_task(agent.run())
            await until(lambda: agent.attached.is_set() or running.done())
            assert not running.done()
            # Away is not refused.
            await pools.stop()
            await until(lambda: not agent.attached.is_set())
            await until(lambda: agent._refused)
            await pools.start()
            await until(lambda: agent.attached.is_set() or running.done())
            assert not running.done()
            await pools.revoke(number)
            async with asyncio.timeout(60):
                with pytest.raises(PermissionError, match="does not accept this agent's token"):
                    await running

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    assert "does not accept this agent's token" in caplog.text
