"""Calls that arrive together, and what the loop does between them."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from gpukernel.pool.leases import clockwork
from gpukernel.pool.leases.clockwork import run_clock
from gpukernel.pool.leases.turns import Turns
from tests.pool.world import World, story

CALLS = 20


def test_a_crowd_s_calls_are_decided_in_turns_of_their_own(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        said = list[str]()

        async def heartbeats() -> None:
            while True:
                said.append("heartbeat")
                await asyncio.sleep(0)

        schedule = world.manager.schedule

        def counted(*arguments: object, **named: object) -> None:
            if arguments:
                said.append("decision")
            schedule(*arguments, **named)  # type: ignore[arg-type]

        world.manager.schedule = counted  # type: ignore[method-assign]
        beating = asyncio.create_task(heartbeats())
        await asyncio.gather(*(world.get(f"call {n}", 0.02) for n in range(CALLS)))
        beating.cancel()
        assert said.count("decision") == CALLS
        pairs = list(itertools.pairwise(said))
        assert ("decision", "decision") not in pairs

    story(tmp_path, tell)


def test_turns_are_taken_in_the_order_of_asking_and_those_who_leave_are_passed_over() -> None:
    async def tell() -> None:
        turns, order = Turns(), list[int]()

        async def ask(number: int) -> None:
            await turns.take()
            order.append(number)

        asking = [asyncio.create_task(ask(n)) for n in range(6)]
        await asyncio.sleep(0)
        asking[2].cancel()
        asking[5].cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        assert order == [0, 1, 3, 4]
        await asyncio.wait_for(turns.take(), 10)

    asyncio.run(tell())


def test_a_second_s_work_is_done_at_once_where_turns_take_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clockwork, "RESTS_SECONDS", 0.0)
    monkeypatch.setattr(clockwork, "REST_SECONDS", 3600.0)  # a rest would be the end of the test

    async def tell(world: World) -> None:
        done = asyncio.Event()
        monkeypatch.setattr(world.manager.outages, "answered", done.set)
        clock = asyncio.create_task(run_clock(world.manager, 0))
        await asyncio.wait_for(done.wait(), 30)
        clock.cancel()

    story(tmp_path, tell)
