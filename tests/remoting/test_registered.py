"""Registered memory on a slice: the program's own pages, which kernels reach at an address of the device's."""

from __future__ import annotations

import asyncio

import pytest

from tests.remoting.conftest import AT_ADDRESSES_OF_THE_PROGRAM, worker
from tests.remoting.test_managed import MANAGED

pytestmark = AT_ADDRESSES_OF_THE_PROGRAM

REGISTERED = (
    MANAGED
    + r"""
D = 2  # CU_MEMHOSTREGISTER_DEVICEMAP
def own(n, flags=D, offset=12):
    whole = np.full(4 * n + 8192, 0xAB, np.uint8); a = whole[offset : offset + 4 * n].view(np.uint32); a[:] = np.arange(n); h = a.ctypes.data
    ok(d.cuMemHostRegister(h, 4 * n, flags)); return whole, a, h, int(ok(d.cuMemHostGetDevicePointer(h, 0)))
def around(whole, n, offset=12): return set(whole[:offset].tolist() + whole[offset + 4 * n:].tolist()) == {0xAB}
def free(): return ok(d.cuMemGetInfo())[0]
SPIN = b'''.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 to, .param .u64 flag) { .reg .b64 %rd<4>; .reg .b32 %r<4>; .reg .pred %p; ld.param.u64 %rd1, [to]; ld.param.u64 %rd2, [flag];
again: ld.volatile.global.u32 %r1, [%rd2]; setp.eq.u32 %p, %r1, 0; @%p bra again; mov.u32 %r2, 77; st.global.u32 [%rd1], %r2; ret; }
'''
"""
)


def says(
    code: str, lines: list[str], kinds: tuple[str, ...] = ("unix", "tcp"), warned: str = "", **options: int
) -> None:
    """Run `code` with a worker of its own over each kind of connection, and expect it to print `lines`."""

    async def story() -> None:
        for kind in kinds:
            async with worker(**options) as one:
                done = await one.run(REGISTERED + code, kind=kind)
                assert done.stdout.splitlines() == lines, (kind, done.stdout, done.stderr)
                assert done.returncode == 0, done.stderr
                assert done.stderr == warned

    asyncio.run(story())


def test_both_sides_see_what_the_other_wrote() -> None:
    """At addresses of no alignment, and without touching what lies around."""
    code = """
for n in (1, 10, 400_000):
    whole, a, h, p = own(n); assert not h <= p < h + 4 * n
    for i in range(3): add(p, n); wait(); a += 10
    add(p, n); add(p, n); wait(); print((a == np.arange(n) + 35).all(), around(whole, n)); add(p, n); ok(d.cuMemHostUnregister(h)); print(a[n - 1] == n + 35, around(whole, n))
"""
    says(code, ["True True"] * 6)


WAITS = {
    "a stream": "ok(d.cuStreamSynchronize(s))",
    "a stream by polling": "while d.cuStreamQuery(s)[0]: pass",
    "an event": "ok(d.cuEventSynchronize(e))",
    "an event by polling": "while d.cuEventQuery(e)[0]: pass",
    "a host function": "f = CB(lambda _: seen.append(int(a[0]))); ok(d.cuLaunchHostFunc(s, ctypes.cast(f, ctypes.c_void_p).value, 0))",
}


@pytest.mark.parametrize("wait", WAITS)
def test_kernels_results_are_there_after_each_way_to_wait(wait: str) -> None:
    """Another stream works on meanwhile, and is not waited for."""
    code = f"""
CB = ctypes.CFUNCTYPE(None, ctypes.c_void_p); seen = []
flag = int(ok(d.cuMemAlloc(8))); ok(d.cuMemsetD32(flag, 0, 2)); busy = ok(d.cuStreamCreate(1)); s = ok(d.cuStreamCreate(1)); e = ok(d.cuEventCreate(2)); writer = ok(d.cuStreamCreate(1))
whole, a, h, p = own(1000); spin = load(SPIN, b"spin"); v = ctypes.c_uint64(p + 3996), ctypes.c_uint64(flag); parameters = (ctypes.c_void_p * 2)(*map(ctypes.addressof, v))
ok(d.cuLaunchKernel(spin, 1,1,1, 1,1,1, 0, busy, ctypes.addressof(parameters), 0)); add(p, 500, s); ok(d.cuEventRecord(e, s))
{WAITS[wait]}
assert not seen or seen == [1]; print(a[0], a[499], a[500], a[999]); a[700] = 7
ok(d.cuMemsetD32Async(flag, 1, 1, writer)); ok(d.cuCtxSynchronize()); print(a[999], a[700], around(whole, 1000))
"""
    says(code, ["1 500 500 999", "77 7 True"], kinds=("unix",))


def test_copies_and_fills_take_either_address() -> None:
    code = """
n = 50_000; whole, a, h, p = own(n); q = int(ok(d.cuMemAlloc(4 * n)))
add(p, n); ok(d.cuMemcpyHtoD(q, h, 4 * n)); b = np.zeros(n, np.uint32); ok(d.cuMemcpyDtoH(b.ctypes.data, q, 4 * n)); print((b == np.arange(n) + 1).all(), (a == b).all())
a[:] = 3; ok(d.cuMemcpyDtoD(q, p, 4 * n)); ok(d.cuMemcpyDtoH(b.ctypes.data, q, 4 * n)); print(set(b.tolist()))
ok(d.cuMemsetD32(p, 9, n)); print(set(a.tolist())); ok(d.cuMemsetD32(q, 5, n)); ok(d.cuMemcpy(p, q, 4 * n)); print(set(a.tolist())); b[:] = 6; ok(d.cuMemcpyHtoD(p, b.ctypes.data, 4 * n)); print(set(a.tolist()))
s = ok(d.cuStreamCreate(1)); add(p, n, s); ok(d.cuMemcpyDtoHAsync(h, q, 40, s)); add(p, n, s); ok(d.cuStreamSynchronize(s)); print(set(a[:10].tolist()), set(a[10:].tolist()))
add(p, n, s); ok(d.cuMemcpyHtoDAsync(q, h, 4 * n, s)); ok(d.cuStreamSynchronize(s)); ok(d.cuMemcpyDtoH(b.ctypes.data, q, 4 * n)); print(set(b[10:].tolist()))
"""
    says(code, ["True True", "{3}", "{9}", "{5}", "{6}", "{6} {8}", "{9}"])


def test_what_both_sides_write_between_two_waits_is_kept() -> None:
    """Each its own elements, alternating: nothing of either is lost while a kernel works on the rest."""
    code = """
n = 100_000; whole, a, h, p = own(n); a[:] = 0; s = ok(d.cuStreamCreate(1)); t = ok(d.cuStreamCreate(1))
for i in range(1, 4):
    add(p, n // 2, s); a[n // 2 :: 2] = i; add(p + 2 * n, n // 2, t); ok(d.cuCtxSynchronize())
print(set(a[:n // 2].tolist()), set(a[n // 2 :: 2].tolist()), set(a[n // 2 + 1 :: 2].tolist()), around(whole, n))
"""
    says(code, ["{3} {4} {3} True"])


def test_it_counts_against_the_slice_from_the_first_time_on_that_its_device_address_is_asked_for() -> None:
    code = """
large = np.zeros(100 << 20, np.uint8); h = large.ctypes.data; before = free(); ok(d.cuMemHostRegister(h, large.size, D)); print(before - free()); q = int(ok(d.cuMemAlloc(4096))); ok(d.cuMemcpyHtoD(q, h, 4096)); ok(d.cuMemFree(q))
print(name(d.cuMemHostGetDevicePointer(h, 0))); ok(d.cuMemHostUnregister(h)); kept = [own(100) for _ in range(20)]; print((before - free()) >> 20, len({p for *_, p in kept}))
for _, a, h, p in kept: add(p, 100)
for _, a, h, _ in kept: ok(d.cuMemHostUnregister(h)); assert a[99] == 100
print(before - free())
"""
    refused = "gpukernel: registered memory that a kernel uses counts against the slice, which has no room for these 100 MiB.\n"
    says(code, ["0", "OUT_OF_MEMORY", "2 20", "0"], warned=refused, memory_mib=64)


def test_what_is_told_of_it() -> None:
    code = """
A = d.CUdevice_attribute; print(*(ok(d.cuDeviceGetAttribute(a, 0)) for a in (A.CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, A.CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, A.CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM)))
whole, a, h, p = own(1000); said = lambda at, *w: [int(ok(d.cuPointerGetAttribute(getattr(P, "CU_POINTER_ATTRIBUTE_" + x), at))) for x in w]
print(said(h + 8, "MEMORY_TYPE", "MAPPED", "IS_MANAGED"), said(p + 8, "MEMORY_TYPE", "MAPPED", "IS_MANAGED", "RANGE_SIZE"))
print([x - y for x, y in zip(said(h + 8, "HOST_POINTER", "DEVICE_POINTER") + said(p + 8, "HOST_POINTER", "DEVICE_POINTER"), (h, p, h, p))], int(ok(d.cuMemHostGetDevicePointer(h + 8, 0))) - p, int(ok(d.cuMemHostGetDevicePointer(h, 0))) - p)
print(name(d.cuMemFree(p)), name(d.cuMemFreeHost(h)), name(d.cuMemFreeHost(p)), name(d.cuMemHostUnregister(p)), name(d.cuMemHostUnregister(h + 8)), name(d.cuMemHostRegister(h + 8, 4, D)), name(d.cuMemHostRegister(h - 8, 12, 0)))
m = int(ok(d.cuMemHostAlloc(64, 2))); print(name(d.cuMemHostRegister(m, 64, 0)), name(d.cuMemHostRegister(h + 4000, 64, 16)), name(d.cuMemHostRegister(h + 4000, 64, 4)))
plain = np.zeros(10, np.uint32); x = plain.ctypes.data; ok(d.cuMemHostRegister(x, 40, 1)); print(said(x, "MAPPED"), name(d.cuPointerGetAttribute(P.CU_POINTER_ATTRIBUTE_DEVICE_POINTER, x))); y = int(ok(d.cuMemHostGetDevicePointer(x, 0))); print(said(x, "DEVICE_POINTER") == [y]); add(y, 10); wait(); print(plain.tolist())
ok(d.cuMemHostUnregister(h)); ok(d.cuMemHostUnregister(x)); ok(d.cuMemFreeHost(m)); print(name(d.cuMemHostUnregister(h)), name(d.cuMemHostGetDevicePointer(h, 0))); print(name(d.cuMemcpyDtoH(a.ctypes.data, p, 4)))
"""
    lines = ["1 1 0", "[1, 1, 0] [1, 1, 0, 4000]", "[8, 8, 8, 8] 8 0"]
    lines += [
        "INVALID_VALUE INVALID_VALUE INVALID_VALUE HOST_MEMORY_NOT_REGISTERED INVALID_VALUE HOST_MEMORY_ALREADY_REGISTERED HOST_MEMORY_ALREADY_REGISTERED"
    ]
    lines += [
        "HOST_MEMORY_ALREADY_REGISTERED INVALID_VALUE NOT_SUPPORTED",
        "[0] INVALID_VALUE",
        "True",
        str([1] * 10),
    ]
    lines += ["HOST_MEMORY_NOT_REGISTERED INVALID_VALUE", "INVALID_VALUE"]
    says(code, lines, kinds=("unix",))


def test_files_and_shared_mappings_are_reached() -> None:
    """Of a file that is mapped for reading, kernels read; without CU_MEMHOSTREGISTER_READ_ONLY it is refused."""
    code = """
import os, tempfile
f = tempfile.TemporaryFile(); f.write(bytes(range(256)) * 64); f.flush(); q = int(ok(d.cuMemAlloc(16384)))
shared = mmap.mmap(f.fileno(), 16384); a = np.frombuffer(shared, np.uint32); h = a.ctypes.data; ok(d.cuMemHostRegister(h, 16384, D)); p = int(ok(d.cuMemHostGetDevicePointer(h, 0)))
add(p, 4096); wait(); print(np.frombuffer(os.pread(f.fileno(), 8, 0), np.uint8).tolist()); ok(d.cuMemHostUnregister(h))
only = mmap.mmap(f.fileno(), 16384, prot=mmap.PROT_READ); b = np.frombuffer(only, np.uint32); h = b.ctypes.data; ok(d.cuMemHostRegister(h, 16384, D)); print(name(d.cuMemHostGetDevicePointer(h, 0))); ok(d.cuMemHostUnregister(h))
ok(d.cuMemHostRegister(h, 16384, D | 8)); p = int(ok(d.cuMemHostGetDevicePointer(h, 0))); ok(d.cuMemcpyDtoD(q, p, 16384)); add(q, 4096); c = np.zeros(4096, np.uint32); ok(d.cuMemcpyDtoH(c.ctypes.data, q, 16384)); print((c == b + 1).all())
print(name(d.cuMemHostRegister(4096, 64, D)), name(d.cuMemHostGetDevicePointer(4096, 0)))
"""
    says(
        code, ["[1, 1, 2, 3, 5, 5, 6, 7]", "NOT_SUPPORTED", "True", "SUCCESS INVALID_VALUE"], kinds=("unix",)
    )


def test_memory_that_is_unmapped_while_it_is_registered_is_an_error_and_no_crash() -> None:
    code = """
libc.mmap.restype = ctypes.c_void_p; libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]; libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
h = libc.mmap(None, 8192, 3, 0x22, -1, 0); ok(d.cuMemHostRegister(h, 8192, D)); p = int(ok(d.cuMemHostGetDevicePointer(h, 0))); add(p, 10); wait(); libc.munmap(h, 8192)
v = ctypes.c_uint64(p), ctypes.c_uint32(10); parameters = (ctypes.c_void_p * 2)(*map(ctypes.addressof, v)); r = name(d.cuLaunchKernel(kernel, 1,1,1, 32,1,1, 0, 0, ctypes.addressof(parameters), 0)); print(r, name(d.cuCtxSynchronize()), name(d.cuMemHostUnregister(h)), name(d.cuCtxSynchronize()))
"""
    lost = "gpukernel: registered memory that a kernel uses is not there any more, in this process or in its slice; the next CUDA call says why.\n"
    says(code, ["SUCCESS ILLEGAL_ADDRESS SUCCESS SUCCESS"], kinds=("unix",), warned=lost)


def test_graphs_use_it_and_a_forked_child_keeps_its_own_copy() -> None:
    code = """
import os
whole, a, h, p = own(1000); s = ok(d.cuStreamCreate(1)); ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)); add(p, 1000, s); add(p, 1000, s)
graph = ok(d.cuGraphInstantiate(ok(d.cuStreamEndCapture(s)), 0)); a[:] = 5; ok(d.cuGraphLaunch(graph, s))
child = os.fork()
if not child: a[:] = 1; os._exit(int(set(a.tolist()) != {1}))
print(os.waitpid(child, 0)[1]); ok(d.cuStreamSynchronize(s)); print(set(a.tolist()))
"""
    says(code, ["0", "{7}"], kinds=("unix",))


def test_a_reset_of_the_context_leaves_the_memory_registered() -> None:
    code = """
whole, a, h, p = own(1000); add(p, 1000); wait(); ok(d.cuDevicePrimaryCtxReset(0)); begin(); kernel = load(ADD_ONE, b"add"); p = int(ok(d.cuMemHostGetDevicePointer(h, 0))); add(p, 1000); wait(); print(a[0], a[999]); ok(d.cuMemHostUnregister(h))
"""
    says(code, ["2 1001"], kinds=("unix",))


def test_registered_memory_is_filled_by_either_address() -> None:
    code = """
whole, a, h, p = own(100); ok(d.cuMemsetD32(p, 5, 10)); ok(d.cuCtxSynchronize()); print(set(a[:10].tolist()), a[10])
ok(d.cuMemsetD32(h, 6, 20)); ok(d.cuCtxSynchronize()); print(set(a[:20].tolist()), a[20], around(whole, 100))
s = ok(d.cuStreamCreate(0)); ok(d.cuMemsetD32Async(h + 80, 9, 80, s)); ok(d.cuStreamSynchronize(s)); print(set(a[20:].tolist()), a[0], around(whole, 100))
ok(d.cuMemsetD32(h, 4, 2)); print(a[:3].tolist())
read = np.zeros(10, np.uint32); ok(d.cuMemHostRegister(read.ctypes.data, 40, 8)); print(name(d.cuMemsetD32(read.ctypes.data, 1, 10)))
"""
    says(code, ["{5} 10", "{6} 20 True", "{9} 6 True", "[4, 4, 6]", "INVALID_VALUE"])
