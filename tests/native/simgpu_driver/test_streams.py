"""Promises of streams, and what may overlap: kernels that end only when another stream's work comes to them.

Nothing here measures time: where something must overlap, a program that lacks it would never end."""

from __future__ import annotations

import pytest

from tests.native.simgpu_driver.test_driver import out

SPIN = '''
SPIN = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 flag, .param .u64 done) {
    .reg .pred %p; .reg .b32 %r<3>; .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [flag]; ld.param.u64 %rd2, [done];
again:
    ld.volatile.global.u32 %r1, [%rd1]; setp.eq.u32 %p, %r1, 0; @%p bra again;
    mov.u32 %r2, 1; st.volatile.global.u32 [%rd2], %r2;
    ret;
}
.visible .entry set(.param .u64 flag) {
    .reg .b32 %r<2>; .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [flag]; mov.u32 %r1, 1; st.volatile.global.u32 [%rd1], %r1; ret;
}
"""
begin()
module = ok(d.cuModuleLoadData(SPIN + b"\\0"))
spin_kernel, set_kernel = (ok(d.cuModuleGetFunction(module, name)) for name in (b"spin", b"set"))
words = int(ok(d.cuMemAlloc(4096))); ok(d.cuMemsetD8(words, 0, 4096)); ok(d.cuCtxSynchronize())
FLAG, DONE, SEEN, OTHER = (words + 256 * i for i in range(4))
def run(f, stream, *pointers):
    ok(d.cuLaunchKernel(f, 1,1,1, 1,1,1, 0, stream, (pointers, (ctypes.c_uint64,) * len(pointers)), 0))
def spin(stream, flag=FLAG, done=DONE): run(spin_kernel, stream, flag, done)
def signal(stream, flag=FLAG): run(set_kernel, stream, flag)
def blocking(): return ok(d.cuStreamCreate(0))
def free_stream(): return ok(d.cuStreamCreate(d.CUstream_flags.CU_STREAM_NON_BLOCKING))
LEGACY, PER_THREAD = d.CUstream(1), d.CUstream(2)
beside = free_stream()
def word(address):
    host = ctypes.c_uint32(77)
    ok(d.cuMemcpyDtoHAsync(host, address, 4, beside)); ok(d.cuStreamSynchronize(beside)); return host.value
def write(address, value=1): ok(d.cuMemcpyHtoDAsync(address, ctypes.c_uint32(value), 4, beside))
def is_done(stream): return int(d.cuStreamQuery(stream)[0]) == 0
'''


def test_a_kernel_ends_when_another_streams_copy_sets_its_flag() -> None:
    assert (
        out(SPIN + "s = free_stream(); spin(s); write(FLAG); ok(d.cuStreamSynchronize(s)); print(word(DONE))")
        == "1"
    )


def test_a_kernel_ends_when_another_streams_kernel_sets_its_flag() -> None:
    assert (
        out(
            SPIN
            + "a, b = blocking(), blocking(); spin(a); signal(b); ok(d.cuCtxSynchronize()); print(word(DONE))"
        )
        == "1"
    )


def test_kernels_of_many_streams_run_at_the_same_time() -> None:
    """Each but the last waits for the next one's word, so all must have begun before the first can end."""
    code = """
streams = [blocking() for _ in range(24)]
at = [words + 8 * i for i in range(25)]
for i, s in enumerate(streams): spin(s, at[i + 1], at[i])
write(at[24]); ok(d.cuCtxSynchronize()); print(word(at[0]))
"""
    assert out(SPIN + code) == "1"


ORDERED, OVERLAP = "ordered", "overlap"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("LEGACY", "LEGACY", ORDERED),
        ("LEGACY", "blocking()", ORDERED),
        ("blocking()", "LEGACY", ORDERED),
        ("0", "blocking()", ORDERED),
        ("blocking()", "0", ORDERED),
        ("LEGACY", "PER_THREAD", ORDERED),
        ("PER_THREAD", "LEGACY", ORDERED),
        ("PER_THREAD", "PER_THREAD", ORDERED),
        ("LEGACY", "free_stream()", OVERLAP),
        ("free_stream()", "LEGACY", OVERLAP),
        ("blocking()", "blocking()", OVERLAP),
        ("blocking()", "PER_THREAD", OVERLAP),
        ("free_stream()", "free_stream()", OVERLAP),
    ],
)
def test_which_streams_wait_for_each_other(first: str, second: str, expected: str) -> None:
    """A kernel of the second stream sees the end of the first stream's, or is done before it."""
    code = f"""
first, second = {first}, {second}
spin(first)
ok(d.cuMemcpyDtoDAsync(SEEN, DONE, 4, second)); event = ok(d.cuEventCreate(0)); ok(d.cuEventRecord(event, second))
if {expected == OVERLAP}:
    ok(d.cuEventSynchronize(event)); assert not is_done(first)
else:
    word(FLAG); assert int(d.cuEventQuery(event)[0]) == 600
write(FLAG); ok(d.cuCtxSynchronize()); print(word(SEEN))
"""
    assert out(SPIN + code) == ("1" if expected == ORDERED else "0")


def test_the_legacy_stream_stands_between_blocking_streams() -> None:
    code = """
a, b = blocking(), blocking()
spin(a); ok(d.cuMemsetD32Async(OTHER, 5, 1, 0)); ok(d.cuMemcpyDtoDAsync(SEEN, OTHER, 4, b))
assert not is_done(b) and not is_done(0)
write(FLAG); ok(d.cuStreamSynchronize(b)); print(word(SEEN), word(DONE))
"""
    assert out(SPIN + code) == "5 1"


def test_threads_have_default_streams_of_their_own() -> None:
    code = """
spin(PER_THREAD)
def other():
    ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(0)))); signal(PER_THREAD); ok(d.cuStreamSynchronize(PER_THREAD))
t = threading.Thread(target=other); t.start(); t.join()
ok(d.cuStreamSynchronize(PER_THREAD)); print(word(DONE))
"""
    assert out(SPIN + code) == "1"


def test_calls_with_per_thread_names_use_that_stream() -> None:
    code = """
lib = ctypes.CDLL("libcuda.so.1"); flag = ctypes.c_uint64(FLAG); done = ctypes.c_uint64(DONE)
kp = (ctypes.c_void_p * 2)(ctypes.addressof(flag), ctypes.addressof(done))
assert lib.cuLaunchKernel_ptsz(ctypes.c_void_p(int(spin_kernel)), 1,1,1, 1,1,1, 0, None, kp, None) == 0
assert not is_done(PER_THREAD) and lib.cuStreamQuery_ptsz(None) == 600
s = blocking(); signal(s); ok(d.cuStreamSynchronize(s)); assert lib.cuStreamSynchronize_ptsz(None) == 0; print(word(DONE))
"""
    assert out(SPIN + code) == "1"


def test_an_event_orders_two_streams() -> None:
    code = """
a, b = free_stream(), free_stream(); event = ok(d.cuEventCreate(0))
spin(a); ok(d.cuEventRecord(event, a)); ok(d.cuStreamWaitEvent(b, event, 0)); ok(d.cuMemcpyDtoDAsync(SEEN, DONE, 4, b))
assert not is_done(b)
write(FLAG); ok(d.cuStreamSynchronize(b)); print(word(SEEN))
"""
    assert out(SPIN + code) == "1"


def test_what_waits_for_an_event_waits_for_where_it_was_recorded_then() -> None:
    """Recorded again behind an endless kernel, it holds nobody who waited for it before."""
    code = """
a, b, c = free_stream(), free_stream(), free_stream(); event = ok(d.cuEventCreate(0))
spin(a, OTHER); ok(d.cuEventRecord(event, a)); ok(d.cuStreamWaitEvent(b, event, 0)); ok(d.cuMemcpyDtoDAsync(SEEN, DONE, 4, b))
spin(c); ok(d.cuEventRecord(event, c)); write(OTHER)
ok(d.cuStreamSynchronize(b)); print(word(SEEN), is_done(c), int(d.cuEventQuery(event)[0]))
write(FLAG); ok(d.cuEventSynchronize(event)); print(is_done(c))
"""
    assert out(SPIN + code) == "1 False 600\nTrue"


def test_events_tell_the_time_between_streams() -> None:
    code = """
import time
a = free_stream(); start, middle, end = (ok(d.cuEventCreate(0)) for _ in range(3))
before = time.perf_counter(); ok(d.cuEventRecord(start, a)); spin(a); ok(d.cuEventRecord(end, a))
ok(d.cuEventRecord(middle, beside)); ok(d.cuEventSynchronize(middle)); assert int(d.cuEventElapsedTime(start, end)[0]) == 600
write(FLAG); ok(d.cuEventSynchronize(end)); after = time.perf_counter()
whole, part, rest = (ok(d.cuEventElapsedTime(x, y)) for x, y in ((start, end), (start, middle), (middle, end)))
print(part > 0, rest > 0, abs(part + rest - whole) < 0.01, whole <= (after - before) * 1e3)
"""
    assert out(SPIN + code) == "True True True True"


def test_a_pinned_copy_into_a_busy_stream_returns_at_once_and_is_made_in_order() -> None:
    code = """
s = free_stream(); n = 1 << 20; big = int(ok(d.cuMemAlloc(n))); pinned = ok(d.cuMemHostAlloc(n, 0)); back = ok(d.cuMemHostAlloc(n, 0))
ctypes.memset(pinned, 3, n); spin(s)
ok(d.cuMemcpyHtoDAsync(big, pinned, n, s)); ok(d.cuMemcpyDtoHAsync(back, big, n, s))
assert not is_done(s); ctypes.memset(pinned, 4, n)
write(FLAG); ok(d.cuStreamSynchronize(s)); print(set(ctypes.string_at(back, n)))
"""
    assert out(SPIN + code) == "{4}"


def test_pageable_memory_may_change_when_a_small_copy_has_returned() -> None:
    code = """
s = free_stream(); host = ctypes.c_uint32(5); spin(s); ok(d.cuMemcpyHtoDAsync(SEEN, host, 4, s)); host.value = 6
write(FLAG); ok(d.cuStreamSynchronize(s)); print(word(SEEN))
"""
    assert out(SPIN + code) == "5"


def test_memory_is_freed_in_its_streams_order() -> None:
    code = """
s = free_stream(); p = ok(d.cuMemAllocAsync(1 << 20, s)); spin(s); before = ok(d.cuMemGetInfo())[0]
ok(d.cuMemFreeAsync(p, s)); word(FLAG); assert ok(d.cuMemGetInfo())[0] == before
write(FLAG); ok(d.cuStreamSynchronize(s)); print(ok(d.cuMemGetInfo())[0] - before)
"""
    assert out(SPIN + code) == str(1 << 20)


def test_a_host_function_holds_its_own_stream_only() -> None:
    code = """
a, b = free_stream(), free_stream(); go = threading.Event(); said = []
Host = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
@Host
def wait(_): go.wait(); said.append("host"); said.append(int(d.cuCtxSynchronize()[0]))
ok(d.cuLaunchHostFunc(a, d.CUhostFn(ctypes.cast(wait, ctypes.c_void_p).value), 0)); spin(a)
signal(b); ok(d.cuStreamSynchronize(b)); assert not is_done(a)
said.append("b"); go.set(); ok(d.cuStreamSynchronize(a)); print(said, word(DONE))
"""
    assert out(SPIN + code) == "['b', 'host', 800] 1"


def test_a_stream_that_is_destroyed_does_its_work_all_the_same() -> None:
    code = "s = blocking(); spin(s); ok(d.cuStreamDestroy(s)); write(FLAG); ok(d.cuCtxSynchronize()); print(word(DONE))"
    assert out(SPIN + code) == "1"


def test_an_error_in_one_stream_is_every_streams_error() -> None:
    code = """
a, b = free_stream(), free_stream(); wild = load(WILD, b"wild")
run(wild, a); print(int(d.cuStreamSynchronize(a)[0]), int(d.cuStreamSynchronize(b)[0]), int(d.cuMemAlloc(64)[0]))
"""
    assert out(SPIN + code).splitlines()[-1] == "700 700 700"


def test_a_wait_asks_the_device_that_the_stream_is_of() -> None:
    """The stream of device 0 is waited for, and its event used, while device 1 is current."""
    code = """
s = free_stream(); event = ok(d.cuEventCreate(0)); spin(s); ok(d.cuEventRecord(event, s)); write(FLAG)
zero = ok(d.cuCtxGetCurrent()); ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(1))))
there = ok(d.cuStreamCreate(0)); elsewhere = int(ok(d.cuMemAlloc(64))); ok(d.cuStreamWaitEvent(there, event, 0))
ok(d.cuMemsetD32Async(elsewhere, 9, 1, there)); assert int(d.cuEventRecord(event, there)[0]) == 400
ok(d.cuStreamSynchronize(there)); ok(d.cuStreamSynchronize(s)); assert int(ok(d.cuStreamGetDevice(s))) == 0
host = ctypes.c_uint32(); ok(d.cuMemcpyDtoH(host, elsewhere, 4)); ok(d.cuCtxSetCurrent(zero)); print(host.value, word(DONE))
"""
    assert out(SPIN + code, models="v100:2") == "9 1"


def test_devices_do_not_wait_for_each_other() -> None:
    code = """
spin(0); zero = ok(d.cuCtxGetCurrent()); ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(1)))); ok(d.cuCtxSynchronize())
p = ok(d.cuMemAlloc(64)); ok(d.cuMemFree(p)); ok(d.cuCtxSetCurrent(zero)); print(is_done(0))
write(FLAG); ok(d.cuCtxSynchronize()); print(word(DONE))
"""
    assert out(SPIN + code, models="v100:2") == "False\n1"


def test_a_context_waits_for_its_own_streams_only() -> None:
    code = """
spin(0); first = ok(d.cuCtxGetCurrent()); second = ok(d.cuCtxCreate(None, 0, 0)) if "ctxCreateParams" in (d.cuCtxCreate.__doc__ or "") else ok(d.cuCtxCreate(0, 0))
ok(d.cuMemsetD32Async(OTHER, 5, 1, 0)); ok(d.cuCtxSynchronize()); ok(d.cuCtxDestroy(second)); ok(d.cuCtxSetCurrent(first)); print(is_done(0), word(OTHER))
write(FLAG); ok(d.cuCtxSynchronize()); print(word(DONE))
"""
    assert out(SPIN + code) == "False 5\n1"


def test_threads_share_a_device() -> None:
    """Eight threads, each with a stream, events and copies of its own: no lost and no early result."""
    code = """
from concurrent.futures import ThreadPoolExecutor
context = ok(d.cuCtxGetCurrent())
def work(number):
    ok(d.cuCtxSetCurrent(context)); s, t = blocking(), free_stream(); memory = int(ok(d.cuMemAlloc(512)))
    for i in range(60):
        value, back, event = ctypes.c_uint32(number * 1000 + i), ctypes.c_uint32(), ok(d.cuEventCreate(2))
        ok(d.cuMemcpyHtoDAsync(memory, value, 4, s)); ok(d.cuEventRecord(event, s)); ok(d.cuStreamWaitEvent(t, event, 0))
        ok(d.cuMemcpyDtoDAsync(memory + 256, memory, 4, t)); ok(d.cuMemcpyDtoHAsync(back, memory + 256, 4, t))
        ok(d.cuStreamSynchronize(t)); assert back.value == value.value, (back.value, value.value)
        ok(d.cuEventDestroy(event))
    ok(d.cuStreamDestroy(s)); ok(d.cuStreamDestroy(t)); ok(d.cuMemFree(memory)); return number
print(sum(ThreadPoolExecutor(8).map(work, range(8))))
"""
    assert out(SPIN + code) == "28"


def test_nobody_looks_for_work_again_and_again_while_a_kernel_runs() -> None:
    """The program's thread runs its kernels itself; each look of another would take the processor from those that help it."""
    code = """
import os, threading
def sleeps(thread):
    try: status = open(f"/proc/self/task/{thread}/status").read()
    except FileNotFoundError: return 0
    return int(status.split("\\nvoluntary_ctxt_switches:")[1].split()[0])
def sleeps_of_others(): return sum(sleeps(thread) for thread in os.listdir("/proc/self/task") if int(thread) != threading.get_native_id())
begin()
f = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(ADD + b"\\0")), b"add"))
n = 4096 * 128; p = ok(d.cuMemAlloc(4 * n)); ok(d.cuMemsetD32(p, 0, n))
def wait_for_one(): assert launch(f, p, n) == 0; ok(d.cuCtxSynchronize())
for _ in range(3): wait_for_one()
before = sleeps_of_others()
for _ in range(20): wait_for_one()
print(sleeps_of_others() - before)
"""
    sleeps = out(code, GPUKERNEL_SIMGPU_THREADS="1", GPUKERNEL_SIMGPU_TIER="interpreter")
    assert int(sleeps) < 5 * 20


CHAIN = '''
CHAIN = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry chain(.param .u64 counts, .param .u64 done, .param .u32 round, .param .u32 heavy) {
    .reg .pred %p; .reg .b32 %r<9>; .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [counts]; ld.param.u64 %rd2, [done]; ld.param.u32 %r1, [round]; ld.param.u32 %r6, [heavy];
    mov.u32 %r2, %ctaid.x; mul.wide.u32 %rd3, %r2, 4;
    add.u64 %rd4, %rd1, %rd3; add.u64 %rd5, %rd2, %rd3;
    red.global.add.u32 [%rd4], 1;
    setp.ge.u32 %p, %r2, %r6; @%p bra light;
    mov.u32 %r7, 0;
more:
    add.u32 %r7, %r7, 1; setp.lt.u32 %p, %r7, 3000; @%p bra more;
light:
    setp.eq.u32 %p, %r2, 0; @%p bra first;
again:
    ld.volatile.global.u32 %r3, [%rd5 + -4]; setp.ne.u32 %p, %r3, %r1; @%p bra again;
first:
    st.volatile.global.u32 [%rd5], %r1;
    ret;
}
"""
begin()
f = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(CHAIN + b"\\0")), b"chain"))
MOST, rounds = 1000, 0
counts, done = (int(ok(d.cuMemAlloc(4 * MOST))) for _ in range(2))
for blocks in (1, 2, 3, 5, 8, 64, MOST):
    ok(d.cuMemsetD32(counts, 0, MOST)); ok(d.cuMemsetD32(done, 0, MOST))
    for heavy in (0, blocks // 8 + 1, blocks):
        for _ in range(3):
            rounds += 1
            types = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32)
            ok(d.cuLaunchKernel(f, blocks, 1, 1, 1, 1, 1, 0, 0, ((counts, done, rounds, heavy), types), 0))
    found = (ctypes.c_uint32 * MOST)(); ok(d.cuMemcpyDtoH(ctypes.addressof(found), counts, ctypes.sizeof(found)))
    assert list(found) == [9] * blocks + [0] * (MOST - blocks), (blocks, list(found))
print("ended")
'''


@pytest.mark.parametrize("tier", ["interpreter", "compiled"])
@pytest.mark.parametrize("threads", ["1", "2", "3", "7"])
def test_each_block_runs_once_and_may_wait_for_the_one_before_it(threads: str, tier: str) -> None:
    assert out(CHAIN, GPUKERNEL_SIMGPU_THREADS=threads, GPUKERNEL_SIMGPU_TIER=tier) == "ended"


STOLEN = '''
WAITS = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry waits(.param .u64 done, .param .u32 of) {
    .reg .pred %p; .reg .b32 %r<6>; .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [done]; ld.param.u32 %r1, [of]; mov.u32 %r2, %ctaid.x;
    setp.ne.u32 %p, %r2, 0; @%p bra other;
    mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2;
again:
    ld.volatile.global.u32 %r3, [%rd3]; setp.eq.u32 %p, %r3, 0; @%p bra again;
other:
    mul.wide.u32 %rd2, %r2, 4; add.u64 %rd3, %rd1, %rd2; mov.u32 %r4, 1; st.volatile.global.u32 [%rd3], %r4;
    ret;
}
"""
begin()
f = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(WAITS + b"\\0")), b"waits"))
done = int(ok(d.cuMemAlloc(4 * 1024)))
for blocks in (128, 1024):
    for of in (blocks // 2 - 1, blocks // 4, blocks - 1):
        ok(d.cuMemsetD32(done, 0, 1024))
        ok(d.cuLaunchKernel(f, blocks, 1, 1, 1, 1, 1, 0, 0, ((done, of), (ctypes.c_uint64, ctypes.c_uint32)), 0))
        ok(d.cuCtxSynchronize())
print("ended")
'''


@pytest.mark.parametrize("threads", ["2", "3"])
def test_a_thread_that_has_done_takes_blocks_from_one_that_is_busy(threads: str) -> None:
    assert out(STOLEN, GPUKERNEL_SIMGPU_THREADS=threads) == "ended"
