"""More kernels than one GPU has slices: fifty run, ten wait, and each says its own place."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import AsyncKernelManager

from gpukernel.jupyter import kernelspecs
from tests.conftest import Pool

SIXTY, ROOM = 60, 50
LOOK = "from cuda.bindings import driver as d\nprint(d.cuInit(0)[0].name, d.cuDeviceTotalMem(0)[1] >> 20)"


@pytest.mark.slow
@pytest.mark.skipif(
    int(re.findall(r"MemAvailable: *(\d+)", Path("/proc/meminfo").read_text())[0]) < 5 << 20,  # KiB
    reason="sixty Python kernels take 4 GiB of memory",
)
def test_sixty_kernels_on_one_v100(own_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUKERNEL_STATE", str(own_pool.state))
    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)
    for kind in ("DATA", "RUNTIME"):
        monkeypatch.setenv(f"JUPYTER_{kind}_DIR", str(tmp_path / kind.lower()))
    kernelspecs.write(kernelspecs.SliceSpec(0.02, wait_seconds=5), tmp_path / "data" / "kernels")
    asyncio.run(_sixty(own_pool))


class One:
    """A kernel, and what its one cell has said so far."""

    def __init__(self) -> None:
        self.manager = AsyncKernelManager(kernel_name="gpu-v100-0.02")
        self.said = ""
        self.more = asyncio.Event()

    async def start(self) -> None:
        await self.manager.start_kernel()
        self.client: Any = self.manager.client()
        self.client.start_channels()
        await self.client.wait_for_ready(timeout=600)
        self.cell = asyncio.create_task(
            self.client.execute_interactive(LOOK, timeout=600, output_hook=self._hear)
        )

    def _hear(self, message: dict[str, Any]) -> None:
        if message["msg_type"] == "stream":
            self.said += message["content"]["text"]
            self.more.set()

    async def says(self, pattern: str) -> re.Match[str]:
        while not (found := re.search(pattern, self.said)):
            self.more.clear()
            await asyncio.wait_for(self.more.wait(), 300)
        return found

    async def end(self) -> None:
        if self.manager.has_kernel:
            self.client.stop_channels()
            await self.manager.shutdown_kernel(now=True)


async def _sixty(pool: Pool) -> None:
    kernels = [One() for _ in range(SIXTY)]
    try:
        await asyncio.gather(*(one.start() for one in kernels))
        async with asyncio.timeout(300):
            while True:
                leases, waiting = await asyncio.to_thread(pool.leases)
                live = {lease.key for lease in leases if lease.state == "live"}
                if len(live) == ROOM and len(waiting) == SIXTY - ROOM:
                    break
                await asyncio.sleep(0.5)
        of = {one.manager.kernel_id: one for one in kernels}
        await asyncio.gather(*(of[key].says("CUDA_SUCCESS 655") for key in live))
        assert sorted(one.position for one in waiting) == list(range(1, SIXTY - ROOM + 1))
        await asyncio.gather(*(of[one.key].says(rf"position {one.position} in") for one in waiting))
        await asyncio.gather(*(of[key].end() for key in sorted(live)[: SIXTY - ROOM]))
        await asyncio.gather(*(of[one.key].says("CUDA_SUCCESS 655") for one in waiting))
    finally:
        await asyncio.gather(*(one.end() for one in kernels), return_exceptions=True)
