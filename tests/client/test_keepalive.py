"""Leases that live because their holder's call is open, over a real pool and its socket."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from gpukernel.client.admin import AdminClient
from gpukernel.client.pool import PoolClient
from gpukernel.common.address import socket_path
from gpukernel.common.model import Holder, Lease, SliceRequest
from gpukernel.pool.rpc.server import serve
from tests.pool.rpc.test_hub import hub, run
from tests.pool.world import Agent
from tests.ports import free_port

SMALL = SliceRequest(share=0.1)
ANNA = Holder("anna", "anna's server")
HOLD = """
import asyncio, sys, time
from gpukernel.client.pool import PoolClient
from gpukernel.common.model import Holder, SliceRequest

async def main():
    async with PoolClient(sys.argv[1]) as client:
        lease = await client.acquire_now("mine", SliceRequest(share=0.1), Holder("anna"), ttl_seconds=1)
        heard = asyncio.Event()
        client.keepalive.keep(lease.id, lambda lease: heard.set(), print)
        await heard.wait()
        print(lease.id, flush=True)
        time.sleep(60)  # nothing of Python's runs any more

asyncio.run(main())
"""


async def until(true: Callable[[], bool], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.02)


async def lease_of(client: PoolClient, lease_id: str) -> Lease:
    return next(lease for lease in (await client.leases(include_ended=True))[0] if lease.id == lease_id)


def test_a_program_that_does_nothing_keeps_its_lease_and_one_that_is_killed_keeps_it_for_its_time_to_live(
    tmp_path: Path,
) -> None:
    async def check() -> None:
        async with hub(tmp_path) as (_, admin, address):
            holder = await asyncio.create_subprocess_exec(
                sys.executable, "-c", HOLD, address, stdout=subprocess.PIPE
            )
            assert holder.stdout is not None
            lease_id = (await holder.stdout.readline()).decode().strip()
            created = (await lease_of(admin, lease_id)).created
            await asyncio.sleep(max(created + 4 - time.time(), 0))  # four times its time to live
            assert (await lease_of(admin, lease_id)).state == "live"
            os.kill(holder.pid, signal.SIGKILL)
            killed = time.time()
            await holder.wait()
            while (await lease_of(admin, lease_id)).state == "live":
                await asyncio.sleep(0.1)
                assert time.time() - killed < 30
            over = await lease_of(admin, lease_id)
            assert over.end_reason == "its holder gave no sign of life"
            assert over.expires > killed - 0.5

    run(check)


def test_who_holds_a_lease_hears_at_once_what_became_of_it(tmp_path: Path) -> None:
    async def check() -> None:
        async with hub(tmp_path) as (running, admin, address), PoolClient(address) as client:
            lease = await client.acquire_now("mine", SMALL, ANNA)
            seen: list[Lease] = []
            over: list[str] = []
            client.keepalive.keep(lease.id, seen.append, over.append)
            await until(lambda: len(seen) == 1)
            assert not seen[0].secret
            running.manager.drain("s", "admin", deadline=3600)
            await until(lambda: "its GPU server is being drained" in seen[-1].notice)
            await admin.release(lease.id, "the lesson is over")
            await until(lambda: over == ["the lesson is over"])
            assert (await lease_of(client, lease.id)).state != "live"

    run(check)


def test_a_lease_that_is_let_go_has_its_time_to_live_and_the_others_of_the_call_live_on(
    tmp_path: Path,
) -> None:
    async def check() -> None:
        async with hub(tmp_path) as (_, _admin, address), PoolClient(address) as client:
            kept, left = [
                await client.acquire_now(key, SMALL, ANNA, ttl_seconds=1) for key in ("kept", "left")
            ]
            seen: list[str] = []
            for lease in (kept, left):
                client.keepalive.keep(lease.id, lambda lease: seen.append(lease.id), lambda reason: None)
            await until(lambda: {kept.id, left.id} == set(seen))
            client.keepalive.let_go(left.id)
            while (await lease_of(client, left.id)).state == "live":
                await asyncio.sleep(0.05)
            await asyncio.sleep(1.5)
            assert (await lease_of(client, kept.id)).state == "live"

    run(check)


def test_nobody_keeps_the_lease_of_somebody_else(tmp_path: Path) -> None:
    async def check() -> None:
        async with serve(tmp_path / "state", f"127.0.0.1:{free_port()}") as running:
            Agent(running.manager, "s", devices=1).attach()
            async with AdminClient(f"unix:{socket_path(tmp_path / 'state')}") as admin:
                tokens = [(await admin.create_token(name, name))[1] for name in ("anna", "eve")]
                address = running.address
                async with PoolClient(address, tokens[0]) as anna, PoolClient(address, tokens[1]) as eve:
                    lease = await anna.acquire_now("mine", SMALL, Holder("anna"), ttl_seconds=1)
                    told: list[str] = []
                    eve.keepalive.keep(lease.id, lambda lease: told.append("seen"), told.append)
                    await until(lambda: bool(told))
                    assert told == [f"The pool knows no lease {lease.id} of yours."]
                    while (await lease_of(anna, lease.id)).state == "live":
                        await asyncio.sleep(0.05)

    run(check)


def test_a_token_that_is_revoked_keeps_nothing(tmp_path: Path) -> None:
    async def check() -> None:
        async with serve(tmp_path / "state", f"127.0.0.1:{free_port()}") as running:
            Agent(running.manager, "s", devices=1).attach()
            async with AdminClient(f"unix:{socket_path(tmp_path / 'state')}") as admin:
                token, text = await admin.create_token("anna's", "anna")
                async with PoolClient(running.address, text) as anna:
                    lease = await anna.acquire_now("mine", SMALL, Holder("anna"), ttl_seconds=1)
                    over: list[str] = []
                    anna.keepalive.keep(lease.id, lambda lease: None, over.append)
                    await admin.revoke_token(token.id)
                    await until(lambda: bool(over), 15)
                    assert "does not know this token" in over[0]
                    while (await lease_of(admin, lease.id)).state == "live":
                        await asyncio.sleep(0.05)

    run(check)


def test_a_pool_that_is_started_again_is_told_what_is_held(tmp_path: Path) -> None:
    async def check() -> None:
        address = f"unix:{socket_path(tmp_path / 'state')}"
        async with PoolClient(address) as client:
            over: list[str] = []
            async with serve(tmp_path / "state") as running:
                agent = Agent(running.manager, "s", devices=1)
                agent.attach()
                lease = await client.acquire_now("mine", SMALL, ANNA, ttl_seconds=3)
                client.keepalive.keep(lease.id, lambda lease: None, over.append)
                await until(lambda: lease.id in running.manager.keepalive._calls)
            async with serve(tmp_path / "state") as running:
                again = Agent(running.manager, "s", devices=1)
                again.alive = agent.alive
                again.attach()
                await until(lambda: lease.id in running.manager.keepalive._calls)
                await asyncio.sleep(4)
                assert (await lease_of(client, lease.id)).state == "live"
            assert not over

    run(check)
