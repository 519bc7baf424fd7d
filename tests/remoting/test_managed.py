"""Managed memory on a slice: one address for the program and the device, coherent where CUDA demands it."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from tests.native.simgpu_driver.test_driver import ADD
from tests.native.simgpu_driver.test_virtual_memory import HOST_MEMORY, NOTHING, host_memory
from tests.remoting.conftest import AT_ADDRESSES_OF_THE_PROGRAM, WITHOUT_SANITIZER, worker

pytestmark = AT_ADDRESSES_OF_THE_PROGRAM

MANAGED = r"""
import mmap, random, time
import numpy as np
begin(); libc = ctypes.CDLL(None, use_errno=True); G = d.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL; P = d.CUpointer_attribute
def name(result): return result[0].name.removeprefix("CUDA_").removeprefix("ERROR_")
def managed(n):
    p = int(ok(d.cuMemAllocManaged(4 * n, G))); return p, np.ctypeslib.as_array((ctypes.c_uint32 * n).from_address(p))
ADD_ONE = b'''.version 7.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 to, .param .u32 n) { .reg .b64 %rd<6>; .reg .b32 %r<6>; .reg .pred %p; ld.param.u64 %rd1, [to]; ld.param.u32 %r5, [n];
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r1, %r1, %r2, %r3; setp.ge.u32 %p, %r1, %r5; @%p ret; mul.wide.u32 %rd3, %r1, 4; add.u64 %rd1, %rd1, %rd3; ld.global.u32 %r4, [%rd1]; add.u32 %r4, %r4, 1; st.global.u32 [%rd1], %r4; ret; }
'''
kernel = load(ADD_ONE, b"add")
def add(p, n, s=0):
    v = ctypes.c_uint64(p), ctypes.c_uint32(n); a = (ctypes.c_void_p * 2)(*map(ctypes.addressof, v))
    ok(d.cuLaunchKernel(kernel, (n + 255) // 256,1,1, 256,1,1, 0, s, ctypes.addressof(a), 0))
def wait(): ok(d.cuCtxSynchronize())
"""


def says(code: str, lines: list[str], **options: int) -> None:
    """Run `code` on a worker of its own and expect it to print `lines`."""

    async def story() -> None:
        async with worker(**options) as one:
            done = await one.run(MANAGED + code)
            assert done.stdout.splitlines() == lines, (done.stdout, done.stderr)
            assert done.returncode == 0, done.stderr

    asyncio.run(story())


def test_both_sides_see_what_the_other_wrote() -> None:
    code = """
print(*(ok(d.cuDeviceGetAttribute(a, 0)) for a in (d.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, d.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, d.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS)))
for n in (10, 100_000, 3_000_000):
    p, a = managed(n); assert not a.any(); a[:] = np.arange(n)
    for i in range(3): add(p, n); wait(); a += 10
    add(p, n); wait(); print((a == np.arange(n) + 34).all())
"""
    says(code, ["1 0 0", "True", "True", "True"])


@pytest.mark.parametrize("what", HOST_MEMORY)
def test_the_device_reaches_host_memory_that_was_allocated_for_it(what: str) -> None:
    code, lines = host_memory(what)
    says(ADD + code, lines)


def test_to_copy_or_fill_nothing_is_no_error_wherever() -> None:
    says(NOTHING, ["done"])


def test_host_memory_that_the_device_reaches_is_of_the_slice_until_it_is_freed() -> None:
    code = """
def free(): return ok(d.cuMemGetInfo())[0] >> 20
before = free(); h = ok(d.cuMemHostAlloc(10 << 20, 2)); print(before - free(), name(d.cuMemHostAlloc(60 << 20, 2))); ok(d.cuMemFreeHost(h)); print(before - free())
"""
    says(code, ["10 OUT_OF_MEMORY", "0"])


@pytest.mark.parametrize("way", [{"kind": "tcp"}, {"kind": "unix", "shared_memory": False}], ids=str)
def test_sockets_carry_it_as_shared_memory_does(way: dict[str, Any]) -> None:
    code = """
n = 3_000_000; p, a = managed(n); a[:] = np.arange(n); q, b = managed(10)
for i in range(3): add(p, n); add(q, 10); wait(); a += 10; b += 10
add(p, n); print((a == np.arange(n) + 34).all(), set(b))
"""

    async def story() -> None:
        async with worker() as one:
            done = await one.run(MANAGED + code, **way)
            assert done.stdout == "True {np.uint32(33)}\n", done.stderr

    asyncio.run(story())


def test_a_touch_without_a_wait_sees_all_work_that_was_submitted() -> None:
    code = """
n = 500_000; p, a = managed(n); s = ok(d.cuStreamCreate(0))
for i in range(5): add(p, n, s); add(p, n)
print(set(a[::5000])); a[7] = 100; add(p, n, s); print(a[7], a[8], a[-1])
"""
    says(code, ["{np.uint32(10)}", "101 11 11"])


@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_work_on_both_sides_gives_what_one_memory_would_hold(seed: int) -> None:
    # Against a model: writes and reads of the host, fills, copies of every kind and role, kernels, graphs.
    code = f"""
r = random.Random({seed}); n = r.choice([900, 16_384, 200_000, 600_000]); U = d.CUmemorytype
p, a = managed(n); q, b = managed(n); model = {{p: np.zeros(n, np.uint32), q: np.zeros(n, np.uint32)}}; host = {{p: a, q: b}}
w = int(ok(d.cuMemAlloc(4 * n))); plain = np.zeros(n, np.uint32); ok(d.cuMemsetD32(w, 0, n)); device = np.zeros(n, np.uint32)
streams = [0, ok(d.cuStreamCreate(0)), ok(d.cuStreamCreate(d.CUstream_flags.CU_STREAM_NON_BLOCKING))]
def part():
    i = r.randrange(n); return i, min(n - i, r.choice([1, 5, 1000, 17_000, 300_000]))
def write(m): i, k = part(); v = r.randrange(1000); host[m][i:i + k] = v; model[m][i:i + k] = v
def stride(m): i, k = r.randrange(n), r.randrange(1, 5000); host[m][i::k] += 1; model[m][i::k] += 1
def see(m): i, k = part(); assert (host[m][i:i + k] == model[m][i:i + k]).all(), (m, i, k)
def launch(m):
    i, k = part(); s = r.choice(streams); s is streams[2] and wait()  # which does not wait for what nobody waited for
    add(m + 4 * i, k, s); wait(); model[m][i:i + k] += 1
def unseen(m): i, k = part(); add(m + 4 * i, k); model[m][i:i + k] += 1
def fill(m): i, k = part(); v = r.randrange(1000); ok(d.cuMemsetD32(m + 4 * i, v, k)); model[m][i:i + k] = v
def fill_2d(m):
    h = min(n // 100, 50); i = r.randrange(n - 100 * h + 1); ok(d.cuMemsetD2D32(m + 4 * i, 400, 7, 30, h))
    for j in range(h): model[m][i + 100 * j:i + 100 * j + 30] = 7
def out(m): i, k = part(); o = np.zeros(k, np.uint32); ok(d.cuMemcpyDtoH(o.ctypes.data, m + 4 * i, 4 * k)); assert (o == model[m][i:i + k]).all()
def as_host(m):  # a managed pointer where a host pointer belongs
    i, k = part(); ok(d.cuMemcpyHtoD(w + 4 * i, m + 4 * i, 4 * k)); device[i:i + k] = model[m][i:i + k]
def back(m): i, k = part(); ok(d.cuMemcpyDtoH(m + 4 * i, w + 4 * i, 4 * k)); model[m][i:i + k] = device[i:i + k]
def into(m): i, k = part(); v = np.full(k, r.randrange(1000), np.uint32); ok(d.cuMemcpyHtoD(m + 4 * i, v.ctypes.data, 4 * k)); model[m][i:i + k] = v
def unified(m):
    i, k = part(); o = p + q - m; ok(r.choice([d.cuMemcpy, d.cuMemcpyDtoD, d.cuMemcpyHtoD, d.cuMemcpyDtoH])(o + 4 * i, m + 4 * i, 4 * k)); model[o][i:i + k] = model[m][i:i + k]
def pitched(m):
    k = min(n // 100, 40); c = d.CUDA_MEMCPY2D(); c.srcMemoryType = r.choice([U.CU_MEMORYTYPE_HOST, U.CU_MEMORYTYPE_DEVICE, U.CU_MEMORYTYPE_UNIFIED]); c.dstMemoryType = U.CU_MEMORYTYPE_DEVICE
    c.srcHost = m; c.srcDevice = m; c.dstDevice = w; c.srcPitch = c.dstPitch = 400; c.WidthInBytes = 200; c.Height = k; ok(d.cuMemcpy2D(c))
    for j in range(k): device[100 * j:100 * j + 50] = model[m][100 * j:100 * j + 50]
def prefetch(m): i, k = part(); ok(d.cuMemPrefetchAsync(m + 4 * i, 4 * k, r.choice([0, -1]), 0)); r.random() < 0.5 and wait()
s = streams[1]; ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)); add(p, n, s); graph = ok(d.cuGraphInstantiate(ok(d.cuStreamEndCapture(s)), 0))
def replay(m): ok(d.cuGraphLaunch(graph, s)); ok(d.cuStreamSynchronize(s)); model[p][:] += 1
for i in range(250): r.choice([write, write, stride, see, see, launch, launch, unseen, fill, fill_2d, out, as_host, back, into, unified, pitched, prefetch, replay])(r.choice([p, q]))
assert (a == model[p]).all() and (b == model[q]).all(); o = np.zeros(n, np.uint32); ok(d.cuMemcpyDtoH(o.ctypes.data, w, 4 * n)); print((o == device).all())
"""
    says(code, ["True"])


def test_a_hundred_megabytes_touched_in_order_cost_a_hundred_calls_and_not_a_page_each() -> None:
    code = """
n = 25_000_000; p, a = managed(n); ok(d.cuMemsetD32(p, 9, n)); wait(); print("filled", flush=True); sys.stdin.readline()
print(int(a.sum(dtype=np.uint64)) == 9 * n, flush=True); sys.stdin.readline()
"""

    async def story() -> None:
        async with worker(memory_mib=256) as one:
            program = one.start(MANAGED + code)
            assert program.stdin is not None
            assert program.stdout is not None
            assert await asyncio.to_thread(program.stdout.readline) == "filled\n"
            before = (await one.handle.status()).cuda_calls
            program.stdin.write("\n")
            program.stdin.flush()
            assert await asyncio.to_thread(program.stdout.readline) == "True\n"
            # A copy travels in pieces of one MiB, several at one time.
            assert (await one.handle.status()).cuda_calls - before < 120
            await asyncio.to_thread(program.communicate, "\n")

    asyncio.run(story())


def test_threads_that_touch_the_same_pages_see_whole_results() -> None:
    code = """
n = 400_000; p, a = managed(n); context = ok(d.cuCtxGetCurrent()); bad = []; gate = threading.Barrier(6)
def look(t):
    ok(d.cuCtxSetCurrent(context))
    for i in range(15):
        gate.wait()
        if t == 0: add(p, n); wait()
        gate.wait()
        if not (a[t::7] == 2 * i + 1).all(): bad.append((t, i))
        gate.wait(); a[t::6] += 1
threads = [threading.Thread(target=look, args=(t,)) for t in range(6)]; [t.start() for t in threads]; [t.join() for t in threads]
print(bad, set(a))
"""
    says(code, ["[] {np.uint32(30)}"])


def test_threads_that_write_while_another_launches_lose_nothing() -> None:
    # Each thread has an array of its own, its kernel and its writes; every launch takes all arrays from all threads.
    code = """
context = ok(d.cuCtxGetCurrent()); bad = []
def work(t):
    ok(d.cuCtxSetCurrent(context)); s = ok(d.cuStreamCreate(0)); n = [1000, 70_000, 300_000][t % 3]; p, a = managed(n)
    for i in range(25):
        a[i::3] += 5; add(p, n, s); ok(d.cuStreamSynchronize(s)); a[i::3] -= 5
    if not (a == 25).all(): bad.append((t, set(a)))
threads = [threading.Thread(target=work, args=(t,)) for t in range(6)]; [t.start() for t in threads]; [t.join() for t in threads]; print(bad)
"""
    says(code, ["[]"])


def test_system_calls_reach_what_is_small_new_or_was_asked_for() -> None:
    code = """
n = 10_000; p, a = managed(n); zero = open("/dev/zero", "rb", 0); null = os.memfd_create("x")
add(p, n); wait(); print("small", os.pwrite(null, a, 0), np.frombuffer(os.pread(null, 8, 0), np.uint32)); print(zero.readinto(a)); add(p, n); wait(); print(set(a))
n = 1_000_000; p, a = managed(n); print("new", os.preadv(null, [a], 0)); add(p, n); wait(); print(a[0], a[-1])
def written():
    try: return os.pwrite(null, a, 0)
    except OSError as error: return os.strerror(error.errno)
add(p, n); wait(); print("large", written()); add(p, n); ok(d.cuMemPrefetchAsync(p, 4 * n, -1, 0)); wait(); print(written(), a[-1])
"""
    says(
        code,
        [
            "small 40000 [1 1]",
            "40000",
            "{np.uint32(1)}",
            "new 40000",
            "2 1",
            "large Bad address",
            "4000000 3",
        ],
    )


def test_managed_memory_counts_is_bounded_and_comes_back() -> None:
    code = """
def free(): return ok(d.cuMemGetInfo())[0] >> 20
print(free(), *(name(d.cuMemAllocManaged(x, f)) for x, f in ((0, 1), (100, 0), (100, 4), (11 << 20, 1), (1 << 50, 1))))
small = [managed(1000)[0] for i in range(300)]; print(free(), len(set(small)) == 300); big = managed(1_500_000)[0]; print(free())
ok(d.cuMemFree(big)); [ok(d.cuMemFree(x)) for x in small[1:]]; print(free()); ok(d.cuMemFree(small[0])); print(free())
ok(d.cuMemFree(big)); print(name(d.cuCtxSynchronize()), name(d.cuCtxSynchronize()))
p, a = managed(1000); keep = managed(1000); a[:] = 5; add(p, 1000); wait(); ok(d.cuMemFree(p)); q, b = managed(1000); print(p == q, b.any()); add(q, 1000); wait(); print(set(b))
"""
    says(
        code,
        [
            "10 INVALID_VALUE INVALID_VALUE INVALID_VALUE OUT_OF_MEMORY OUT_OF_MEMORY",
            "8 True",
            "2",
            "8",
            "10",
            "INVALID_VALUE SUCCESS",
            "True False",
            "{np.uint32(1)}",
        ],
        memory_mib=10,
    )


def test_a_pointer_s_attributes_advice_and_prefetching_have_their_answers() -> None:
    code = """
n = 300_000; p, a = managed(n); L = d.CUmem_range_attribute; A = d.CUmem_advise
for what in ("IS_MANAGED", "MEMORY_TYPE", "DEVICE_ORDINAL", "MAPPED", "RANGE_SIZE"): print(what, int(ok(d.cuPointerGetAttribute(getattr(P, "CU_POINTER_ATTRIBUTE_" + what), p + 8))), end=" ")
print(*(int(ok(d.cuPointerGetAttribute(getattr(P, "CU_POINTER_ATTRIBUTE_" + what), p + 8))) - p for what in ("DEVICE_POINTER", "HOST_POINTER", "RANGE_START_ADDR")), [int(x) - p for x in ok(d.cuMemGetAddressRange(p + 100))][0])
q = ok(d.cuMemAlloc(100)); print(int(ok(d.cuPointerGetAttribute(P.CU_POINTER_ATTRIBUTE_IS_MANAGED, q))), name(d.cuMemAdvise(q, 100, A.CU_MEM_ADVISE_SET_READ_MOSTLY, 0)), name(d.cuMemPrefetchAsync(q, 100, 0, 0)))
def get(what): return ok(d.cuMemRangeGetAttribute(4, getattr(L, "CU_MEM_RANGE_ATTRIBUTE_" + what), p, 4 * n))
print(get("READ_MOSTLY"), get("PREFERRED_LOCATION"), get("LAST_PREFETCH_LOCATION"))
ok(d.cuMemAdvise(p, 4 * n, A.CU_MEM_ADVISE_SET_READ_MOSTLY, 0)); ok(d.cuMemAdvise(p, 4 * n, A.CU_MEM_ADVISE_SET_PREFERRED_LOCATION, -1)); ok(d.cuMemPrefetchAsync(p, 4 * n, 0, 0))
print(get("READ_MOSTLY"), get("PREFERRED_LOCATION"), get("LAST_PREFETCH_LOCATION"))
print(name(d.cuMemPrefetchAsync(p, 4 * n + 1, 0, 0)), name(d.cuMemPrefetchAsync(p, 4 * n, 3, 0)), name(d.cuMemAdvise(p, 4 * n, A.CU_MEM_ADVISE_SET_ACCESSED_BY, 3)))
s = ok(d.cuStreamCreate(0)); print(name(d.cuStreamAttachMemAsync(s, p, 0, d.CUmemAttach_flags.CU_MEM_ATTACH_SINGLE)), name(d.cuStreamAttachMemAsync(s, p, 0, 9)), name(d.cuStreamAttachMemAsync(s, q, 0, 1)))
"""
    bad = "INVALID_VALUE"
    says(
        code,
        [
            "IS_MANAGED 1 MEMORY_TYPE 2 DEVICE_ORDINAL 0 MAPPED 1 RANGE_SIZE 1200000 8 8 0 0",
            f"0 {bad} {bad}",
            "0 -2 -2",
            "1 -1 0",
            f"{bad} INVALID_DEVICE INVALID_DEVICE",
            f"SUCCESS {bad} {bad}",
        ],
    )


def test_results_of_calls_may_be_written_to_managed_memory() -> None:
    # A structure of pointers in managed memory, filled by cuMemAlloc itself while the device has it.
    code = """
cuda = ctypes.CDLL("libcuda.so.1"); n = 100_000; p, a = managed(n); where = ctypes.c_void_p(p + 4 * 50_000)
add(p, n); print(cuda.cuMemAlloc_v2(where, ctypes.c_size_t(4096))); first = a[50_000:50_002].view(np.uint64)[0]
add(p, n); print(cuda.cuMemAllocManaged(where, ctypes.c_size_t(4096), 1), first != 0, a[0], a[50_002])
add(p, n); print(cuda.cuMemGetInfo_v2(where, ctypes.c_void_p(p + 4 * 90_000)), a[90_000:90_002].view(np.uint64)[0] >> 20)
add(p, n); flags = ctypes.c_void_p(p + 4 * 70_000); print(cuda.cuPointerGetAttribute(flags, 8, ctypes.c_uint64(p)), a[70_000], a[70_001])
v = np.array([p], np.uint64).view(np.uint32); a[10_000:10_002] = v; a[10_002] = n  # parameters of a launch
kp = (ctypes.c_void_p * 2)(p + 40_000, p + 40_008); add(p, 4); print(cuda.cuLaunchKernel(ctypes.c_void_p(int(kernel)), *map(ctypes.c_uint, (400,1,1, 256,1,1, 0)), None, kp, None), a[20_000])
"""
    says(code, ["0", "0 True 2 2", "0 64", "0 1 4", "0 5"])


def test_devices_of_a_lease_exchange_managed_memory() -> None:
    code = """
one, two = (ok(d.cuDevicePrimaryCtxRetain(i)) for i in (0, 1)); n = 200_000
p, a = managed(n); add(p, n); wait(); ok(d.cuCtxSetCurrent(two)); q, b = managed(n); w = ok(d.cuMemAlloc(4 * n))
ok(d.cuMemcpyHtoD(w, p, 4 * n)); ok(d.cuMemcpyDtoH(q, w, 4 * n)); print(set(b)); b += 1; ok(d.cuMemcpyHtoD(w, q, 4 * n))
ok(d.cuMemcpyDtoH(p, w, 4 * n)); print(set(a)); ok(d.cuCtxSetCurrent(one)); add(p, n); print(set(a)); ok(d.cuMemcpyPeer(q, two, p, one, 4 * n)); print(set(b))
"""

    async def story() -> None:
        async with worker() as one, worker(secret=one.secret) as two:
            done = await one.run(MANAGED + code, second=two)
            values = [f"{{np.uint32({i})}}" for i in (1, 2, 3, 3)]
            assert done.stdout.splitlines() == values, done.stderr

    asyncio.run(story())


@WITHOUT_SANITIZER
def test_a_forked_child_has_none_of_it_and_the_parent_all() -> None:
    code = """
n = 100_000; p, a = managed(n); a[:] = 1; add(p, n); wait(); sys.stdout.flush()
if (child := os.fork()) == 0:
    a[0] = 77; os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
if (child := os.fork()) == 0:
    print(name(d.cuMemFree(p)), flush=True); os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), a[0], flush=True); add(p, n); print(a[5])
"""
    says(code, ["-11", "NOT_INITIALIZED", "0 2", "3"])


@WITHOUT_SANITIZER
@pytest.mark.parametrize("when", ["before", "after"])
def test_other_faults_go_where_they_would_have_gone(when: str) -> None:
    # Python's own handler prints where it was; then the signal ends the process, as ever.
    enable = "import faulthandler; faulthandler.enable()\n"
    code = """
p, a = managed(100_000); add(p, 100_000); wait(); print(a[0], flush=True)
ENABLE_LATER
add(p, 100_000); wait(); print(a[-1], a[0], flush=True)
ctypes.string_at(16)
"""
    code = (enable if when == "before" else "") + code.replace(
        "ENABLE_LATER", enable if when == "after" else ""
    )

    async def story() -> None:
        async with worker() as one:
            done = await one.run(MANAGED + code)
            assert done.stdout.splitlines() == ["1", "2 2"], done.stderr
            assert done.stderr.count("Fatal Python error: Segmentation fault") == 1
            assert "string_at" in done.stderr
            assert done.returncode == -signal.SIGSEGV

    asyncio.run(story())


def test_a_handler_that_a_program_installs_keeps_its_faults_and_gets_no_others() -> None:
    code = """
HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)
def mine(number): os.write(1, b"mine\\n"); os._exit(42)
handler = HANDLER(mine)
p, a = managed(100_000); add(p, 100_000); wait(); print(a[0], flush=True); libc.signal.restype = ctypes.c_void_p
libc.signal(11, handler); add(p, 100_000); wait(); print(a[0], flush=True); ctypes.string_at(16)
"""

    async def story() -> None:
        async with worker() as one:
            done = await one.run(MANAGED + code)
            assert done.stdout.splitlines() == ["1", "2", "mine"], done.stderr
            assert done.returncode == 42

    asyncio.run(story())


@WITHOUT_SANITIZER
def test_a_signal_that_was_sent_ends_the_program_as_ever() -> None:
    code = "p, a = managed(100_000); add(p, 100_000); wait(); print(a[0], flush=True); os.kill(os.getpid(), 11); time.sleep(60)"

    async def story() -> None:
        async with worker() as one:
            done = await one.run(MANAGED + code)
            assert (done.stdout, done.returncode) == ("1\n", -signal.SIGSEGV), done.stderr

    asyncio.run(story())


def test_a_lost_worker_leaves_old_data_an_error_and_a_living_program() -> None:
    code = """
p, a = managed(100_000); a[:] = 3; add(p, 100_000); wait(); print(a[0], flush=True); add(p, 100_000)
print("go", flush=True); sys.stdin.readline(); print(a[-1] in (3, 4), flush=True); a[:] = 9; print(set(a), d.cuCtxSynchronize()[0].name, d.cuMemFree(p)[0].name, flush=True)
"""

    async def story() -> None:
        async with worker() as one:
            program = one.start(MANAGED + code)
            assert program.stdout is not None
            assert [await asyncio.to_thread(program.stdout.readline) for _ in range(2)] == ["4\n", "go\n"]
            one.handle.kill()
            await one.handle.wait()
            out, err = await asyncio.to_thread(program.communicate, "\n")
            gone = "CUDA_ERROR_DEVICE_UNAVAILABLE"
            assert out.splitlines()[:2] == ["True", f"{{np.uint32(9)}} {gone} CUDA_SUCCESS"], err
            assert err.count("managed memory could not be fetched") == 1
            assert program.returncode == 0

    asyncio.run(story())


def test_a_fault_of_a_kernel_is_told_by_the_next_call_and_not_by_a_touch() -> None:
    code = """
p, a = managed(100_000); a[:] = 3; add(p, 100_000); wait(); print(a[0])
bad = load(WILD, b"wild"); ok(d.cuLaunchKernel(bad, 1,1,1, 1,1,1, 0, 0, 0, 0)); a[0] + 1; print(name(d.cuMemAlloc(100)), name(d.cuCtxSynchronize()))
"""

    async def story() -> None:
        async with worker() as one:
            done = await one.run(MANAGED + code)
            lines = done.stdout.splitlines()
            assert (lines[0], lines[-1]) == ("4", "ILLEGAL_ADDRESS ILLEGAL_ADDRESS"), done.stderr
            assert done.returncode == 0

    asyncio.run(story())


def test_an_error_that_a_touch_comes_across_is_told_once_and_costs_no_data() -> None:
    code = """
n = 100_000; p, a = managed(n); add(p, n); ok(d.cuMemFree(12345)); print(a[0], a[-1]); h = d.cuMemAlloc(100); print(name(h), name(d.cuMemAlloc(100)))
"""
    says(code, ["1 1", "INVALID_VALUE SUCCESS"])
