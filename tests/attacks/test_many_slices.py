"""A student without a quota of slices takes hundreds of the smallest, each with a process and a context of which no slice is charged, until the GPU
server has no memory for anybody, or its agent more to say than a message holds.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpukernel.agent import workers as module
from gpukernel.agent.inventory import Inventory
from gpukernel.agent.workers import MOST_OF_A_DEVICE, Workers
from gpukernel.pool.doors.field_bounds import FIELDS
from gpukernel.remoting.worker import WorkerStartFailed


def test_a_device_has_no_more_workers_than_its_server_bears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_OF_A_DEVICE", 3)

    async def work() -> None:
        workers = Workers(tmp_path, Inventory((), ""), "", lambda key, reason: None)
        free = asyncio.Event()

        async def begun(*_: object) -> tuple[str, ...]:
            await free.wait()
            return ("unix:/nowhere",)

        monkeypatch.setattr(workers, "_start", begun)
        starts = [asyncio.create_task(workers.start((f"lease {n}", 0), 1 << 20, 0.1, "")) for n in range(9)]
        other = asyncio.create_task(workers.start(("another device's", 1), 1 << 20, 0.1, ""))
        done, _ = await asyncio.wait(starts, timeout=0.2)
        assert len(done) == 6
        for one in done:
            with pytest.raises(
                WorkerStartFailed, match="its device has 3 slices, as many as it may have at a time"
            ):
                await one
        free.set()
        assert len(await asyncio.gather(*set(starts) - done, other)) == 4
        # Whose start is over without a worker takes no place.
        assert await workers.start(("lease 9", 0), 1 << 20, 0.1, "") == ("unix:/nowhere",)

    asyncio.run(work())


def test_what_an_agent_says_of_all_its_workers_fits_into_a_message() -> None:
    most_devices = 64  # of one server, as the bounds have it
    for field in ("Register.workers", "Heartbeat.workers"):
        assert most_devices * MOST_OF_A_DEVICE <= FIELDS[field]
