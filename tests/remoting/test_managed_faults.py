"""Page faults on managed memory where it is awkward: small stacks, other signals, many threads, no mappings left."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.remoting.conftest import SANITIZED, WITHOUT_SANITIZER, worker
from tests.remoting.test_managed import MANAGED, says

# A kernel that takes a while: `long` times around, and then a one is stored.
SLOW = r"""
slow_kernel = load(b'''.version 7.0
.target sm_70
.address_size 64
.visible .entry slow(.param .u64 to, .param .u32 long) { .reg .b64 %rd<2>; .reg .b32 %r<4>; .reg .pred %p; ld.param.u64 %rd1, [to]; ld.param.u32 %r1, [long]; mov.u32 %r2, 0;
again: add.u32 %r2, %r2, 1; setp.lt.u32 %p, %r2, %r1; @%p bra again; mov.u32 %r3, 1; st.global.u32 [%rd1], %r3; ret; }
''', b"slow")
def slow(p, long):
    v = ctypes.c_uint64(p), ctypes.c_uint32(long); a = (ctypes.c_void_p * 2)(*map(ctypes.addressof, v))
    ok(d.cuLaunchKernel(slow_kernel, 1,1,1, 1,1,1, 0, 0, ctypes.addressof(a), 0))
"""


def test_a_touch_needs_no_more_than_the_smallest_signal_stack() -> None:
    # As a program has that watches its own stack for overflows: its handler, and so ours, runs on a stack apart.
    code = """
class Stack(ctypes.Structure): _fields_ = [("at", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
class Action(ctypes.Structure): _fields_ = [("handler", ctypes.c_void_p), ("mask", ctypes.c_uint64 * 16), ("flags", ctypes.c_int), ("restorer", ctypes.c_void_p)]
size = max(2048, libc.getauxval(51)) + FRAMES  # what the kernel writes there, and hardly more
room = ctypes.create_string_buffer(b"\\x5a" * (size + 65536), size + 65536); bottom = ctypes.addressof(room) + 65536
assert libc.sigaltstack(ctypes.byref(Stack(bottom, 0, size)), None) == 0
mine = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: os._exit(42)); assert libc.sigaction(11, ctypes.byref(Action(ctypes.cast(mine, ctypes.c_void_p), flags=0x08000000)), None) == 0
n = 3_000_000; p, a = managed(n); add(p, n); wait(); a += 1; add(p, n); print(set(a[::1000]), set(room.raw[:65536]) == {0x5a})
"""
    frames = 4096 if SANITIZED else 2048  # AddressSanitizer keeps zones between the variables of a frame
    says(code.replace("FRAMES", str(frames)), ["{np.uint32(3)} True"])


def test_a_signal_s_handler_may_touch_managed_memory_while_the_program_waits_for_some() -> None:
    code = """
import signal, time; libc.signal.restype = ctypes.c_void_p; seen = []
p, a = managed(100_000); q, b = managed(100_000); add(p, 100_000); add(q, 100_000); slow(p, 3_000_000)
handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: seen.append(int(b[7]))); libc.signal(14, handler); signal.setitimer(signal.ITIMER_REAL, 0.02)
print(a[0], a[-1])
while not seen: time.sleep(0.01)  # not signal.pause(), which misses one that comes just before it
print(seen)
"""
    says(SLOW + code, ["1 1", "[1]"])


@WITHOUT_SANITIZER
def test_a_signal_s_handler_that_touches_managed_memory_in_a_call_that_waits_ends_the_program() -> None:
    """Its thread is the one that reads answers, so that the page's never came and the program hung."""
    code = """
import signal; libc.signal.restype = ctypes.c_void_p; seen = []; p, a = managed(100_000); slow(p, 3_000_000)
handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: seen.append(int(a[7]))); libc.signal(14, handler)
signal.setitimer(signal.ITIMER_REAL, 0.05); wait(); print(seen, a[0])
"""

    async def story() -> None:
        async with worker() as one:
            done = await one.run(MANAGED + SLOW + code)
            assert (done.returncode, done.stdout) == (-signal.SIGSEGV, ""), done.stderr
            assert "touched in the middle of a CUDA call" in done.stderr

    asyncio.run(story())


def test_a_program_that_waits_for_a_page_can_be_ended() -> None:
    code = 'p, a = managed(100_000); slow(p, 4_000_000_000); print("touch", flush=True); a[0] + 1; print("never")'

    async def story() -> None:
        async with worker() as one:
            program = one.start(MANAGED + SLOW + code)
            assert program.stdout is not None
            assert await asyncio.to_thread(program.stdout.readline) == "touch\n"
            program.terminate()
            out, _ = await asyncio.to_thread(program.communicate, timeout=20)
            assert (out, program.returncode) == ("", -signal.SIGTERM)

    asyncio.run(story())


def test_a_hundred_threads_fault_at_one_time() -> None:
    code = """
n = 100 * 16_384; p, a = managed(n); add(p, n); gate = threading.Barrier(100); touch = ctypes.CDLL(None).memset; sums = []
def work(t): gate.wait(); touch(ctypes.c_void_p(p + t * 65536), 2, ctypes.c_size_t(65532)); sums.append(int(a[t * 16_384 + 16_383]))
threads = [threading.Thread(target=work, args=(t,)) for t in range(100)]; [t.start() for t in threads]; [t.join() for t in threads]
add(p, n); print(set(sums), set(a.reshape(100, -1)[:, :-1].ravel()), set(a[16_383::16_384]))
"""
    says(code, ["{1} {np.uint32(33686019)} {np.uint32(2)}"])


@WITHOUT_SANITIZER
def test_where_the_kernel_has_no_more_mappings_the_memory_is_whole_and_right() -> None:
    # Every other page of `rest` is protected on its own, until the process may have no mapping more; then pieces of
    # managed memory cannot be protected apart from each other.
    code = """
n = 4_000_000; p, a = managed(n); q, b = managed(n); a[:] = 1; b[:] = 1; add(p, n); add(q, n); wait(); touched = b[5_000]
libc.mmap.restype = ctypes.c_void_p; most = int(open("/proc/sys/vm/max_map_count").read()); assert most <= 1 << 20
rest = libc.mmap(None, ctypes.c_size_t(most * 8192), 0, 0x4022, -1, ctypes.c_long(0)); i = 0
while libc.mprotect(ctypes.c_void_p(rest + 8192 * i), ctypes.c_size_t(4096), 1) == 0: i += 1
a[0] += 5; a[2_000_000] += 5; b[3_000_000] += 5; ok(d.cuMemsetD32(p + 4_000_000, 9, 16)); add(p, n); add(q, n)
print(a[0], a[1], a[999_999], a[1_000_000], a[2_000_000], a[-1], b[0], b[3_000_000], touched)
ok(d.cuMemsetD32(p + 8_000_000, 7, 16)); print(a[1_999_999], a[2_000_000], a[0]); a[:] = 3; add(p, n); print(set(a[::999]), i > 1000)
"""
    says(code, ["8 3 3 10 8 3 3 8 2", "3 7 8", "{np.uint32(4)} True"])


@WITHOUT_SANITIZER
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_what_was_freed_faults_as_it_would_anywhere(when: str) -> None:
    free = {
        "before": "ok(d.cuMemFree(p)); a[0] + 1",
        "meanwhile": """
context = ok(d.cuCtxGetCurrent())
def free(): ok(d.cuCtxSetCurrent(context)); ok(d.cuMemFree(p))
add(p, 100_000); t = threading.Thread(target=free); t.start(); t.join(); a[99_999] + 1""",
    }[when]

    async def story() -> None:
        async with worker() as one:
            done = await one.run(MANAGED + "p, a = managed(100_000)\n" + free)
            assert done.returncode == -signal.SIGSEGV, done.stderr

    asyncio.run(story())


def test_freeing_while_other_memory_is_touched_harms_neither() -> None:
    code = """
n = 200_000; context = ok(d.cuCtxGetCurrent()); bad = []
def work(t):
    ok(d.cuCtxSetCurrent(context))
    for i in range(20):
        p, a = managed(n >> (t + i) % 5); add(p, a.size); a[i::7] += 1; add(p, a.size); got = int(a.sum()); want = 2 * a.size + len(a[i::7]); ok(d.cuMemFree(p))
        if got != want: bad.append((t, i, got, want))
threads = [threading.Thread(target=work, args=(t,)) for t in range(6)]; [t.start() for t in threads]; [t.join() for t in threads]; print(bad, ok(d.cuMemGetInfo())[0] >> 20)
"""
    says(code, ["[] 64"])


def test_a_reset_device_has_neither_managed_nor_mapped_memory_and_can_be_used_again() -> None:
    code = """
p, a = managed(500_000); small, _ = managed(10); add(p, 500_000); wait(); r = ok(d.cuMemAddressReserve(4 << 20, 0, 0, 0)); print(ok(d.cuMemGetInfo())[0] >> 20)
ok(d.cuDevicePrimaryCtxReset(0)); ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(0)))); print(ok(d.cuMemGetInfo())[0] >> 20, name(d.cuMemFree(p)), name(d.cuCtxSynchronize()), name(d.cuMemAddressFree(r, 4 << 20)))
kernel = load(ADD_ONE, b"add"); p, a = managed(1000); add(p, 1000); wait(); print(set(a))
"""
    says(code, ["62", "64 SUCCESS INVALID_VALUE INVALID_VALUE", "{np.uint32(1)}"])
