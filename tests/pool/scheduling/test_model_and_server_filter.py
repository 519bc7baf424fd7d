"""Requests that name the servers they want."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpukernel.common.errors import Refused
from gpukernel.common.model import Holder, Lease, Queued, SliceRequest
from tests.pool.world import Agent, World, story


async def get(world: World, key: str, share: float, server: str, wait: float = 0, devices: int = 1) -> Lease:
    wanted = SliceRequest(share=share, server=server, devices=devices)
    async for event in world.manager.acquire(key, wanted, Holder("anna"), wait, 0):
        if isinstance(event, Lease):
            return event
    raise AssertionError


def test_a_slice_lies_on_a_server_of_that_name(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        Agent(world.manager, "GPU2").attach()
        for key in ("a", "b", "c"):
            assert (await get(world, key, 0.3, "gpu")).slices[0].server == "GPU2"
        with pytest.raises(
            Refused, match="A server named “gpu” has no room for 9830 MiB of a device now"
        ) as no:
            await get(world, "d", 0.3, "gpu")
        assert no.value.code == "full"
        assert (await get(world, "e", 0.3, "")).slices[0].server == "s"
        with pytest.raises(Refused, match="A server named “nowhere” has no device"):
            await get(world, "f", 0.3, "nowhere")
        with pytest.raises(Refused, match="2 devices are asked for; a server named “gpu” has 1"):
            await get(world, "g", 0.3, "gpu", devices=2)
        with pytest.raises(Refused, match="at most 256"):
            await get(world, "h", 0.3, "x" * 65536)

    story(tmp_path, tell)


def test_who_waits_for_a_server_holds_nobody_back_elsewhere_and_is_not_passed_there(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        Agent(world.manager, "gpu2").attach()
        first = await get(world, "first", 0.6, "gpu2")
        wanted = SliceRequest(share=0.6, server="gpu2")
        waiting = world.manager.acquire("large", wanted, Holder("ben"), -1, 0)
        assert isinstance(await anext(waiting), Queued)
        with pytest.raises(Refused):
            await get(world, "small", 0.1, "gpu2")
        assert (await get(world, "small", 0.1, "")).slices[0].server == "s"
        world.manager.end(first.id, "done")
        lease = await anext(waiting)
        assert isinstance(lease, Lease)
        assert lease.slices[0].server == "gpu2"

    story(tmp_path, tell)


def test_a_pool_that_is_started_again_knows_what_was_asked_for(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        Agent(world.manager, "gpu2").attach()
        await get(world, "first", 1.0, "gpu2")
        waiting = world.manager.acquire("k", SliceRequest(share=0.5, server="gpu2"), Holder("ben"), -1, 0)
        assert isinstance(await anext(waiting), Queued)
        world.manager._queue._requests.forget()  # as a new process would
        world.manager.schedule()
        assert [one.slice.server for one in world.manager.waiting()] == ["gpu2"]

    story(tmp_path, tell)
