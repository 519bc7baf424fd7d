"""Devices that a supply announces: people wait for them while there are none, within their quotas and in nobody's way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpukernel.client.admin import AdminClient, AnnouncedKind
from gpukernel.common.address import socket_path
from gpukernel.common.course import Offered
from gpukernel.common.errors import NotAllowed, Refused
from gpukernel.common.model import Holder, Lease, Queued, SliceRequest
from gpukernel.pool.rpc.server import RunningPool, serve
from gpukernel.pool.scheduling.cycle_end import DEPTH
from tests.pool.world import GIB, Agent
from tests.ports import free_port

V100 = AnnouncedKind("Tesla V100", 32 * GIB, 2)
HALF = SliceRequest(share=0.5, model="V100")
ANNA = Holder("anna")


@dataclass
class Site:
    """A pool without a GPU server; its administrator and a supply, over TCP with a token of its own."""

    running: RunningPool
    admin: AdminClient
    supply: AdminClient


@contextlib.asynccontextmanager
async def site(state: Path) -> AsyncIterator[Site]:
    address = f"127.0.0.1:{free_port()}"
    async with serve(state, address) as running, AdminClient(f"unix:{socket_path(state)}") as admin:
        _, text = await admin.create_token("cluster", scope="supply")
        async with AdminClient(address, text) as supply:
            yield Site(running, admin, supply)


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


async def ask(one: Site, key: str, request: SliceRequest, person: str = "anna") -> Lease:
    return await one.admin.acquire_now(key, request, Holder(person), wait_seconds=0)


def test_who_asks_for_what_is_announced_waits_for_it_and_gets_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with site(tmp_path) as one:
            with pytest.raises(Refused, match="The pool has no V100: no GPU server offers one now"):
                await ask(one, "k", HALF)
            (before,) = await one.admin.estimate("", [Offered(0.5, "V100")], "anna")
            await one.supply.announce("gpu", [V100], 60)
            places = one.admin.acquire("k", HALF, ANNA)
            place = await anext(places)
            assert isinstance(place, Queued)
            assert place.reason == (
                "The pool has no V100: no GPU server offers one now. It comes for those who wait: position 1 in the queue."
            )
            (after,) = await one.admin.estimate("", [Offered(0.5, "V100")], "ben")
            assert (before.state, after.state, after.waiting) == ("refused", "wait", 1)
            with pytest.raises(Refused, match="It comes for those who wait"):  # who does not wait has nothing
                await ask(one, "not now", HALF, "ben")
            # What no such device could be is refused as before.
            for never, why in (
                (SliceRequest(share=0.5, model="A100"), "The pool has no A100; it has Tesla V100"),
                (SliceRequest(memory_bytes=40 * GIB), "the largest has 32768 MiB"),
                (SliceRequest(share=1.0, devices=3), "3 devices are asked for; the pool has 2 that fit"),
                (SliceRequest(share=0.5, server="gpu"), "has no device: no GPU server offers one now"),
            ):
                with pytest.raises(Refused, match=why):
                    await ask(one, "never", never)
            Agent(one.running.manager, "gpu-1").attach()
            lease = [event async for event in places][-1]
            assert isinstance(lease, Lease)
            assert lease.slices[0].server == "gpu-1"

    run(work())


def test_who_is_over_a_quota_waits_for_the_quota_and_brings_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with site(tmp_path) as one:
            await one.admin.set_quota("person:*", {"leases": "1", "largest_slice": "0.5"})
            await one.supply.announce("gpu", [V100], 60)
            with pytest.raises(Refused, match=r"slices of up to 0\.50 of a device"):
                await ask(one, "large", SliceRequest(share=0.75, model="V100"))
            async with contextlib.AsyncExitStack() as stack:
                for key, holder in (("a", ANNA), ("b", ANNA), ("c", Holder("ben"))):
                    places = one.admin.acquire(key, HALF, holder)
                    assert isinstance(await anext(places), Queued)
                    stack.push_async_callback(places.aclose)
                _, waiting = await one.supply.leases()
                assert {request.key: bool(request.reason) for request in waiting} == {
                    "a": False,
                    "b": True,
                    "c": False,
                }

    run(work())


def test_nobody_waits_any_more_once_it_is_taken_back_or_over(tmp_path: Path) -> None:
    async def work() -> None:
        async with site(tmp_path) as one:
            await one.supply.announce("gpu", [V100], 60)
            await one.supply.announce("gpu", [], 60)
            with pytest.raises(Refused, match="The pool has no V100"):
                await ask(one, "k", HALF)
            await one.supply.announce("gpu", [V100], 0)
            with pytest.raises(Refused, match="The pool has no V100"):
                await ask(one, "k", HALF)
            # With the supply's token everything that it said is over.
            await one.supply.announce("gpu", [V100], 60)
            (token,) = [token for token in await one.admin.tokens() if token.name == "cluster"]
            await one.admin.revoke_token(token.id)
            with pytest.raises(Refused, match="The pool has no V100: no"):
                await ask(one, "k", HALF)

    run(work())


@pytest.mark.parametrize(
    ("kind", "seconds", "why"),
    [
        (V100, 1e9, "for 3600 s at most"),
        (V100, float("nan"), "for 3600 s at most"),
        (AnnouncedKind("x\n", GIB, 1), 60, "is no name of a model"),
        (AnnouncedKind("x", 1, 1), 60, "1 devices of 1 bytes are not possible"),
        (AnnouncedKind("x", GIB, 1000), 60, "1000 devices of 1073741824 bytes are not possible"),
    ],
)
def test_an_announcement_has_bounds(tmp_path: Path, kind: AnnouncedKind, seconds: float, why: str) -> None:
    async def work() -> None:
        async with site(tmp_path) as one:
            with pytest.raises(Refused, match=why):
                await one.supply.announce("gpu", [kind], seconds)
            for number in range(16):
                await one.supply.announce(f"gpu{number}", [V100], 60)
            with pytest.raises(Refused, match="One token is for 16 supplies"):
                await one.supply.announce("more", [V100], 60)
            with pytest.raises(Refused, match="with a token of its own"):  # by the pool's own account
                await one.admin.announce("gpu", [V100], 60)

    run(work())


def test_only_a_supply_announces(tmp_path: Path) -> None:
    async def work() -> None:
        async with site(tmp_path) as one:
            for scope, person in (("agent", ""), ("service", ""), ("slurm", ""), ("person", "anna")):
                _, text = await one.admin.create_token(f"a {scope}", person, scope)
                async with AdminClient(f"unix:{socket_path(tmp_path)}", text) as other:
                    with pytest.raises(NotAllowed):
                        await other.announce("gpu", [V100], 60)

    run(work())


def test_those_who_wait_for_what_is_announced_are_in_nobodys_way(tmp_path: Path) -> None:
    async def work() -> None:
        async with site(tmp_path) as one:
            Agent(one.running.manager, "own").attach()
            await one.supply.announce("gpu", [AnnouncedKind("A100", 80 * GIB, 1)], 60)
            manager = one.running.manager
            async with contextlib.AsyncExitStack() as stack:
                request = SliceRequest(share=0.5, model="A100")
                for number in range(DEPTH + 5):
                    holder = Holder(f"student{number}")
                    places = manager.acquire(f"a{number}", request, holder, -1, 0)
                    assert isinstance(await anext(places), Queued)
                    stack.push_async_callback(places.aclose)  # type: ignore[attr-defined]
                lease = await asyncio.wait_for(one.admin.acquire_now("k", HALF, ANNA), 10)
                assert lease.slices[0].server == "own"

    run(work())
