"""Garbage is collected by the clock: what was made since the last look, and now and then everything."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import weakref
from collections.abc import Callable

import pytest

from gpukernel.cli import services
from gpukernel.pool.rpc import garbage


class Cycle:
    """An object that only a collection ends, once nobody has it."""

    def __init__(self) -> None:
        self.own = self


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not done():
            await asyncio.sleep(0.01)


def test_garbage_is_collected_by_the_clock_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "NEW_SECONDS", 0.2)
    monkeypatch.setattr(garbage, "ALL_LOOKS", 4)

    async def work() -> None:
        before = gc.get_threshold()
        collecting = asyncio.create_task(garbage.collect_by_the_clock())
        await until(lambda: gc.get_freeze_count() > 0)
        assert gc.get_threshold()[2] > 1_000_000
        new = weakref.ref(Cycle())
        assert new() is not None
        await until(lambda: new() is None)
        # One that was looked at while somebody had it is left out until everything is looked at.
        held = Cycle()
        old = weakref.ref(held)
        await asyncio.sleep(0.3)
        del held
        gc.collect()
        assert old() is not None
        await until(lambda: old() is None)
        collecting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await collecting
        assert gc.get_threshold() == before
        assert gc.get_freeze_count() == 0

    asyncio.run(work())


def test_services_collect_by_the_clock() -> None:
    async def oldest() -> None:
        await until(lambda: gc.get_threshold()[2] > 1_000_000)

    async def work() -> None:
        await services._until_told_to_stop(asyncio.create_task(oldest()))

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        asyncio.run(work())
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
