"""Occupancy agrees with launches: it is 0 for a block that a launch refuses, and only for that."""

from __future__ import annotations

import pytest

from tests.native.simgpu_driver.test_driver import out

# Kernels with so many registers and bytes of shared memory, and limits of their own.
KERNELS = r"""
import itertools, random
def kernel(registers, shared, directive):
    sums = "".join(f"ld.global.u32 %r{i}, [%rd1+{4 * i}];" for i in range(registers)) + "".join(f"st.global.u32 [%rd1+{4 * i}], %r{registers - 1 - i};" for i in range(registers))
    text = f'''.version 7.8
.target sm_70
.address_size 64
.visible .entry k(.param .u64 p, .param .u32 go) {directive} {{ .reg .b64 %rd<2>; .reg .pred %q; .reg .b32 %g; .reg .b32 %r<{max(registers, 1)}>; .shared .b8 own[{max(shared, 1)}];
ld.param.u32 %g, [go]; setp.eq.u32 %q, %g, 0; @%q bra done; ld.param.u64 %rd1, [p]; {sums} done: ret; }}'''
    return ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(text.encode() + b"\0")), b"k"))
values = (ctypes.c_uint64 * 2)(0, 0); pointers = (ctypes.c_void_p * 2)(ctypes.addressof(values), ctypes.addressof(values) + 8)
DYNAMIC = d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
def launches(f, threads, dynamic):
    code = d.cuLaunchKernel(f, 1, 1, 1, threads, 1, 1, dynamic, 0, ctypes.addressof(pointers), 0)[0]
    return int(code) == 0 and int(d.cuCtxSynchronize()[0]) == 0
def occupancy(f, threads, dynamic): return ok(d.cuOccupancyMaxActiveBlocksPerMultiprocessor(f, threads, dynamic))
ok(d.cuInit(0))
random.seed(6); DIRECTIVES = ["", ".maxntid 16", ".maxntid 100", ".maxntid 256", ".maxntid 352", ".maxntid 1024", ".minnctapersm 2 .maxntid 512"]
def kernels():
    for device in range(ok(d.cuDeviceGetCount())):
        ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(device))))
        optin = ok(d.cuDeviceGetAttribute(d.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device))
        for directive in DIRECTIVES:
            for registers, shared in ((1, 0), (70, 5000), (150, 48 << 10), (random.randrange(1, 300), random.randrange(48 << 10))):
                f = kernel(registers, shared, directive)
                if random.random() < .5: ok(d.cuFuncSetAttribute(f, DYNAMIC, random.randrange(0, optin - max(shared, 1))))
                yield f, optin
"""
MODELS = "v100,t4,a100,h100"


def test_a_block_that_launches_is_never_of_occupancy_0_and_one_that_does_not_always_is() -> None:
    code = """seen = {True: 0, False: 0}
for f, optin in kernels():
    for threads, dynamic in itertools.product((1, 16, 31, 100, 256, 352, 353, 513, 1024), (0, 1, 48 << 10, (48 << 10) + 1, random.randrange(optin), optin)):
        runs, fit = launches(f, threads, dynamic), occupancy(f, threads, dynamic); seen[runs] += 1
        flags = ok(d.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(f, threads, dynamic, 0))
        assert runs == (fit > 0) and flags == fit, (threads, dynamic, runs, fit)
print(seen[True] > 1000, seen[False] > 1000)"""
    assert out(KERNELS + code, models=MODELS) == "True True"


def test_what_is_left_for_a_number_of_blocks_lets_so_many_be_there() -> None:
    code = """seen = 0
for f, optin in kernels():
    for threads, blocks in itertools.product((1, 64, 100), (1, 2, 3, 8, 16, 32)):
        left = ok(d.cuOccupancyAvailableDynamicSMemPerBlock(f, blocks, threads))
        if not left or not launches(f, threads, 0) or occupancy(f, threads, 0) < blocks: continue
        seen += 1; assert launches(f, threads, left) and occupancy(f, threads, left) >= blocks, (threads, blocks, left)
print(seen > 200)"""
    assert out(KERNELS + code, models=MODELS) == "True"


@pytest.mark.parametrize("limit", [0, 20, 300])
def test_the_best_block_size_launches_and_is_within_the_limit(limit: int) -> None:
    code = f"""limit = {limit}
for f, optin in kernels():
    most = ok(d.cuFuncGetAttribute(d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, f))
    grid, block = ok(d.cuOccupancyMaxPotentialBlockSize(f, None, 0, limit))
    assert launches(f, block, 0) and grid > 0 and block <= min(most, limit or 1024), (grid, block)
    registers = ok(d.cuFuncGetAttribute(d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, f))
    assert registers * -(-most // 32) * 32 <= 65536
print("all")"""
    assert out(KERNELS + code, models=MODELS) == "all"
