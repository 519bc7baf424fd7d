"""Calls that came with CUDA 13, asked by name: the headers that the bindings were made from do not have them."""

from __future__ import annotations

import asyncio

from tests.remoting.conftest import Worker, worker

RAW = """
begin(); cuda = ctypes.CDLL("libcuda.so.1"); null = ctypes.c_void_p()
def raw(name, *arguments): return getattr(cuda, name)(*arguments)
def handle(value): return ctypes.c_void_p(int(value))
class Location(ctypes.Structure): _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]
DEVICE, HOST = Location(1, 0), Location(2, 0)
"""


def _lines(code: str) -> list[str]:
    async def story() -> list[str]:
        one: Worker
        async with worker() as one:
            done = await one.run(RAW + code)
            assert done.returncode == 0, done.stderr
            return done.stdout.splitlines()

    return asyncio.run(story())


def test_a_host_function_says_how_it_is_waited_for() -> None:
    assert _lines("""seen = []; function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(seen.append); s = ok(d.cuStreamCreate(0))
print([raw("cuLaunchHostFunc_v2", handle(s), function, ctypes.c_void_p(7 + mode), mode) for mode in (0, 1, 2)]); ok(d.cuStreamSynchronize(s)); print(seen)
found = ctypes.c_void_p(); print(raw("cuGetProcAddress_v2", b"cuLaunchHostFunc", ctypes.byref(found), 13050, ctypes.c_uint64(0), None))
again = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 3, ctypes.c_uint)(found.value)
print(again(int(s), ctypes.cast(function, ctypes.c_void_p), 9, 0)); ok(d.cuStreamSynchronize(s)); print(seen)
""") == [
        "[0, 0, 1]",
        "[7, 8]",
        "0",
        "0",
        "[7, 8, 9]",
    ]


def test_the_parameters_of_a_kernel_are_counted() -> None:
    assert _lines("""n = ctypes.c_size_t(99); store, none = handle(load(STORE_U32, b"store")), b'''.version 7.0
.target sm_70
.address_size 64
.visible .entry none() { ret; }'''
library = ok(d.cuLibraryLoadData(none + b"\\0", [], [], 0, [], [], 0)); kernel = handle(ok(d.cuLibraryGetKernel(library, b"none")))
print(raw("cuFuncGetParamCount", store, ctypes.byref(n)), n.value); print(raw("cuKernelGetParamCount", kernel, ctypes.byref(n)), n.value)
print(raw("cuFuncGetParamCount", store, None), raw("cuFuncGetParamCount", ctypes.c_void_p(4096), ctypes.byref(n)))
""") == ["0 2", "0 0", "1 400"]


def test_pools_are_found_by_where_their_memory_is() -> None:
    assert _lines("""pool = ctypes.c_void_p(); p = ctypes.byref; PINNED, MANAGED = 1, 2
print(raw("cuMemGetDefaultMemPool", p(pool), p(DEVICE), PINNED), pool.value == int(ok(d.cuDeviceGetDefaultMemPool(0))))
properties = d.CUmemPoolProps(); properties.allocType = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
properties.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE; mine = ok(d.cuMemPoolCreate(properties))
print(raw("cuMemSetMemPool", p(DEVICE), PINNED, handle(mine)), int(ok(d.cuDeviceGetMemPool(0))) == int(mine))
print(raw("cuMemGetMemPool", p(pool), p(DEVICE), PINNED), pool.value == int(mine))
print(*(raw("cuMemGetDefaultMemPool", p(pool), *which) for which in ((p(HOST), PINNED), (p(DEVICE), MANAGED), (None, PINNED), (p(Location(1, 5)), PINNED))))
""") == ["0 True", "0 True", "0 True", "801 801 1 101"]


def test_managed_memory_is_prefetched_by_the_batch() -> None:
    assert _lines("""s = ok(d.cuStreamCreate(0)); n = 3; A = ctypes.c_uint64 * n; wrong = 0
at = [int(ok(d.cuMemAllocManaged(4096, d.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL))) for _ in range(n)]; sizes = A(*[4096] * n)
def batch(first, count=n, stream=s, flags=0): return raw("cuMemPrefetchBatchAsync", A(*at), sizes, ctypes.c_size_t(count), (Location * 2)(DEVICE, HOST), A(*first), ctypes.c_size_t(2), ctypes.c_ulonglong(flags), handle(stream))
print(batch((0, 2)), batch((0, 0)), batch((1, 2)), batch((0, 3)), batch((0, 2), 0), batch((0, 2), stream=0), batch((0, 2), flags=1))
last = d.CUmem_range_attribute.CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION; ok(d.cuStreamSynchronize(s))
print(*(int(ok(d.cuMemRangeGetAttribute(4, last, p, 4096))) for p in at))
""") == ["0 1 1 1 1 1 1", "0 0 -1"]


def test_a_copy_with_attributes_arrives() -> None:
    assert _lines("""host, back = (ctypes.c_uint32 * 4)(1, 2, 3, 4), (ctypes.c_uint32 * 4)(); a = int(ok(d.cuMemAlloc(16))); s = ok(d.cuStreamCreate(0)); attributes = (ctypes.c_char * 64)()
U = ctypes.c_uint64; print(raw("cuMemcpyWithAttributesAsync", U(a), U(ctypes.addressof(host)), ctypes.c_size_t(16), attributes, handle(s)), raw("cuMemcpyWithAttributesAsync", U(a), U(a), ctypes.c_size_t(16), None, handle(s)))
first = (ctypes.c_size_t * 1)(0); sizes = (ctypes.c_size_t * 1)(8); one = ctypes.c_size_t(1)
print(raw("cuMemcpyBatchAsync_v2", (U * 1)(ctypes.addressof(back)), (U * 1)(a), sizes, one, attributes, first, one, handle(s))); ok(d.cuStreamSynchronize(s)); print(list(back))
op = d.CUDA_MEMCPY3D_BATCH_OP(); op.src.type = op.dst.type = d.CUmemcpy3DOperandType.CU_MEMCPY_OPERAND_TYPE_POINTER
op.src.op.ptr.ptr, op.dst.op.ptr.ptr = d.CUdeviceptr(a), d.CUdeviceptr(ctypes.addressof(back))
op.extent.width, op.extent.height, op.extent.depth = 12, 1, 1; op.srcAccessOrder = d.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
at = ctypes.c_void_p(op.getPtr()); none, flag = ctypes.c_ulonglong(0), ctypes.c_ulonglong(1)
print(raw("cuMemcpy3DWithAttributesAsync", at, none, handle(s)), raw("cuMemcpy3DWithAttributesAsync", at, flag, handle(s)), raw("cuMemcpy3DWithAttributesAsync", None, none, handle(s))); ok(d.cuStreamSynchronize(s)); print(list(back))
op.extent.width = 16; print(raw("cuMemcpy3DBatchAsync_v2", one, at, none, handle(s))); ok(d.cuStreamSynchronize(s)); print(list(back))
""") == ["0 1", "0", "[1, 2, 0, 0]", "0 1 1", "[1, 2, 3, 0]", "0", "[1, 2, 3, 4]"]


def test_contexts_are_named_in_calls() -> None:
    assert _lines("""device = ctypes.c_int(-1); context = handle(ok(d.cuCtxGetCurrent())); wild = ctypes.c_void_p(4096)
print(raw("cuCtxSynchronize_v2", context), raw("cuCtxSynchronize_v2", None), raw("cuCtxSynchronize_v2", wild))
print(raw("cuCtxGetDevice_v2", ctypes.byref(device), context), device.value, raw("cuCtxGetDevice_v2", ctypes.byref(device), wild))
ok(d.cuCtxPopCurrent()); print(raw("cuCtxGetDevice_v2", ctypes.byref(device), context), raw("cuCtxGetDevice_v2", ctypes.byref(device), None))
""") == ["0 0 201", "0 0 201", "0 201"]


def test_the_version_and_the_attributes_are_those_of_cuda_13() -> None:
    # What the model has not is 0, as NVIDIA's driver says; 9999 is nothing's number.
    assert _lines("""value = ctypes.c_int(-1); print(ok(d.cuDriverGetVersion()))
print([raw("cuDeviceGetAttribute", ctypes.byref(value), number, 0) for number in (*range(1, 162), 9999)] == [0] * 161 + [1])
print(raw("cuDeviceGetAttribute", ctypes.byref(value), 144, 0), value.value)
""") == ["13000", "True", "0 0"]
