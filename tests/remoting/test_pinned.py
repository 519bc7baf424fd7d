"""Pinned memory on a slice: the program's alone until a kernel is given its address, from then on one memory for both."""

from __future__ import annotations

import asyncio

import pytest

from tests.remoting.conftest import AT_ADDRESSES_OF_THE_PROGRAM, worker
from tests.remoting.test_managed import MANAGED

pytestmark = AT_ADDRESSES_OF_THE_PROGRAM

PINNED = (
    MANAGED
    + r"""
def pinned(n):
    p = int(ok(d.cuMemAllocHost(4 * n))); return p, np.ctypeslib.as_array((ctypes.c_uint32 * n).from_address(p))
def free(): return ok(d.cuMemGetInfo())[0]
"""
)


def says(code: str, lines: list[str], warned: str = "", **options: int) -> None:
    """Run `code` over shared memory and over TCP, each with a worker of its own, and expect it to print `lines`."""

    async def story() -> None:
        for kind in ("unix", "tcp"):
            async with worker(**options) as one:
                done = await one.run(PINNED + code, kind=kind)
                assert done.stdout.splitlines() == lines, (kind, done.stdout, done.stderr)
                assert done.returncode == 0, done.stderr
                assert done.stderr == warned

    asyncio.run(story())


def test_kernels_use_pinned_memory_by_the_address_that_it_has() -> None:
    code = """
for n in (10, 100_000, 3_000_000):
    p, a = pinned(n); a[:] = np.arange(n)
    for i in range(3): add(p, n); wait(); a += 10
    add(p + 4 * (n // 2), n - n // 2); wait(); assert (a[:n // 2] == np.arange(n // 2) + 33).all(); print((a[n // 2:] == np.arange(n // 2, n) + 34).all())
"""
    says(code, ["True"] * 3)


def test_pinned_memory_costs_the_slice_nothing_until_a_kernel_uses_it() -> None:
    code = """
before = free(); large, a = pinned(100 << 20); a[5] = 5; p, b = pinned(100); add(p, 100); wait()
print((before - free()) >> 20); q = int(ok(d.cuMemAlloc(4096))); ok(d.cuMemcpyHtoD(q, large, 4096)); add(q, 100); ok(d.cuMemcpyDtoH(large, q, 4096)); print(a[5])
v = ctypes.c_uint64(large), ctypes.c_uint32(100); parameters = (ctypes.c_void_p * 2)(*map(ctypes.addressof, v))
print(name(d.cuLaunchKernel(kernel, 1,1,1, 256,1,1, 0, 0, ctypes.addressof(parameters), 0)), name(d.cuMemHostGetDevicePointer(large, 0))); add(p, 100); wait(); print(b[0], a[5])
ok(d.cuMemFree(q)); ok(d.cuMemFreeHost(p)); ok(d.cuMemFreeHost(large)); wait(); print(before - free())
"""
    refused = "gpukernel: pinned memory that a kernel uses counts against the slice, which has no room for these 400 MiB.\n"
    lines = ["2", "6", "OUT_OF_MEMORY OUT_OF_MEMORY", "2 6", "0"]
    says(code, lines, refused * 2, memory_mib=64)


def test_threads_write_to_pinned_memory_while_a_kernel_gets_it() -> None:
    """Nothing that another thread writes while the memory moves is lost."""
    code = """
n = 10_000_000; wrong = 0
for turn in range(8):
    p, a = pinned(n); begun = threading.Event()
    def write():
        for at in range(4096, 4 * n, 4096):
            ctypes.memset(p + at, 7, 64); begun.set()
    writer = threading.Thread(target=write); writer.start(); begun.wait(); ok(d.cuMemHostGetDevicePointer(p, 0))
    writer.join(); add(p, 1000); wait(); wrong += set(a[1024::1024].tolist()) != {0x07070707} or set(a[:1000].tolist()) != {1}; ok(d.cuMemFreeHost(p))
print(wrong)
"""
    says(code, ["0"])


def test_copies_into_pinned_memory_go_on_while_a_kernel_gets_it() -> None:
    code = """
n = 1_000_000; wrong = 0; q = int(ok(d.cuMemAlloc(2 * n))); ok(d.cuMemsetD32(q, 9, n // 2)); context = ok(d.cuCtxGetCurrent())
for turn in range(10):
    p, a = pinned(n); begun = threading.Event(); over = False
    def copy():
        ok(d.cuCtxSetCurrent(context))
        while not over: ok(d.cuMemcpyDtoH(p + 2 * n, q, 2 * n)); begun.set()
    copier = threading.Thread(target=copy); copier.start(); begun.wait(); add(p, 1000); over = True; copier.join(); wait()
    wrong += set(a[n // 2:].tolist()) != {9} or set(a[:1000].tolist()) != {1}; ok(d.cuMemFreeHost(p))
print(wrong)
"""
    says(code, ["0"])


def test_graphs_and_streams_use_pinned_memory() -> None:
    code = """
p, a = pinned(1000); s = ok(d.cuStreamCreate(1)); ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)); add(p, 1000, s); add(p, 1000, s)
graph = ok(d.cuGraphInstantiate(ok(d.cuStreamEndCapture(s)), 0)); a[:] = 5; ok(d.cuGraphLaunch(graph, s)); ok(d.cuStreamSynchronize(s)); print(set(a.tolist()))
q, b = pinned(1000); b[:] = 1; add(q, 1000, s); b2 = b.copy(); print(set(b2.tolist()))
"""
    says(code, ["{7}", "{2}"])


@pytest.mark.parametrize("give", ["ok(d.cuMemHostGetDevicePointer(p, 0)); ", ""])
def test_an_address_in_a_table_is_known_once_the_device_was_asked_for_it(give: str) -> None:
    code = f"""
INDIRECT = ADD_ONE.replace(b"ld.param.u64 %rd1, [to];", b"ld.param.u64 %rd1, [to]; ld.global.u64 %rd1, [%rd1];")
kernel = load(INDIRECT, b"add"); p, a = pinned(100); {give}table = int(ok(d.cuMemAlloc(8))); entry = ctypes.c_uint64(p); ok(d.cuMemcpyHtoD(table, ctypes.addressof(entry), 8))
add(table, 100); print(name(d.cuCtxSynchronize()))
"""

    async def story() -> None:
        async with worker() as one:
            done = await one.run(PINNED + code)
            assert done.stdout.splitlines()[-1] == ("SUCCESS" if give else "ILLEGAL_ADDRESS")

    asyncio.run(story())


FILLS = """
n = 4096; p, a = pinned(n); a[:] = 7; s = ok(d.cuStreamCreate(0))
ok(d.cuMemsetD32(p, 5, 10)); print(set(a[:10].tolist()), set(a[10:].tolist()))
ok(d.cuMemsetD8(p + 40, 1, 4)); ok(d.cuMemsetD16(p + 44, 2, 2)); print(a[10:13].tolist())
ok(d.cuMemsetD32Async(p, 9, n, s)); ok(d.cuMemsetD8Async(p, 3, 4, s)); ok(d.cuMemsetD16Async(p + 4, 3, 2, s)); ok(d.cuStreamSynchronize(s)); print(a[:3].tolist(), a[-1])
ok(d.cuMemsetD2D32(p, 64, 1, 2, 3)); ok(d.cuMemsetD2D8(p + 192, 64, 1, 4, 1)); ok(d.cuMemsetD2D16Async(p + 256, 64, 1, 2, 2, s)); ok(d.cuStreamSynchronize(s)); print(a[::16][:7].tolist(), a[2], a[17], a[49])
"""


def test_pinned_memory_is_filled_as_device_memory_is() -> None:
    says(
        FILLS,
        [
            "{5} {7}",
            f"[{0x01010101}, {0x00020002}, 7]",
            f"[{0x03030303}, {0x00030003}, 9] 9",
            f"[1, 1, 1, {0x01010101}, {0x00010001}, {0x00010001}, 9] 9 1 9",
        ],
    )


def test_a_graph_fills_pinned_memory() -> None:
    code = """
p, a = pinned(16); s = ok(d.cuStreamCreate(1)); ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)); ok(d.cuMemsetD32Async(p, 6, 16, s))
g = ok(d.cuGraphInstantiate(ok(d.cuStreamEndCapture(s)), 0)); ok(d.cuGraphLaunch(g, s)); ok(d.cuStreamSynchronize(s)); print(set(a.tolist()))
"""
    says(code, ["{6}"])


def test_a_stream_writes_a_value_to_pinned_memory_that_no_kernel_has_used() -> None:
    """By either address of registered memory, too; to wait for one there is refused by its name, as in managed memory."""
    code = """
s = ok(d.cuStreamCreate(1)); p, a = pinned(100); q, b = pinned(100); c = np.zeros(100, np.uint32); h = c.ctypes.data; ok(d.cuMemHostRegister(h, 400, 2))
ok(d.cuStreamWriteValue32(s, p + 8, 5, 0)); ok(d.cuStreamWriteValue64(s, p + 16, 6 << 32 | 7, 0)); ok(d.cuStreamWriteValue32(s, h + 8, 8, 0)); ok(d.cuStreamSynchronize(s)); print(a[:7].tolist(), c[2])
print(name(d.cuStreamWriteValue32(s, p + 400, 1, 0)), name(d.cuStreamWaitValue32(s, q, 0, 0)), name(d.cuStreamWaitValue32(s, h, 0, 0)), name(d.cuCtxSynchronize()))
"""
    says(code, ["[0, 0, 5, 0, 7, 6, 0] 8", "INVALID_VALUE NOT_SUPPORTED NOT_SUPPORTED SUCCESS"])


def test_a_device_address_stands_for_the_hosts_side_of_a_copy_as_under_unified_addressing() -> None:
    code = """
a, b, c, s = (*(ok(d.cuMemAlloc(4000)) for _ in range(3)), ok(d.cuStreamCreate(0)))
numbers, seen = np.arange(1000, dtype=np.uint32), np.zeros(1000, np.uint32)
def look(at): ok(d.cuMemcpyDtoH(seen.ctypes.data, at, 4000)); return np.array_equal(seen, numbers)
ok(d.cuMemcpyHtoD(a, numbers.ctypes.data, 4000))
ok(d.cuMemcpyHtoD(b, int(a), 4000)); print(look(b))
ok(d.cuMemcpyDtoH(int(c) + 2000, int(a) + 2000, 2000)); ok(d.cuMemcpyDtoHAsync(int(c), a, 2000, s)); ok(d.cuStreamSynchronize(s)); print(look(c))
ok(d.cuMemsetD8(b, 0, 4000)); ok(d.cuMemcpyHtoDAsync(b, int(c), 4000, s)); ok(d.cuStreamSynchronize(s)); print(look(b))
"""
    says(code, ["True", "True", "True"])
