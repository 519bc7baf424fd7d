"""Physical memory apart from its addresses, and managed memory, in process: no shim, no worker."""

from __future__ import annotations

import pytest

from tests.native.simgpu_driver.test_driver import out, run
from tests.remoting.virtual_memory import FAULT, FAULTS, MEMORY, PROGRAMS


@pytest.mark.parametrize("what", PROGRAMS)
def test_virtual_memory_is_as_documented(what: str) -> None:
    code, says = PROGRAMS[what]
    assert out(MEMORY + code).splitlines() == says


@pytest.mark.parametrize("what", FAULTS)
def test_an_access_where_nothing_may_be_touched_is_named(what: str) -> None:
    done = run(MEMORY + what + FAULT)
    assert done.stdout.splitlines()[-1] == "CUDA_ERROR_ILLEGAL_ADDRESS", done.stderr
    assert FAULTS[what] in done.stdout


def test_managed_memory_is_one_memory_for_both() -> None:
    code = """begin(); A = d.CUdevice_attribute; print(*(ok(d.cuDeviceGetAttribute(a, 0)) for a in (A.CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, A.CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)))
p = int(ok(d.cuMemAllocManaged(4096, d.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL))); host = (ctypes.c_uint32 * 1024).from_address(p); host[3] = 41
f = load(ADD, b"add"); launch(f, p, 1024); ok(d.cuCtxSynchronize()); print(host[3], host[4])
P = d.CUpointer_attribute; print(ok(d.cuPointerGetAttribute(P.CU_POINTER_ATTRIBUTE_IS_MANAGED, p)), int(ok(d.cuPointerGetAttribute(P.CU_POINTER_ATTRIBUTE_HOST_POINTER, p))) == p)
ok(d.cuMemFree(p)); q = ok(d.cuMemAlloc(4096)); print(ok(d.cuPointerGetAttribute(P.CU_POINTER_ATTRIBUTE_IS_MANAGED, q)))"""
    assert out(code).splitlines() == ["1 0", "42 1", "True True", "False"]


def test_the_host_reaches_what_is_allocated_and_no_mapping() -> None:
    """Where it reads and writes what the device does: what copies over a network go straight to."""
    code = """P = d.CUpointer_attribute.CU_POINTER_ATTRIBUTE_HOST_POINTER
p = int(ok(d.cuMemAlloc(4096))); ok(d.cuMemsetD8(p, 7, 4096)); ok(d.cuCtxSynchronize()); at = int(ok(d.cuPointerGetAttribute(P, p + 100)))
print(at - p, bytes((ctypes.c_char * 8).from_address(at)).hex()); ctypes.memset(at, 8, 8); print(set(read(at, 8)))
q = reserve(); mapped(q); print(name(d.cuPointerGetAttribute(P, q)))"""
    assert out(MEMORY + code).splitlines() == ["100 0707070707070707", "{8}", "INVALID_VALUE"]


VARIABLE = r"""
module = ok(d.cuModuleLoadData(b'''.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .attribute(.managed) .u32 counter = 40;
.visible .global .align 4 .u32 other;
.visible .entry count() { .reg .b32 %r<2>; ld.global.u32 %r1, [counter]; add.u32 %r1, %r1, 1; st.global.u32 [counter], %r1; ret; }
\0'''))
ok(d.cuLaunchKernel(ok(d.cuModuleGetFunction(module, b"count")), 1,1,1, 1,1,1, 0, 0, 0, 0)); ok(d.cuCtxSynchronize())
"""


def test_a_managed_variable_is_the_program_s_too() -> None:
    code = """P = d.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED
p, n = ok(d.cuModuleGetGlobal(module, b"counter")); print(n, ctypes.c_uint32.from_address(int(p)).value, ok(d.cuPointerGetAttribute(P, p)))
print(ok(d.cuPointerGetAttribute(P, ok(d.cuModuleGetGlobal(module, b"other"))[0])))"""
    assert out("begin()" + VARIABLE + code).splitlines() == ["4 41 True", "False"]
