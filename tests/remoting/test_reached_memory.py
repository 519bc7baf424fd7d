"""Memory that a program maps itself and that the processor may touch, as PyTorch's plugin asks for on simulated devices."""

from __future__ import annotations

import asyncio

import pytest

from tests.remoting.conftest import AT_ADDRESSES_OF_THE_PROGRAM, worker
from tests.remoting.test_managed import MANAGED
from tests.remoting.virtual_memory import MEMORY

pytestmark = AT_ADDRESSES_OF_THE_PROGRAM

REACHED = """
def reach(wanted=1): ctypes.CDLL("libcuda.so.1").gpukernel_reach_mapped(wanted)
def array(address, n): return np.ctypeslib.as_array((ctypes.c_uint32 * n).from_address(address))
N = U // 4  # numbers in a unit
def one_kind(*values): print(*(int(v[0]) if (v == v[0]).all() else "differ" for v in values))
"""


def says(code: str, lines: list[str], **options: int) -> None:
    async def story() -> None:
        async with worker(**options) as one:
            done = await one.run(MANAGED + MEMORY + REACHED + code)
            assert done.stdout.splitlines() == lines, (done.stdout, done.stderr)
            assert done.returncode == 0, done.stderr
            async with asyncio.timeout(30):
                while (await one.handle.status()).memory_used_bytes:
                    await asyncio.sleep(0.02)

    asyncio.run(story())


def test_neighbouring_mappings_are_one_array_to_the_processor_to_kernels_and_to_copies() -> None:
    code = """
reach(); a = reserve(64 * U)
for i in (1, 0, 3, 2): mapped(a + i * U)  # to the left, apart, and between
x = array(a, 4 * N); one_kind(x); x[:] = 5; add(a, 4 * N); wait(); one_kind(x); x += 1; add(a, 4 * N); wait(); one_kind(x)
h = np.full(2 * N, 90, np.uint32); ok(d.cuMemcpyHtoD(a + U + U // 2, h.ctypes.data, h.nbytes)); add(a, 4 * N); wait()
one_kind(x[:N + N // 2], x[N + N // 2:3 * N + N // 2], x[3 * N + N // 2:])
out = np.zeros(4 * N, np.uint32); ok(d.cuMemcpyDtoH(out.ctypes.data, a, out.nbytes)); print((out == x).all())
ok(d.cuMemcpyDtoD(a, a + 2 * U, 2 * U)); print((x[:2 * N] == out[2 * N:]).all())
mapped(a + 4 * U, 3 * U); y = array(a, 7 * N); ok(d.cuMemsetD32(a + 3 * U, 7, 2 * N)); y[5 * N:] = 8; add(a, 7 * N); wait(); one_kind(y[3 * N:5 * N], y[5 * N:])
"""
    says(code, ["0", "6", "8", "9 91 9", "True", "True", "8 9"])


def test_what_is_unmapped_is_gone_and_what_is_around_stays() -> None:
    code = """
reach(); a = reserve(8 * U); handles = [mapped(a + i * U) for i in range(5)]; x = array(a, 5 * N); x[:] = np.arange(5 * N); add(a, 5 * N); x[0] += 1
def give(i): ok(d.cuMemUnmap(a + i * U, U)); ok(d.cuMemRelease(handles[i]))
before = free(); give(2); print((free() - before) // U); add(a, 2 * N); wait(); expected = np.arange(5 * N) + 1
print(x[0], (x[1:2 * N] == expected[1:2 * N] + 1).all(), (x[3 * N:] == expected[3 * N:]).all())
give(0); give(4); print((free() - before) // U); add(a + 3 * U, N); add(a + U, N); wait(); print((x[N:2 * N] == expected[N:2 * N] + 2).all(), (x[3 * N:4 * N] == expected[3 * N:4 * N] + 1).all())
handles[2] = mapped(a + 2 * U); one_kind(x[2 * N:3 * N]); add(a + U, 3 * N); wait(); print((x[3 * N:4 * N] == expected[3 * N:4 * N] + 2).all()); one_kind(x[2 * N:3 * N])
for i in (1, 2, 3): give(i)
print((free() - before) // U, name(d.cuMemAddressFree(a, 8 * U))); b = reserve(8 * U, 0, a); mapped(b); one_kind(array(b, N))
"""
    says(code, ["1", "3 True True", "3", "True True", "0", "True", "1", "5 SUCCESS", "0"])


def test_to_the_driver_it_is_memory_of_the_device_as_it_was_asked_for() -> None:
    code = """
reach(); a = reserve(4 * U); mapped(a, U); mapped(a + U, 2 * U); array(a, 3 * N)[:] = 3
print([int(x) for x in ok(d.cuMemGetAddressRange(a + U + 5))] == [a + U, 2 * U], int(ok(d.cuPointerGetAttribute(P.CU_POINTER_ATTRIBUTE_IS_MANAGED, a))))
print(name(d.cuMemFree(a)), name(d.cuMemPrefetchAsync_v2(a, U, place(), 0, 0)), int(ok(d.cuMemGetAccess(place(), a))))
"""
    says(code, ["True 0", "INVALID_VALUE INVALID_VALUE 3"])


def test_what_was_there_before_is_fetched() -> None:
    code = """
h = create(); a = reserve(4 * U); mapped(a, U, h); ok(d.cuMemsetD32(a, 6, N)); early = create(); reach()
ok(d.cuMemSetAccess(a, U, access(RW), 1)); x = array(a, N); one_kind(x); x += 1; add(a, N); wait(); one_kind(x)
mapped(a + U, U, early); y = array(a, 2 * N); y[N:] = 8; add(a, 2 * N); wait(); one_kind(y[:N], y[N:])
"""
    says(code, ["6", "8", "9 9"])


def test_a_second_mapping_and_sharing_are_refused_by_name() -> None:
    code = """
reach(); a = reserve(8 * U); h = mapped(a); print(name(d.cuMemMap(a + U, U, 0, h, 0))); ok(d.cuMemUnmap(a, U)); print(name(d.cuMemMap(a, U, 0, h, 0)))
k = mapped(a + U); print(name(d.cuMemSetAccess(a + U, U, access(RO), 1)), name(d.cuMemExportToShareableHandle(k, d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)))
array(a + U, N)[:] = 4; add(a + U, N); wait(); one_kind(array(a + U, N)); reach(0); b = mapped(a + 2 * U, U); ok(d.cuMemsetD32(a + 2 * U, 1, N)); print(set(read(a + 2 * U + U - 4, 4)), int(array(a + U, N)[0]))
"""
    refused = "NOT_SUPPORTED"
    says(code, [refused, refused, f"{refused} {refused}", "5", "{0, 1} 5"])


@pytest.mark.parametrize("earlier", [0, 1])
def test_a_device_that_is_reset_leaves_nothing(earlier: int) -> None:
    """Also where the call tells of an earlier one's error: the device is reset, and the program was not."""
    code = (
        f"""
small = ok(d.cuMemAlloc(4)); reach(); a = reserve(4 * U); mapped(a, 2 * U); array(a, 2 * N)[:] = 1; m, _ = managed(100)
if {earlier}: ok(d.cuMemsetD8(small, 1, 64 << 20))
print(name(d.cuDevicePrimaryCtxReset(0)))
"""
        + """
ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(0))))
d.cuMemFree(m); print(name(d.cuCtxSynchronize())); b = reserve(4 * U, 0, a); print(a == b)
mapped(b, 2 * U); x = array(b, 2 * N); one_kind(x); kernel = load(ADD_ONE, b"add"); add(b, 2 * N); wait(); one_kind(x)
"""
    )
    says(code, ["INVALID_VALUE" if earlier else "SUCCESS", "INVALID_VALUE", "True", "0", "1"])


@pytest.mark.parametrize("size", [1 << 30, 200 << 30])
def test_a_range_may_be_longer_than_any_memory(size: int) -> None:
    code = f"""
reach(); a = reserve({size}); mapped(a + {size} - U); x = array(a + {size} - U, N); x[-1] = 5; add(a + {size} - U, N); wait(); print(x[0], x[-1])
"""
    says(code, ["1 6"])
