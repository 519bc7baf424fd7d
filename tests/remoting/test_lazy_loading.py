"""Code that the driver loads when a kernel is first used: it is charged then, to the module, and goes with it."""

from __future__ import annotations

import asyncio

import pytest

from tests.remoting.conftest import worker

PTX = b".version 7.0\n.target sm_70\n.address_size 64\n" + b"".join(
    b".visible .entry k%d(.param .u64 to) { .reg .b64 %%rd<2>; .reg .b32 %%r<2>; ld.param.u64 %%rd1, [to]; mov.u32 %%r1, %d; "
    b"st.global.u32 [%%rd1], %%r1; ret; }\n" % (n, n)
    for n in range(40)
)
CODE = f"""
PTX = {PTX!r} + bytes(1)
begin(); p = ok(d.cuMemAlloc(4096))
def used():
    free, total = ok(d.cuMemGetInfo())
    return total - free
import numpy as np
def run(f):
    a = np.array([int(p)], np.uint64); x = np.array([a.ctypes.data], np.uint64)
    return d.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, x.ctypes.data, 0)[0]
"""
# By the ways to a kernel: how it is found, and what gives its module back.
WAYS = {
    "of a module": (
        "m = ok(d.cuModuleLoadData(PTX)); get = lambda n: ok(d.cuModuleGetFunction(m, b'k%d' % n)); end = lambda: d.cuModuleUnload(m)"
    ),
    "of a library": (
        "m = ok(d.cuLibraryLoadData(PTX, [], [], 0, [], [], 0)); get = lambda n: d.CUfunction(int(ok(d.cuLibraryGetKernel(m, b'k%d' % n)))); end = lambda: d.cuLibraryUnload(m)"
    ),
    "of a library, in this context": (
        "m = ok(d.cuLibraryLoadData(PTX, [], [], 0, [], [], 0)); get = lambda n: ok(d.cuKernelGetFunction(ok(d.cuLibraryGetKernel(m, b'k%d' % n)))); end = lambda: d.cuLibraryUnload(m)"
    ),
    "in a list": (
        "m = ok(d.cuModuleLoadData(PTX)); l = ok(d.cuModuleEnumerateFunctions(40, m)); get = lambda n: l[n]; end = lambda: d.cuModuleUnload(m)"
    ),
}


@pytest.fixture(autouse=True)
def _lazily(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUKERNEL_SIMGPU_MODULE_LOADING", "LAZY")


def said(code: str, memory_mib: int = 64) -> list[str]:
    async def story() -> list[str]:
        async with worker(memory_mib=memory_mib) as one:
            done = await one.run(CODE + code)
            assert done.returncode == 0, done.stderr
            return done.stdout.splitlines()

    return asyncio.run(story())


@pytest.mark.parametrize("way", WAYS)
def test_code_is_charged_when_a_kernel_is_first_used(way: str) -> None:
    code = f"""
{WAYS[way]}
start = used()
for n in (0, 0, 1, 2): ok((run(get(n)),)); ok(d.cuCtxSynchronize()); print((used() - start) // 1024)
ok(end()); print(used() - 4096)
"""
    assert said(code) == ["64", "64", "128", "192", "0"]


@pytest.mark.parametrize("way", ["of a module", "of a library, in this context"])
def test_code_beyond_the_cap_is_out_of_memory_until_there_is_room(way: str) -> None:
    code = f"""
{WAYS[way]}
kept = ok(d.cuMemAlloc(ok(d.cuMemGetInfo())[0] - 300 * 1024)); found = []
try:
    for n in range(40): found.append(get(n))
except AssertionError as error: print(len(found), error.args[0].name)
for n in range(2):
    try: get(len(found) + n)
    except AssertionError as error: print(error.args[0].name)
print(used() <= ok(d.cuMemGetInfo())[1]); ok(d.cuMemFree(kept)); ok((run(get(30)),)); print(d.cuCtxSynchronize()[0].name, (used() - 4096) // 1024 // 64)
"""
    lines = said(code, memory_mib=8)
    # What was refused is loaded all the same, and charged as soon as there is room.
    assert lines == [
        "4 CUDA_ERROR_OUT_OF_MEMORY",
        *["CUDA_ERROR_OUT_OF_MEMORY"] * 2,
        "True",
        "CUDA_SUCCESS 7",
    ]


def test_a_launch_of_code_beyond_the_cap_fails_by_name() -> None:
    code = f"""
{WAYS["of a library"]}
kept = ok(d.cuMemAlloc(ok(d.cuMemGetInfo())[0] - 16 * 1024)); print(run(get(0)).name, d.cuCtxSynchronize()[0].name)
"""
    assert "CUDA_ERROR_OUT_OF_MEMORY" in said(code, memory_mib=8)[0]
