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


# Memory whose free waits for the program, so that nothing is known of what is loaded meanwhile but an upper bound.
PENDING = """
F = ctypes.CFUNCTYPE(None, ctypes.c_void_p); on = threading.Event(); wait = F(lambda _: on.wait(60)); s = ok(d.cuStreamCreate(1))
def freed_later(mib):
    a = ok(d.cuMemAllocAsync(mib << 20, s)); ok(d.cuStreamSynchronize(s))
    ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc(ctypes.c_void_p(int(s)), wait, None); ok(d.cuMemFreeAsync(a, s))
    print(d.cuMemAlloc(62 << 20)[0].name)  # which the driver is told to free by
def freed(): on.set(); ok(d.cuStreamSynchronize(s))
def load(m): return d.cuModuleGetFunction(m, b'k0')[0].name
"""


def test_what_was_owed_too_much_is_forgotten_when_pending_frees_are_over() -> None:
    code = f"""{PENDING}
m = ok(d.cuModuleLoadData(PTX)); freed_later(40); print(load(m)); freed(); print(load(m), used() >> 10)
"""
    assert said(code) == ["CUDA_ERROR_OUT_OF_MEMORY"] * 2 + ["CUDA_SUCCESS 68"]


@pytest.mark.parametrize("owing", [0, 1])  # either may come first in the lease's list
def test_the_cap_holds_where_one_module_owes_and_another_was_charged_too_much(owing: int) -> None:
    code = f"""{PENDING}
modules = [ok(d.cuModuleLoadData(PTX)) for _ in range(2)]; owes = modules.pop({owing}); freed_later(14)
print(load(modules[0])); kept = ok(d.cuMemAlloc(30 << 20)); print(load(owes)); freed(); ok(d.cuModuleUnload(owes))
print(sum(d.cuMemAlloc(10 << 20)[0].name == "CUDA_SUCCESS" for _ in range(20)))
"""
    oom = "CUDA_ERROR_OUT_OF_MEMORY"
    assert said(code) == [oom, "CUDA_SUCCESS", oom, "3"]


def test_what_asks_for_a_kernel_beyond_the_cap_hears_that_it_has_no_room() -> None:
    code = f"""
{WAYS["of a library"]}
k = get(0); own = ok(d.cuLibraryGetKernel(m, b'k1')); A = d.CUfunction_attribute
kept = ok(d.cuMemAlloc(ok(d.cuMemGetInfo())[0] - 16 * 1024))
print(d.cuFuncGetAttribute(A.CU_FUNC_ATTRIBUTE_NUM_REGS, k)[0].name)
print(d.cuKernelGetAttribute(A.CU_FUNC_ATTRIBUTE_NUM_REGS, own, 0)[0].name)
print(d.cuOccupancyMaxActiveBlocksPerMultiprocessor(k, 32, 0)[0].name)
print(d.cuCtxSynchronize()[0].name)
"""
    assert said(code, memory_mib=8) == ["CUDA_ERROR_OUT_OF_MEMORY"] * 3 + ["CUDA_SUCCESS"]


def test_a_librarys_kernels_are_charged_to_it_by_whatever_way_they_are_loaded() -> None:
    code = f"""
{WAYS["of a library"]}
start = used(); module = ok(d.cuLibraryGetModule(m)); seen = lambda: print((used() - start) >> 10); seen()
f = ok(d.cuModuleGetFunction(module, b'k0')); seen(); ok((run(ok(d.cuModuleEnumerateFunctions(40, module))[1]),)); seen()
print(ok(d.cuKernelGetAttribute(d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PTX_VERSION, ok(d.cuLibraryGetKernel(m, b'k2')), 0)) > 0); seen()
again = ok(d.cuFuncGetModule(ok(d.cuKernelGetFunction(ok(d.cuLibraryGetKernel(m, b'k3')))))); seen()
ok(d.cuModuleGetFunction(again, b'k4')); seen(); print(again == module, d.cuModuleUnload(module)[0].name); ok(end()); print(used() - 4096)
"""
    lines = ["0", "64", "128", "True", "192", "256", "320", "True CUDA_ERROR_INVALID_HANDLE", "0"]
    assert said(code) == lines


def test_a_variable_of_a_librarys_module_ends_with_the_library() -> None:
    code = """
begin(); m = ok(d.cuLibraryLoadData(b".version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .global .u32 one[4];\\n\\0", [], [], 0, [], [], 0))
p, size = ok(d.cuModuleGetGlobal(ok(d.cuLibraryGetModule(m)), b"one")); print(size, d.cuMemsetD32(p, 1, 4)[0].name)
ok(d.cuLibraryUnload(m)); d.cuMemsetD32(p, 1, 4); print(d.cuCtxSynchronize()[0].name)
"""
    assert said(code)[-2:] == ["16 CUDA_SUCCESS", "CUDA_ERROR_INVALID_VALUE"]
