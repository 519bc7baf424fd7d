"""gpustat and nvitop, as people run them in a slice."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.remoting.conftest import Worker, worker

BIN = Path(sys.executable).parent


async def tool(one: Worker, *command: str, **variables: str) -> str:
    """Return what the command wrote, which was nothing on standard error."""
    done = await asyncio.to_thread(
        subprocess.run,
        [BIN / command[0], *command[1:]],
        env={**one.environment(), "PYTHONWARNINGS": "ignore", "LC_ALL": "C.UTF-8", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def hold(one: Worker) -> subprocess.Popen[str]:
    program = one.start(
        "begin(); a = ok(d.cuMemAlloc(20 << 20)); print('has', flush=True); sys.stdin.readline()"
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "has\n"
    return program


def test_gpustat_shows_the_slice() -> None:
    async def story() -> None:
        async with worker(memory_mib=64) as one:
            program = hold(one)
            (gpu,) = json.loads(await tool(one, "gpustat", "--json"))["gpus"]
            assert gpu["name"] == "Tesla V100-SXM2-32GB (simulated)"
            assert (gpu["memory.used"], gpu["memory.total"]) == (20, 64)
            assert gpu["utilization.gpu"] == 0
            assert gpu["temperature.gpu"] is None
            assert [(p["pid"], p["gpu_memory_usage"]) for p in gpu["processes"]] == [(program.pid, 20)]
            line = (await tool(one, "gpustat", "--no-color", "--show-pid", "--no-header")).strip()
            assert line.startswith("[0] Tesla V100-SXM2-32GB (simulated) | ")
            assert f"/{program.pid}(20M)" in line
            program.communicate("\n")

    asyncio.run(story())


@pytest.mark.parametrize("columns", [80, 160])
def test_nvitop_shows_the_slice(columns: int) -> None:
    async def story() -> None:
        async with worker(memory_mib=64) as one:
            program = hold(one)
            shown = await tool(one, "nvitop", "--once", COLUMNS=str(columns))
            assert "20.00MiB / 64.00MiB" in shown
            assert "(simulated)" in shown
            (row,) = [line for line in shown.splitlines() if f" {program.pid} C " in line]
            assert "20.00MiB" in row
            assert "ERROR" not in shown
            program.communicate("\n")

    asyncio.run(story())


def test_tools_show_a_dead_worker_as_a_lost_gpu() -> None:
    async def story() -> None:
        async with worker() as one:
            one.handle.kill()
            await one.handle.wait()
            assert "GPU is lost" in await tool(one, "gpustat", "--no-color")
            assert "No running processes found" in await tool(one, "nvitop", "--once")

    asyncio.run(story())
