"""The token of a supply of GPU servers, over a real pool: it reaches what it has made, and nothing else."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from gpukernel.client.admin import AdminClient
from gpukernel.common.address import socket_path
from gpukernel.common.errors import NotAllowed
from gpukernel.pool.rpc.server import serve
from tests.pool.world import Agent
from tests.ports import free_port


def test_a_supply_makes_sees_and_revokes_tokens_of_its_own_agents_only(tmp_path: Path) -> None:
    async def work() -> None:
        address = f"127.0.0.1:{free_port()}"
        async with serve(tmp_path, address), AdminClient(f"unix:{socket_path(tmp_path)}") as admin:
            texts = {name: (await admin.create_token(name, scope="supply"))[1] for name in ("east", "west")}
            with pytest.raises(
                NotAllowed, match="has no colon"
            ):  # what it makes would be within reach of “east”
                await admin.create_token("east: too", scope="supply")
            others, _ = await admin.create_token("gpu1", scope="agent")
            async with (
                AdminClient(address, texts["east"]) as east,
                AdminClient(address, texts["west"]) as west,
            ):
                own, _ = await east.create_token("job 1", scope="agent")
                assert own.name == "east: job 1"
                theirs, _ = await west.create_token("job 1", scope="agent")
                assert [token.id for token in await east.tokens()] == [own.id]
                for scope, person in (("admin", ""), ("service", ""), ("supply", ""), ("person", "anna")):
                    with pytest.raises(
                        NotAllowed, match="may make tokens of scope agent that end, and no others"
                    ):
                        await east.create_token("more", person, scope=scope)
                with pytest.raises(NotAllowed, match="tokens of scope agent that end"):
                    await east.create_token("for ever", scope="agent", valid_seconds=0)
                for token in (others, theirs):
                    with pytest.raises(NotAllowed, match="east may revoke the tokens only that it has made"):
                        await east.revoke_token(token.id)
                await east.revoke_token(own.id)
                with pytest.raises(NotAllowed, match="which may not do that"):
                    await east.drain("s")
            kept = {token.id for token in await admin.tokens() if not token.revoked}
            assert {others.id, theirs.id} <= kept
            assert own.id not in kept

    asyncio.run(work())


def test_a_supply_forgets_servers_that_enrolled_with_its_tokens_only(tmp_path: Path) -> None:
    async def work() -> None:
        address = f"127.0.0.1:{free_port()}"
        async with serve(tmp_path, address) as running, AdminClient(f"unix:{socket_path(tmp_path)}") as admin:
            _, text = await admin.create_token("east", scope="supply")
            async with AdminClient(address, text) as east:
                own, _ = await east.create_token("job 1", scope="agent")
                other, _ = await admin.create_token("gpu1", scope="agent")
                for server, token in (("job1", own), ("gpu1", other)):
                    agent = Agent(running.manager, server)
                    enrolled = {"credential": f"token {token.id}", "machine": server}
                    agent.registration = replace(agent.registration, **enrolled)
                    agent.attach()
                    agent.sessions.detach(server, agent)
                assert {one.name for one in await east.gpu_servers()} == {"job1", "gpu1"}
                with pytest.raises(
                    NotAllowed, match="may forget the GPU servers only that enrolled with its tokens"
                ):
                    await east.forget_server("gpu1")
                await east.forget_server("job1")
            assert {one.name for one in await admin.gpu_servers()} == {"gpu1"}

    asyncio.run(work())
