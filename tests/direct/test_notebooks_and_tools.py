"""Kernels in direct mode, and what NVML's tools see of such a slice."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jupyter_client.manager import KernelManager

from gpukernel.jupyter import kernelspecs
from gpukernel.jupyter.errors import SliceUnavailable
from tests.conftest import Pool, eventually
from tests.direct.conftest import DirectPool

LOOK = "from cuda.bindings import driver as d; d.cuInit(0); print(open('/proc/self/maps').read().count('direct/libcuda.so.1') > 0, d.cuDeviceTotalMem(0)[1] >> 20)"


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., KernelManager]]:
    for kind in ("DATA", "RUNTIME"):
        monkeypatch.setenv(f"JUPYTER_{kind}_DIR", str(tmp_path / kind.lower()))
    running: list[KernelManager] = []

    def start(pool: Pool, mode: str, share: float = 0.02, acquire: str = "") -> KernelManager:
        monkeypatch.setenv("GPUKERNEL_STATE", str(pool.state))
        spec = kernelspecs.SliceSpec(share, mode=mode, acquire=acquire, wait_seconds=0.2)
        kernelspecs.write(spec, tmp_path / "data" / "kernels")
        assert spec in [one for one, _ in kernelspecs.installed()]
        manager = KernelManager(kernel_name=spec.name)
        manager.start_kernel()
        running.append(manager)
        return manager

    yield start
    for manager in running:
        manager.shutdown_kernel(now=True)


def said(manager: KernelManager, code: str = LOOK) -> str:
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        texts: list[str] = []
        client.execute_interactive(
            code,
            timeout=60,
            output_hook=lambda m: texts.append(str(m["content"].get("text", m["content"]))),
        )
        return next(text for text in texts if text.endswith("\n"))
    finally:
        client.stop_channels()


@pytest.mark.parametrize("mode", ["direct", "auto"])
def test_a_kernel_uses_the_device_of_its_machine(
    direct_pool: DirectPool, start: Callable[..., KernelManager], mode: str
) -> None:
    manager = start(direct_pool, mode)
    assert said(manager) == "True 655\n"
    assert [lease.mode for lease in direct_pool.live() if lease.key == manager.kernel_id] == ["direct"]
    manager.shutdown_kernel()
    assert eventually(lambda: not [one for one in direct_pool.live() if one.key == manager.kernel_id])


def test_auto_takes_a_worker_where_direct_mode_is_not_allowed(
    shared_pool: Pool, start: Callable[..., KernelManager]
) -> None:
    manager = start(shared_pool, "auto")
    assert said(manager) == "False 655\n"
    assert [lease.mode for lease in shared_pool.live() if lease.key == manager.kernel_id] == ["remote"]


def test_gpu_in_a_kernel_that_uses_the_device_itself(
    direct_pool: DirectPool, start: Callable[..., KernelManager]
) -> None:
    manager = start(direct_pool, "direct")
    allocate = "from cuda.bindings import driver as d; d.cuInit(0); d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1]); "
    magic = "print(get_ipython().run_line_magic('gpu', '{}'))"
    assert "100 MiB of 655 MiB" in said(manager, allocate + "d.cuMemAlloc(100 << 20)\n" + magic.format(""))
    assert "100 MiB of 1,638 MiB" in said(manager, magic.format("resize 0.05"))
    assert "would end with its slice" in said(manager, "%gpu release")
    measured = said(manager, "%%gpu\nd.cuMemAlloc(50 << 20)")
    assert "memory 150 MiB (9% of the slice) · 0 launches (in direct mode" in measured
    assert "None" in said(manager, magic.format("release"))
    (lease,) = [one for one in direct_pool.live() if one.key == manager.kernel_id]
    assert lease.slices[0].memory_bytes == 1638 << 20


def test_a_kernel_in_direct_mode_does_not_start_without_its_slice(
    own_direct_pool: DirectPool, start: Callable[..., KernelManager]
) -> None:
    start(own_direct_pool, "direct", 1.0)
    with pytest.raises(SliceUnavailable, match=r"No slice in direct mode was free for 0\.2 s"):
        start(own_direct_pool, "direct")
    assert eventually(lambda: own_direct_pool.leases()[1] == [])


def test_auto_starts_in_remote_mode_where_it_has_to_wait_and_waits_in_the_cell(
    own_direct_pool: DirectPool, start: Callable[..., KernelManager]
) -> None:
    first = start(own_direct_pool, "direct", 1.0)
    second = start(own_direct_pool, "auto")
    (waiting,) = own_direct_pool.leases()[1]
    assert (waiting.key, waiting.slice.mode) == (second.kernel_id, "remote")
    first.shutdown_kernel()
    assert said(second) == "False 655\n"


def test_on_first_use_is_for_remote_mode(
    direct_pool: DirectPool, start: Callable[..., KernelManager]
) -> None:
    with pytest.raises(kernelspecs.InvalidSpec, match="has its slice from the start"):
        kernelspecs.SliceSpec(0.02, mode="direct", acquire="on_first_use")
    manager = start(direct_pool, "auto", acquire="on_first_use")
    assert [one for one in direct_pool.live() if one.key == manager.kernel_id] == []
    assert said(manager) == "False 655\n"


def test_nvml_shows_the_slice_its_programs_and_their_use(direct_pool: DirectPool) -> None:
    out = direct_pool.out(
        """
import json, time
from pynvml import *
begin(); p = ok(d.cuMemAlloc(10 << 20)); nvmlInit()
gpu = nvmlDeviceGetHandleByIndex(0); memory = nvmlDeviceGetMemoryInfo(gpu)
code = b'.version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .entry spin() { .reg .pred %p; .reg .b32 %r<2>; mov.u32 %r1, 0; again: add.u32 %r1, %r1, 1; setp.lt.u32 %p, %r1, 400000; @%p bra again; ret; }'
f = load(code, b'spin'); end = time.monotonic() + 30
while nvmlDeviceGetUtilizationRates(gpu).gpu < 50 and time.monotonic() < end:
    ok(d.cuLaunchKernel(f, 4,1,1, 32,1,1, 0, 0, 0, 0)); ok(d.cuCtxSynchronize())
print(json.dumps([nvmlDeviceGetCount(), nvmlDeviceGetName(gpu), memory.total >> 20, memory.used >> 20,
    [(p.pid == os.getpid(), p.usedGpuMemory >> 20) for p in nvmlDeviceGetComputeRunningProcesses(gpu)],
    nvmlDeviceGetUtilizationRates(gpu).gpu >= 50, nvmlDeviceGetUUID(gpu) == os.environ['CUDA_VISIBLE_DEVICES']]))
"""
    )
    assert json.loads(out) == [
        1,
        "Tesla V100-SXM2-32GB (simulated)",
        64,
        10,
        [[True, 10]],
        True,
        True,
    ]


def test_smi_in_a_slice_shows_it(direct_pool: DirectPool) -> None:
    done = direct_pool.gpukernel(
        "run", "--direct", "-m", "48", "--", sys.executable, "-m", "gpukernel.cli", "smi", "--json"
    )
    assert done.returncode == 0, done.stderr
    (shown,) = json.loads(done.stdout)
    assert (shown["memory_bytes"] >> 20, shown["memory_used_bytes"], shown["programs"]) == (48, 0, [])
