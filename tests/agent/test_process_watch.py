"""The watch over the devices: a process that goes past a slice is found by the device's own account, and stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpukernel import native
from gpukernel.agent.processes import Simulated
from gpukernel.common.address import short_directory
from gpukernel.remoting.direct_environment import direct_directories
from gpukernel.remoting.direct_table import Table
from tests.agent.programs import HOLD, only_lease, stopped, the_end_of
from tests.conftest import Pool, eventually
from tests.direct.conftest import MIB, DirectPool, says, tell


def test_a_program_that_loads_the_driver_itself_is_stopped_and_its_lease_says_why(
    own_direct_pool: DirectPool,
) -> None:
    program = own_direct_pool.begin(f"""
ctypes.CDLL({str(native.simgpu_library())!r}, mode=ctypes.RTLD_GLOBAL)
real = ctypes.CDLL({str(native.simgpu_library())!r})
assert real.cuInit(0) == 0
context, p = ctypes.c_void_p(), ctypes.c_uint64()
assert real.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and real.cuCtxSetCurrent(context) == 0
print(os.getpid(), real.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(500 << 20)), flush=True)  # of a slice of 64 MiB
sys.stdin.readline()
""")
    pid, code = says(program).split()
    assert code == "0"
    lease = only_lease(own_direct_pool)
    errors = stopped(program)
    assert program.returncode == 128 + signal.SIGTERM
    assert "the slice was taken back: " in errors
    assert f"(process {pid}) used the device past its slice" in errors
    assert "loaded the driver's library itself" in the_end_of(own_direct_pool, lease)
    assert own_direct_pool.promised() == 0


@pytest.mark.thorough
def test_workers_and_programs_of_other_leases_are_no_strangers(own_direct_pool: DirectPool) -> None:
    direct = own_direct_pool.begin(HOLD)
    remote = own_direct_pool.start_on_slice(
        "import os, sys; from cuda.bindings import driver as d; d.cuInit(0); d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])\n"
        "p = d.cuMemAlloc(20 << 20)[1]; print('on', flush=True); sys.stdin.readline(); print(d.cuMemFree(p)[0].name)"
    )
    says(direct)
    assert says(remote) == "on"
    # As long as a stranger would have been stopped in: the leases' figures come with the agent's looks.
    worker = eventually(lambda: [u for u in own_direct_pool.live() if u.mode == "remote"])
    registry = Simulated(short_directory(own_direct_pool.state) / "simulated-processes")
    uses = eventually(lambda: registry.on(0) if len(registry.on(0)) == 2 else [])
    assert sorted(use.memory_bytes or 0 for use in uses) == [10 * MIB, 20 * MIB]
    stranger = subprocess.Popen(
        [sys.executable, "-c", STRANGER.format(library=str(native.simgpu_library()))],
        env={
            **os.environ,
            "GPUKERNEL_SIMGPU_PROCESSES": str(registry.directory),
            "GPUKERNEL_LEASE_FILE": lease_file_of(int(direct_pid(own_direct_pool))),
        },
    )
    assert stranger.wait(timeout=60) == -signal.SIGTERM  # so the agent has looked for long enough
    tell(remote)
    out, errors = remote.communicate()
    assert (out, errors) == ("CUDA_SUCCESS\n", "")
    assert worker
    direct.communicate()


STRANGER = """
import ctypes, time
real = ctypes.CDLL({library!r})
real.cuInit(0); real.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
time.sleep(60)
"""


def direct_pid(pool: Pool) -> int:
    lease = next(one for one in pool.live() if one.mode == "direct")
    (directory,) = direct_directories(lease)
    table = Table(directory / "table")
    (slot,) = table.slots()
    table.close()
    return slot.pid


def lease_file_of(pid: int) -> str:
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.partition("=")[::2] for entry in entries)["GPUKERNEL_LEASE_FILE"]
