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
    """Check that the host reads and writes what the device does; copies over a network go straight there."""
    code = """P = d.CUpointer_attribute.CU_POINTER_ATTRIBUTE_HOST_POINTER
p = int(ok(d.cuMemAlloc(4096))); ok(d.cuMemsetD8(p, 7, 4096)); ok(d.cuCtxSynchronize()); at = int(ok(d.cuPointerGetAttribute(P, p + 100)))
print(at - p, bytes((ctypes.c_char * 8).from_address(at)).hex()); ctypes.memset(at, 8, 8); print(set(read(at, 8)))
q = reserve(); mapped(q); print(name(d.cuPointerGetAttribute(P, q)))"""
    assert out(MEMORY + code).splitlines() == ["100 0707070707070707", "{8}", "INVALID_VALUE"]


# Programs on host memory that the device reaches, which must say the same in process and on a slice: each with its lines.
_HOST_MEMORY = """
begin(); f = load(ADD, b"add"); M = 2; P = d.CUpointer_attribute
def name(result): return result[0].name.removeprefix("CUDA_ERROR_")
def mapped(n):
    h = int(ok(d.cuMemHostAlloc(4 * n, M))); return h, int(ok(d.cuMemHostGetDevicePointer(h, 0))), (ctypes.c_uint32 * n).from_address(h)
def add(p, n): assert launch(f, p, n) == 0; ok(d.cuCtxSynchronize())
"""
HOST_MEMORY = {
    "pinned memory, by the address that it has": (
        """for n, make in ((1, d.cuMemAllocHost), (1000, lambda n: d.cuMemHostAlloc(n, 0)), (1_000_000, lambda n: d.cuMemHostAlloc(n, 4))):
    h = int(ok(make(4 * n))); a = (ctypes.c_uint32 * n).from_address(h); a[:] = range(n); add(h, n); assert a[:] == list(range(1, n + 1))
    middle = n // 2; a[0] = 7; add(h + 4 * middle, n - middle); assert (a[0], a[n - 1]) == (7 if middle else 8, n + 1 if middle else 8)
    print(int(ok(d.cuMemHostGetDevicePointer(h, 0))) - h, int(ok(d.cuPointerGetAttribute(P.CU_POINTER_ATTRIBUTE_DEVICE_POINTER, h + 2))) - h, int(ok(d.cuPointerGetAttribute(P.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, h))))
    ok(d.cuMemFreeHost(h)); print(name(d.cuMemFreeHost(h)))""",
        ["0 2 1", "INVALID_VALUE"] * 3,
    ),
    "both write it in turn": (
        """print(ok(d.cuDeviceGetAttribute(d.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 0)))
for n in (1, 1000, 300_000):
    h, p, a = mapped(n); assert not any(a); a[:] = range(n); add(p, n); assert a[:] == list(range(1, n + 1))
    a[0] = a[n - 1] = 7; add(p, n); assert (a[0], a[n // 2], a[n - 1]) == (8, n // 2 + 2 if n > 1 else 8, 8); ok(d.cuMemFreeHost(h))
print("done")""",
        ["1", "done"],
    ),
    "copies take it for either": (
        """n = 50_000; h, p, a = mapped(n); q = int(ok(d.cuMemAlloc(4 * n))); a[:] = range(n)
ok(d.cuMemcpyHtoD(q, h, 4 * n)); add(q, n); ok(d.cuMemcpyDtoH(h, q, 4 * n)); print(a[:] == list(range(1, n + 1)))
add(q, n); ok(d.cuMemcpyDtoD(p, q, 4 * n)); ok(d.cuCtxSynchronize()); print(a[:] == list(range(2, n + 2)))
ok(d.cuMemsetD32(p, 9, n)); ok(d.cuCtxSynchronize()); print(set(a)); ok(d.cuMemcpy(q, h, 4 * n)); ok(d.cuMemsetD32(p, 0, n)); ok(d.cuMemcpyDtoHAsync(h, q, 4 * n, 0)); ok(d.cuCtxSynchronize()); print(set(a))""",
        ["True", "True", "{9}", "{9}"],
    ),
    "what is told of it": (
        """h, p, a = mapped(100); print(*(int(ok(d.cuPointerGetAttribute(x, h + 8))) for x in (P.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, P.CU_POINTER_ATTRIBUTE_IS_MANAGED, P.CU_POINTER_ATTRIBUTE_MAPPED)))
print(*(int(ok(d.cuPointerGetAttribute(x, h + 8))) - h for x in (P.CU_POINTER_ATTRIBUTE_HOST_POINTER, P.CU_POINTER_ATTRIBUTE_DEVICE_POINTER)), p - h, ok(d.cuMemHostGetFlags(h)))
device = d.CUdevice(0); A = d.CUmem_advise.CU_MEM_ADVISE_SET_READ_MOSTLY; print(name(d.cuMemFree(h)), name(d.cuMemAdvise(h, 400, A, device)), name(d.cuMemPrefetchAsync(h, 400, device, 0)))
print(name(d.cuMemHostGetDevicePointer(4096, 0)), name(d.cuMemHostGetDevicePointer(h, 1)), name(d.cuMemHostAlloc(64, 8)))
print(d.cuMemFreeHost(h)[0].name, name(d.cuMemFreeHost(h)), name(d.cuMemHostGetDevicePointer(h, 0)), name(d.cuMemHostAlloc(1 << 44, M)))""",
        [
            "1 0 1",
            "8 8 0 2",
            "INVALID_VALUE INVALID_VALUE INVALID_VALUE",
            "INVALID_VALUE INVALID_VALUE INVALID_VALUE",
            "CUDA_SUCCESS INVALID_VALUE INVALID_VALUE OUT_OF_MEMORY",
        ],
    ),
}


def host_memory(what: str) -> tuple[str, list[str]]:
    code, lines = HOST_MEMORY[what]
    return _HOST_MEMORY + code, lines


@pytest.mark.parametrize("what", HOST_MEMORY)
def test_the_device_reaches_host_memory_that_was_allocated_for_it(what: str) -> None:
    code, lines = host_memory(what)
    assert out(code).splitlines() == lines


NOTHING = """
begin(); host = ctypes.create_string_buffer(8); p = int(ok(d.cuMemAlloc(16)))
for s in (d.CUstream(0), d.CUstream(1), ok(d.cuStreamCreate(0))):
    for at in (0, p, p + 16):
        for result in (d.cuMemcpyHtoDAsync(at, host, 0, s), d.cuMemcpyDtoHAsync(host, at, 0, s), d.cuMemcpyDtoDAsync(at, p, 0, s), d.cuMemcpyDtoDAsync(p, at, 0, s), d.cuMemsetD8Async(at, 1, 0, s), d.cuMemsetD32Async(at, 1, 0, s),
                       d.cuMemsetD2D8Async(at, 8, 1, 0, 4, s), d.cuMemsetD2D8Async(at, 8, 1, 4, 0, s), d.cuMemFreeAsync(0, s), d.cuMemFree(0), d.cuMemFreeHost(0)):
            assert int(result[0]) == 0 and int(d.cuCtxSynchronize()[0]) == 0, (s, at, result)
print("done")"""


def test_to_copy_or_fill_nothing_is_no_error_wherever() -> None:
    assert out(NOTHING) == "done"


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
