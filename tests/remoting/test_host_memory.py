"""The book of the host memory that the programs of a lease make its worker take."""

from __future__ import annotations

import asyncio

from tests.remoting.conftest import MIB, worker


def test_a_worker_says_its_limit_of_host_memory() -> None:
    async def story() -> None:
        async with worker(host_memory=96 * MIB) as one:
            assert (await one.handle.status()).host_memory_limit_bytes == 96 * MIB

    asyncio.run(story())
