"""Programs that know nothing of gpukernel, on a device of their own machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpukernel import native
from tests.conftest import PROGRAMS
from tests.direct.conftest import MIB, DirectPool, says, tell


@pytest.mark.parametrize("name", ["numba_kernels.py", "nvrtc_matmul.py"])
def test_programs_give_the_results_that_the_device_gives_without_a_slice(
    direct_pool: DirectPool, name: str
) -> None:
    alone = subprocess.run(
        [sys.executable, str(PROGRAMS / name)],
        env={**os.environ, "LD_LIBRARY_PATH": str(native.simgpu_library().parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    sliced = direct_pool.program(name, "--direct", "-p", "0.02")
    assert sliced.returncode == 0, sliced.stderr
    assert sliced.stdout == alone.stdout


def test_what_runs_is_the_real_library_with_no_worker_between(direct_pool: DirectPool) -> None:
    said = direct_pool.out(
        "begin(); print(sorted({l.split()[-1] for l in open('/proc/self/maps') if 'libcuda.so.1' in l}))"
    )
    assert said == str(sorted(map(str, (native.direct_dir() / "libcuda.so.1", native.simgpu_library()))))


def test_the_lease_is_shown_as_direct_with_what_it_uses(direct_pool: DirectPool) -> None:
    program = direct_pool.begin(
        "begin(); p = ok(d.cuMemAlloc(5 << 20)); print('on', flush=True); sys.stdin.readline()", "-m", "48"
    )
    assert says(program) == "on"
    try:
        shown = direct_pool.gpukernel("leases").stdout
        assert "/0 direct" in shown or "/1 direct" in shown
        assert "48 MiB" in shown
        smi = json.loads(direct_pool.gpukernel("smi", "--json").stdout)
        assert [one["memory_bytes"] for one in smi] == [48 * MIB]
    finally:
        tell(program)
        program.communicate()


def test_several_devices_are_numbered_from_zero_and_chosen_by_number(direct_pool: DirectPool) -> None:
    code = "ok(d.cuInit(0)); n = ok(d.cuDeviceGetCount()); print([ok(d.cuDeviceTotalMem(i)) >> 20 for i in range(n)], [ok(d.cuDeviceGetPCIBusId(13, i))[:12].decode() for i in range(n)])"
    assert direct_pool.out(code, "-n", "2", "-m", "32") == "[32, 32] ['0000:01:00.0', '0000:02:00.0']"
    second = "os.environ['CUDA_VISIBLE_DEVICES'] = '1'\n" + code
    assert direct_pool.out(second, "-n", "2", "-m", "32") == "[32] ['0000:02:00.0']"
    unset = "del os.environ['CUDA_VISIBLE_DEVICES']\n" + code
    assert direct_pool.out(unset, "-n", "2", "-m", "32") == "[32, 32] ['0000:01:00.0', '0000:02:00.0']"
    assert direct_pool.out(unset, "-m", "32").startswith("[32] ")  # and not the other device of the machine


def test_without_permission_there_is_no_direct_mode(shared_pool: DirectPool) -> None:
    done = shared_pool.gpukernel("run", "--direct", "-m", "16", "--", "true")
    assert done.returncode == 1
    assert "No GPU server on this machine allows direct mode" in done.stderr


def test_a_lease_file_that_is_gone_is_told_in_one_sentence(direct_pool: DirectPool, tmp_path: Path) -> None:
    done = direct_pool.run(
        f"os.environ['GPUKERNEL_LEASE_FILE'] = {str(tmp_path / 'gone')!r}; print(d.cuInit(0)[0].name, d.cuInit(0)[0].name)"
    )
    assert done.stdout == "CUDA_ERROR_NO_DEVICE CUDA_ERROR_NO_DEVICE\n"
    assert (
        done.stderr
        == f"gpukernel: the lease file {tmp_path / 'gone'} cannot be read: No such file or directory.\n"
    )


def test_a_child_that_forks_before_cuda_may_use_it_and_one_that_forks_after_may_not(
    direct_pool: DirectPool,
) -> None:
    said = direct_pool.out("""
def child(work):
    if (pid := os.fork()) == 0:
        try: work()
        finally: sys.stdout.flush(); os._exit(0)
    os.waitpid(pid, 0)
def early():
    begin(); ok(d.cuMemAlloc(40 << 20)); print(ok(d.cuMemGetInfo())[0] >> 20, flush=True)
child(early)
begin(); p = ok(d.cuMemAlloc(10 << 20)); print(ok(d.cuMemGetInfo())[0] >> 20, flush=True)
child(lambda: print(d.cuMemAlloc(1 << 20)[0].name, d.cuInit(0)[0].name, flush=True))
print(ok(d.cuMemGetInfo())[0] >> 20); ok(d.cuMemFree(p)); print(ok(d.cuMemGetInfo())[0] >> 20)
""")
    assert said.split("\n") == [
        "24",
        "54",
        "CUDA_ERROR_NOT_INITIALIZED CUDA_ERROR_NOT_INITIALIZED",
        "54",
        "64",
    ]
