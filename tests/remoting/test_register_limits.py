"""Limits on a thread's registers: what a program asks its compiler for holds for the kernels that do not bound themselves."""

from __future__ import annotations

import asyncio

from tests.remoting.conftest import worker

LIMITS = r"""
from cuda.bindings import driver as d
import numpy as np
def ok(result): assert result[0] == 0, result[0]; return result[1] if len(result) == 2 else result[1:]
ok(d.cuInit(0)); ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(0))))
MANY = ".param .u64 to) %s { .reg .u32 %%r<80>; .reg .u64 %%rd1; ld.param.u64 %%rd1, [to]; " + " ".join(f"ld.global.u32 %%r{n}, [%%rd1+{4 * n}];" for n in range(64)) + " mov.u32 %%r70, 0; " + " ".join(f"add.u32 %%r70, %%r70, %%r{n};" for n in range(64)) + " st.global.u32 [%%rd1], %%r70; ret; }\n"
PTX = (".version 7.0\n.target sm_70 // .entry {\n.address_size 64\n/* .entry k( { */ .file 1 \".entry {\"\n"
    + ".visible .entry plain(" + MANY % "" + ".visible .entry own(" + MANY % ".maxnreg 40" + ".visible .entry bounds(" + MANY % ".maxntid 256, 1, 1"
    + ".visible .func f() { .reg .u32 %r; mov.u32 %r, 1; ret; }\n").encode() + b"\0"
OPTION = [d.CUjit_option.CU_JIT_MAX_REGISTERS]
def counts(module): return [ok(d.cuFuncGetAttribute(d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, ok(d.cuModuleGetFunction(module, name)))) for name in (b"plain", b"own", b"bounds")]
def total(module):
    a = np.arange(64, dtype=np.uint32); p = ok(d.cuMemAlloc(256)); ok(d.cuMemcpyHtoD(p, a.ctypes.data, 256)); v = np.array([int(p)], np.uint64); ps = np.array([v.ctypes.data], np.uint64)
    ok(d.cuLaunchKernel(ok(d.cuModuleGetFunction(module, b"plain")), 1,1,1, 1,1,1, 0, 0, ps.ctypes.data, 0)); ok(d.cuMemcpyDtoH(a.ctypes.data, p, 256)); return int(a[0])
"""


def says(code: str, lines: list[str]) -> None:
    """Run `code` on a worker of its own, and expect it to print `lines`."""

    async def story() -> None:
        async with worker() as one:
            done = await one.run(LIMITS + code)
            assert done.stdout.splitlines() == lines, (done.stdout, done.stderr)
            assert done.returncode == 0, done.stderr

    asyncio.run(story())


def test_kernels_without_bounds_of_their_own_have_no_more_registers_than_the_option_says() -> None:
    code = """
free = counts(ok(d.cuModuleLoadData(PTX))); print(free[0], free[1], free[2] > 64)
module = ok(d.cuModuleLoadDataEx(PTX, 1, OPTION, [24])); print(counts(module) == [24, 40, free[2]], total(module))
print(counts(ok(d.cuModuleLoadDataEx(PTX, 1, OPTION, [200]))) == free)
library = ok(d.cuLibraryLoadData(PTX, OPTION, [32], 1, [], [], 0)); print(ok(d.cuKernelGetAttribute(d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, ok(d.cuLibraryGetKernel(library, b"plain")), 0)))
"""
    says(code, ["64 40 True", f"True {sum(range(64))}", "True", "32"])


def test_the_linker_s_option_limits_what_is_linked() -> None:
    code = """
link = ok(d.cuLinkCreate(1, OPTION, [38])); ok(d.cuLinkAddData(link, d.CUjitInputType.CU_JIT_INPUT_PTX, PTX, len(PTX), b"a", 0, [], []))
image, size = ok(d.cuLinkComplete(link)); module = ok(d.cuModuleLoadData(image)); print(counts(module)[:2], total(module))
"""
    says(code, [f"[38, 40] {sum(range(64))}"])
