"""A class of fifty on one simulated V100, and the one that has to wait."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from jupyter_client.manager import AsyncKernelManager

from gpukernel.jupyter import kernelspecs
from tests.conftest import Pool, eventually

LOOK = """
from cuda.bindings import driver as d
d.cuInit(0); d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])
print(d.cuMemGetInfo()[2])
"""


async def _start(name: str) -> AsyncKernelManager:
    manager = AsyncKernelManager(kernel_name=name)
    await manager.start_kernel()
    return manager


async def _total(manager: AsyncKernelManager) -> int:
    client = manager.client()
    client.start_channels()
    try:
        await client.wait_for_ready(timeout=200)
        said: list[str] = []

        def hear(message: dict[str, object]) -> None:
            content = message["content"]
            if message["msg_type"] == "stream" and isinstance(content, dict):
                said.append(str(content["text"]))

        await client.execute_interactive(LOOK, timeout=200, output_hook=hear)
        return int("".join(said))
    finally:
        client.stop_channels()


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fifty_kernels_run_and_the_fifty_first_waits_and_starts_when_one_ends(
    own_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUKERNEL_STATE", str(own_pool.state))
    for kind in ("DATA", "RUNTIME"):
        monkeypatch.setenv(f"JUPYTER_{kind}_DIR", str(tmp_path / kind.lower()))
    spec = kernelspecs.SliceSpec(0.02, wait_seconds=300)
    kernelspecs.write(spec, tmp_path / "data" / "kernels")

    async def story() -> None:
        managers: list[AsyncKernelManager] = []
        late: asyncio.Task[AsyncKernelManager] | None = None
        try:
            for _ in range(10):  # five at a time: two cores
                managers += await asyncio.gather(*(_start(spec.name) for _ in range(5)))
            assert len(await asyncio.to_thread(own_pool.live)) == 50
            assert await asyncio.gather(*(_total(m) for m in managers)) == [655 * 2**20] * 50

            late = asyncio.create_task(_start(spec.name))
            waiting = await asyncio.to_thread(eventually, lambda: own_pool.leases()[1])
            assert [one.position for one in waiting] == [1]
            assert not late.done()
            await managers.pop().shutdown_kernel(now=True)
            managers.append(await asyncio.wait_for(late, 60))
            assert await _total(managers[-1]) == 655 * 2**20
        finally:
            if late is not None and not late.done():
                late.cancel()
            await asyncio.gather(*(m.shutdown_kernel(now=True) for m in managers))

    asyncio.run(story())
    eventually(lambda: own_pool.promised() == 0)


def test_the_waiting_one_is_told_its_position_on_the_command_line(own_pool: Pool) -> None:
    first = own_pool.start_on_slice("print('in', flush=True); input()", "-p", "0.9")
    assert first.stdout is not None
    assert first.stdout.readline() == "in\n"
    second = own_pool.start_on_slice("print('in', flush=True)", "-p", "0.9")
    assert second.stderr is not None
    assert "position 1 in the queue" in second.stderr.readline()
    shown = json.loads(own_pool.gpukernel("leases", "--json").stdout)
    assert [lease["state"] for lease in shown] == ["live"]
    first.communicate("\n")
    out, _ = second.communicate(timeout=30)
    assert out == "in\n"
