"""A student's kernel has large local memory, which a real device sets aside for each thread that it can hold at one time."""

from __future__ import annotations

import asyncio

import pytest

from tests.remoting.conftest import worker

CODE = """
def text(n):
    return b'''.version 7.0
.target sm_70
.address_size 64
.visible .entry k(.param .u64 to) { .local .align 4 .b8 own[%d]; .reg .b64 %%rd<3>; .reg .b32 %%r<2>; ld.param.u64 %%rd1, [to];
    mov.u32 %%r1, 7; st.local.u32 [own], %%r1; ld.local.u32 %%r1, [own]; st.global.u32 [%%rd1], %%r1; ret; }
''' % n + bytes(1)
begin(); p = ok(d.cuMemAlloc(4096))
import numpy as np
a = np.array([int(p)], np.uint64); x = np.array([a.ctypes.data], np.uint64)
def used():
    free, total = ok(d.cuMemGetInfo())
    return total - free - 4096
def run(f):
    code = d.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, x.ctypes.data, 0)[0]
    return code.name if int(code) else d.cuCtxSynchronize()[0].name
threads = ok(d.cuDeviceGetAttribute(d.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0)) * ok(
    d.cuDeviceGetAttribute(d.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 0))
def get(n): return ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(text(n))), b"k"))
"""
# By what leads to the kernel: a function that a program would call to launch it once, and hear how that went.
WAYS = {
    "of a module": "f = get(65536); go = lambda: run(f)",
    "of a library": (
        "f = d.CUfunction(int(ok(d.cuLibraryGetKernel(ok(d.cuLibraryLoadData(text(65536), [], [], 0, [], [], 0)), b'k')))); go = lambda: run(f)"
    ),
    "in a graph": """
f = get(65536)
def go():
    node = d.CUDA_KERNEL_NODE_PARAMS(); node.func = f; node.kernelParams = x.ctypes.data
    node.gridDimX = node.gridDimY = node.gridDimZ = node.blockDimX = node.blockDimY = node.blockDimZ = 1
    graph = ok(d.cuGraphCreate(0))
    for do in (lambda: d.cuGraphAddKernelNode(graph, [], 0, node), lambda: d.cuGraphInstantiate(graph, 0)):
        code, made = do()
        if int(code): return code.name
    code = d.cuGraphLaunch(made, 0)[0]
    return code.name if int(code) else d.cuCtxSynchronize()[0].name
""",
}


@pytest.fixture(autouse=True)
def _on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUKERNEL_SIMGPU_LOCAL_MEMORY", "DEVICE")


def said(*codes: str, memory_mib: int = 64) -> list[str]:
    """Run programs one after the other in one slice; return what all of them print."""

    async def story() -> list[str]:
        lines: list[str] = []
        async with worker(memory_mib=memory_mib) as one:
            for code in codes:
                done = await one.run(CODE + code)
                assert done.returncode == 0, done.stderr
                lines += done.stdout.splitlines()
        return lines

    return asyncio.run(story())


@pytest.mark.parametrize("way", WAYS)
def test_local_memory_beyond_the_cap_is_refused(way: str) -> None:
    lines = said(f"{WAYS[way]}\nfor _ in range(2): print(go(), used())\nprint(run(get(512)), used())")
    assert lines == ["CUDA_ERROR_OUT_OF_MEMORY 0", "CUDA_ERROR_OUT_OF_MEMORY 0", "CUDA_SUCCESS 0"]


def test_local_memory_is_charged_once_with_the_stack_and_until_the_programs_are_gone() -> None:
    code = """
STACK = d.CUlimit.CU_LIMIT_STACK_SIZE
def now(): print(used() // threads)
small, large, larger = get(1024), get(2048), get(3072); now()
for f in (small, large, small, large): print(run(f)); now()
for limit in (1536, 2560, 1024): ok(d.cuCtxSetLimit(STACK, limit)); now()
print(run(larger)); now()
"""
    lines = said(code, "now = used(); print(now, run(get(1024)), used())", memory_mib=1024)
    assert lines == [
        "0",
        *("CUDA_SUCCESS", "0", "CUDA_SUCCESS", "2048", "CUDA_SUCCESS", "2048", "CUDA_SUCCESS", "2048"),
        *("2048", "2560", "2048"),
        *("CUDA_SUCCESS", "3072"),
        "0 CUDA_SUCCESS 0",
    ]


def test_a_kernel_runs_as_soon_as_there_is_room_for_its_local_memory() -> None:
    code = """
f = get(2048); kept = ok(d.cuMemAlloc(ok(d.cuMemGetInfo())[0] - 1024 * threads))
print(run(f)); ok(d.cuMemFree(kept)); print(run(f), used() // threads)
"""
    assert said(code, memory_mib=1024) == ["CUDA_ERROR_OUT_OF_MEMORY", "CUDA_SUCCESS 2048"]
