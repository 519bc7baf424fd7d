"""Frameworks that link the CUDA runtime statically, in direct mode on this machine's GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from gpukernel.agent.inventory import Inventory
from tests.conftest import Pool

HERE = Path(__file__).parent / "programs"


def run(pool: Pool, name: str, share: str) -> subprocess.CompletedProcess[str]:
    return pool.gpukernel("run", "--direct", "-p", share, "--", sys.executable, str(HERE / name))


def test_pytorch_trains_and_sees_only_its_slice(
    direct_pool: Pool, inventory: Inventory, needs: Callable[[str], None]
) -> None:
    needs("torch")
    done = run(direct_pool, "torch_train.py", "0.1")
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["loss_at_the_end"] < seen["loss_at_the_beginning"] / 2
    assert seen["total_bytes"] <= 0.1 * inventory.devices[0].memory_bytes
    assert seen["too_much"] == "OutOfMemoryError"
    assert seen["afterwards"] == "works"


def test_jax_computes(direct_pool: Pool, needs: Callable[[str], None]) -> None:
    needs("jax")
    done = run(direct_pool, "jax_step.py", "0.1")
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["platform"] == "gpu"
    assert seen["error"] < 1e-3
