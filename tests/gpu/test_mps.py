"""Workers as clients of NVIDIA's MPS, with a control daemon of the test's own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpukernel.agent.inventory import Inventory
from tests.conftest import Pool, eventually
from tests.gpu.conftest import SIMULATED

MIB = 2**20
CONTROL = shutil.which("nvidia-cuda-mps-control")


@pytest.fixture
def mps(inventory: Inventory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of pipes of a control daemon."""
    if SIMULATED or CONTROL is None:
        pytest.skip("needs an NVIDIA GPU and nvidia-cuda-mps-control")
    with tempfile.TemporaryDirectory(prefix="gpukernel-mps-") as folder:
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", folder)
        monkeypatch.setenv("CUDA_MPS_LOG_DIRECTORY", folder)
        subprocess.run([CONTROL, "-d"], check=True, timeout=30)
        eventually(Path(folder, "control").exists)
        yield Path(folder)
        subprocess.run([CONTROL], input="quit -t 5\n", text=True, check=False, timeout=30)


def test_mps_bounds_a_worker_below_its_cap(mps: Path, inventory: Inventory) -> None:
    share = int(0.05 * inventory.devices[0].memory_bytes) // MIB * MIB
    code = f"""
import json
from cuda.bindings import driver as d
d.cuInit(0); d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])
most, total = d.cuMemGetInfo()[1:]
print(json.dumps([total, int(d.cuMemAlloc(int(0.95 * most))[0]), int(d.cuMemAlloc({share})[0])]))
"""
    with Pool(SIMULATED) as pool:
        rungs = {
            rung["name"]: rung["used"]
            for check in json.loads(pool.gpukernel("health", "--json").stdout)
            for rung in check["rungs"]
        }
        done = pool.gpukernel("run", "-p", "0.05", "--", sys.executable, "-c", code)
        clients = subprocess.run(
            [str(CONTROL)], input="get_server_list\n", capture_output=True, text=True, timeout=30, check=False
        )
    assert rungs["mps"]
    assert not rungs["account"]
    assert not rungs["system-calls"]
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [share, 0, 2]
    assert clients.stdout.split(), "no server: nobody was a client"
