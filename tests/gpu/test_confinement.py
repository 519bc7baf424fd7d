"""Workers beside NVIDIA's driver with rungs that ``auto`` leaves out there: programs compute, and the driver asks for nothing refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpukernel.agent.inventory import Inventory
from gpukernel.embedded import PoolDidNotStart
from tests.conftest import Pool
from tests.gpu.conftest import SIMULATED

ROOT = Path(__file__).parents[2]
RUNGS = [
    "no-new-privileges,limits",
    "no-new-privileges,landlock",
    "system-calls",
    "account",
    "account,no-new-privileges,limits,landlock,system-calls",
]
ACCOUNTS = ("--worker-accounts", "1900000000-1900000099")
PROGRAMS = {
    "memory": "tests/e2e/programs/memory.py",
    "classic kernels": "-m tests.kernels.cases scan",
    "torch": "tests/gpu/programs/torch_train.py",
}


@pytest.mark.parametrize("rungs", RUNGS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_worker_with_these_rungs_serves_programs(
    rungs: str, program: str, inventory: Inventory, installed: Callable[[str], None]
) -> None:
    if program == "torch":
        installed("torch")
    try:
        with Pool(SIMULATED, options=("--confinement", rungs, *ACCOUNTS)) as pool:
            checks = json.loads(pool.gpukernel("health", "--json").stdout)
            # The worker's log goes with its lease.
            both = f"{sys.executable} {PROGRAMS[program]} && cat {pool.state}/workers/*/worker.log >&2"
            done = pool.gpukernel("run", "-p", "0.05", "--", "sh", "-c", both, cwd=ROOT)
    except PoolDidNotStart as error:
        if "cannot be used here" not in str(error):
            raise
        pytest.skip(str(error))
    used = {rung["name"] for check in checks for rung in check["rungs"] if rung["used"]}
    assert used >= set(rungs.split(","))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "the system refused" not in done.stderr
