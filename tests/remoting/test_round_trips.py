"""Round trips of programs: a step that reads a value has one round trip, whatever calls it is made of."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from gpukernel import native
from tests.remoting.conftest import PRELUDE, worker
from tests.remoting.round_trips import conversation, each_step

STEP = r"""
import sys, numpy as np
begin()
SOURCE = b'''.version 7.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 to, .param .u32 n) { .reg .b64 %a; .reg .b32 %r<3>; ld.param.u64 %a, [to]; ld.param.u32 %r1, [n]; ld.global.u32 %r2, [%a]; add.u32 %r2, %r2, %r1; st.global.u32 [%a], %r2; ret; }
'''
kernel = load(SOURCE, b"add"); p = int(ok(d.cuMemAlloc(4096))); q = int(ok(d.cuMemAlloc(4096))); own = np.zeros(4, np.uint32); h = own.ctypes.data; s = ok(d.cuStreamCreate(1)); ok(d.cuMemsetD32(p, 0, 1024)); ok(d.cuMemsetD32(q, 5, 1024)); ok(d.cuCtxSynchronize())  # which a stream that does not wait for others' would overtake
def add(n, to=p, stream=0):
    v = ctypes.c_uint64(to), ctypes.c_uint32(n); a = (ctypes.c_void_p * 2)(*map(ctypes.addressof, v)); ok(d.cuLaunchKernel(kernel, 1,1,1, 1,1,1, 0, stream, ctypes.addressof(a), 0))
def wait(): ok(d.cuCtxSynchronize())
def read(of=p, n=4): ok(d.cuMemcpyDtoH(h, of, n)); return int(own[0])
N = int(sys.argv[1]) if len(sys.argv) > 1 else 0
"""


def waits(step: str, check: str = "", few: int = 10, many: int = 30, begin: str = STEP) -> float:
    """Return the round trips of one `step`."""
    return each_step(lambda counter: counter.trips, begin, step, check, few, many)


@pytest.mark.parametrize(
    ("step", "trips"),
    [
        ("add(1)", 0),
        ("add(1); assert read() == i + 1", 1),
        ("add(1); wait()", 1),
        ("add(1); wait(); assert read() == i + 1", 1),
        # As TensorFlow does before each launch.
        (
            "[ok(d.cuOccupancyMaxActiveBlocksPerMultiprocessor(kernel, n, 0)) for n in (32, 64, 1024)]; ok(d.cuFuncGetAttribute(d.CUfunction_attribute(0), kernel)); add(1)",
            0,
        ),
        # As XLA does before each launch.
        (
            "[ok(d.cuFuncSetAttribute(kernel, d.CUfunction_attribute(a), n)) for a, n in ((8, 60000), (9, 50))]; add(1)",
            0,
        ),
        # As Numba does, which keeps no memory itself.
        (
            "r = int(ok(d.cuMemAlloc(4096))); ok(d.cuMemsetD32(r, i, 4)); add(1, r); ok(d.cuMemFree(r))",
            0,
        ),
        (
            "r = int(ok(d.cuMemAlloc(64))); t = int(ok(d.cuMemAlloc(64))); ok(d.cuMemsetD32(r, i, 4)); ok(d.cuMemsetD32(t, 3, 4)); add(1, r); assert read(r) == i + 1; ok(d.cuMemFree(r)); ok(d.cuMemFree(t))",
            1,
        ),
        (
            "add(1); wait(); ok(d.cuStreamSynchronize(0)); assert read() == i + 1; ok(d.cuStreamSynchronize(0))",
            1,
        ),
        (
            "add(1, p, s); ok(d.cuMemcpyDtoHAsync(h, p, 4, s)); ok(d.cuStreamSynchronize(s)); assert own[0] == i + 1",
            1,
        ),
    ],
)
def test_a_step_waits_once_for_each_value_that_it_reads(step: str, trips: int) -> None:
    assert waits(step) == pytest.approx(trips, abs=0.2)  # now and then one more or less at the start


@pytest.mark.parametrize(
    "step",
    [
        # What was foreseen is not what is asked for, or not any more.
        "add(1); wait(); assert read() == i + 1; add(1, q); wait(); assert read(q) == 6 + i",
        "add(1); wait(); add(1, q); add(1, q); assert read() == i + 1; assert read(q) == 7 + 2 * i",
        "add(1); wait(); assert read() == 2 * i + 1; wait(); add(1); assert read() == 2 * i + 2",
        "add(1); wait(); ok(d.cuMemsetD32(p, 3 * i, 1)); assert read() == 3 * i; own[0] = 0; ok(d.cuMemsetD32(p, i + 1, 1))",
        "own[:] = 0; add(1); wait(); assert read(p, 4) == i + 1 and read(p, 8) == i + 1",
    ],
)
def test_what_is_read_is_what_the_device_has(step: str) -> None:
    waits(step)


def test_memory_that_is_freed_after_the_wait_is_an_error_and_the_next_call_is_none() -> None:
    """Bytes that were read ahead are thrown away; an error of the reading ahead is nobody's."""
    step = """r = int(ok(d.cuMemAlloc(64))); ok(d.cuMemsetD32(r, i, 4)); wait(); assert read(r) == i; wait(); ok(d.cuMemFree(r)); assert d.cuMemcpyDtoH(h, r, 4)[0] != 0; wait(); wait(); assert read() == 0"""
    waits(step)


def test_a_stream_that_does_not_exist_is_not_done_after_a_wait() -> None:
    code = "add(1); wait(); print(name(d.cuStreamSynchronize(12345))); e = ok(d.cuStreamCreate(1)); ok(d.cuStreamDestroy(e)); wait(); print(name(d.cuStreamSynchronize(e)))"
    says(code, ["INVALID_HANDLE"] * 2)


def test_a_wait_for_the_device_waits_for_the_work_of_streams_that_are_gone() -> None:
    """Their work goes on, though nothing else is left to do and an answer has come since."""
    code = """
for i in range(5): e = ok(d.cuStreamCreate(1)); late(p, i + 7, 20_000_000, e); ok(d.cuMemGetInfo()); ok(d.cuStreamDestroy(e)); wait(); print(read())
"""
    says(LATE + code, ["7", "8", "9", "10", "11"])


def test_an_error_of_the_kernels_is_told_by_the_wait() -> None:
    """The wait fails, not the read that came with it."""
    check = """
for _ in range(3): add(1); wait(); read()
add(1, 8); print(d.cuCtxSynchronize()[0].name); print(d.cuMemcpyDtoH(h, p, 4)[0].name)
"""

    async def story() -> list[str]:
        async with worker() as one:
            done = await one.run(STEP.replace("sys.argv[1:]", "[]") + check, kind="tcp")
            return [line for line in done.stdout.splitlines() if line.startswith("CUDA_")]

    assert asyncio.run(story()) == ["CUDA_ERROR_ILLEGAL_ADDRESS"] * 2


SPARES = """
def name(result): return result[0].name.removeprefix("CUDA_").removeprefix("ERROR_")
def free(): return ok(d.cuMemGetInfo())[0]
"""


def says(
    code: str, lines: list[str], *, begin: str = STEP + SPARES, tcp: bool = False, **settings: str
) -> None:
    """Run `code` behind `begin` with a worker of its own, and expect it to print `lines`."""

    async def story() -> None:
        async with worker() as one:
            environment = one.environment(kind="tcp", shared_memory=False) if tcp else one.environment()
            done = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-u", "-c", PRELUDE + begin + code],
                env=environment | settings,
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            assert (done.stdout.splitlines(), done.returncode) == (lines, 0), done.stdout + done.stderr

    asyncio.run(story())


def test_freed_memory_is_free_to_whoever_asks_and_all_of_it_can_be_had() -> None:
    code = """
before = free(); blocks = [int(ok(d.cuMemAlloc(65536))) for _ in range(4)]
for b in blocks: ok(d.cuMemFree(b))
again = int(ok(d.cuMemAlloc(65536))); print(again in blocks); ok(d.cuMemFree(again)); print(free() == before)
blocks = [int(ok(d.cuMemAlloc(65536))) for _ in range(4)]
for b in blocks: ok(d.cuMemFree(b))
whole = int(ok(d.cuMemAlloc(before))); print(free()); ok(d.cuMemFree(whole))
small = [int(ok(d.cuMemAlloc(65536))) for _ in range(before // 65536)]; print(name(d.cuMemAlloc(65536)), free() == before % 65536)
for b in small: ok(d.cuMemFree(b))
other = [int(ok(d.cuMemAlloc(32768))) for _ in range(before // 32768)]; print(free() == before % 32768)
"""
    says(code, ["True", "True", "0", "OUT_OF_MEMORY True", "True"])


def test_freed_memory_is_not_to_be_used() -> None:
    code = """
r = int(ok(d.cuMemAlloc(4096))); ok(d.cuMemFree(r))
print(name(d.cuMemcpyDtoH(h, r, 4)), name(d.cuMemFree(r)), name(d.cuMemGetAddressRange(r)), name(d.cuPointerGetAttribute(d.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, r)))
again = int(ok(d.cuMemAlloc(4096))); d.cuMemcpyHtoD(r + 8192, h, 4); print(name(d.cuMemGetInfo()), name(d.cuMemGetInfo()))
"""
    says(code, ["INVALID_VALUE INVALID_VALUE NOT_FOUND INVALID_VALUE", "INVALID_VALUE SUCCESS"])


def test_who_gets_freed_memory_again_gets_it_after_the_kernels_that_used_it() -> None:
    """As cuMemFree waits for the device, though the program does not wait."""
    code = """
SLOW = b'''.version 7.0
.target sm_70
.address_size 64
.visible .entry slow(.param .u64 to, .param .u32 n) { .reg .b64 %a; .reg .b32 %r<3>; .reg .pred %p; ld.param.u64 %a, [to]; ld.param.u32 %r1, [n];
again: sub.u32 %r1, %r1, 1; setp.ne.u32 %p, %r1, 0; @%p bra again; st.global.u32 [%a], 99; ret; }
'''
slow = load(SLOW, b"slow"); other = ok(d.cuStreamCreate(1)); fine = 0
for i in range(5):
    r = int(ok(d.cuMemAlloc(512))); v = ctypes.c_uint64(r), ctypes.c_uint32(3_000_000); a = (ctypes.c_void_p * 2)(*map(ctypes.addressof, v))
    ok(d.cuLaunchKernel(slow, 1,1,1, 1,1,1, 0, s, ctypes.addressof(a), 0)); ok(d.cuMemFree(r)); t = int(ok(d.cuMemAlloc(512))); assert t == r
    ok(d.cuMemsetD32Async(t, 7, 4, other)); wait(); fine += read(t) == 7; ok(d.cuMemFree(t))
print(fine)
"""
    says(code, ["5"])


def test_threads_never_get_the_same_memory() -> None:
    code = """
import threading
wrong = []; context = ok(d.cuCtxGetCurrent()); ok(d.cuMemFree(int(ok(d.cuMemAlloc(1024)))))
def work(me):
    ok(d.cuCtxSetCurrent(context)); mine = np.zeros(4, np.uint32); stream = ok(d.cuStreamCreate(1))
    for i in range(60):
        r = int(ok(d.cuMemAlloc(1024))); ok(d.cuMemsetD32Async(r, 100 * me + i, 256, stream)); ok(d.cuMemcpyDtoHAsync(mine.ctypes.data, r, 16, stream)); ok(d.cuStreamSynchronize(stream))
        if set(mine.tolist()) != {100 * me + i}: wrong.append((me, i, mine.tolist()))
        ok(d.cuMemFree(r))
threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]; [t.start() for t in threads]; [t.join() for t in threads]; print(wrong)
"""
    says(code, ["[]"])


# A kernel of which nothing has been asked.
FRESH = r"""
def fresh(bound): module = ok(d.cuModuleLoadData(SOURCE.replace(b".visible .entry add(.param .u64 to, .param .u32 n) {", b".visible .entry add(.param .u64 to, .param .u32 n) .maxntid %d { " % bound) + b"\0")); return ok(d.cuModuleGetFunction(module, b"add"))
def blocks(f, n, shared=0): error, count = d.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(f, n, shared, 0); return count if not error else error.name
DOWN = range(1024, 0, -32)
class WRONG(int):
    value = property(int)
def attribute(f, n): return ok(d.cuFuncGetAttribute(d.CUfunction_attribute(n), f))
"""


def test_who_looks_for_the_best_block_asks_once() -> None:
    """TensorFlow does, before the first launch of a kernel: from the largest block down."""
    begin = STEP + FRESH
    loaded = waits("fresh(1024 - i)", begin=begin)
    asked = waits("f = fresh(1024 - i); [blocks(f, n) for n in DOWN]", begin=begin)
    assert asked == pytest.approx(loaded + 1, abs=0.2)


def test_who_asks_for_all_attributes_of_a_kernel_asks_once() -> None:
    """The runtime does, in cudaFuncGetAttributes."""
    begin = STEP + FRESH
    loaded = waits("fresh(1024 - i)", begin=begin)
    asked = waits("f = fresh(1024 - i); [attribute(f, n) for n in range(16)]", begin=begin)
    assert asked == pytest.approx(loaded + 1, abs=0.2)


def test_what_comes_with_a_kernel_s_attribute_is_what_one_question_each_says() -> None:
    code = (
        FRESH
        + """
def each(f, n): ok(d.cuFuncSetAttribute(f, d.CUfunction_attribute(8), 1000 + n)); return attribute(f, n)  # which forgets all
for bound in (32, 96, 1024):
    f = fresh(bound); said = {n: each(f, n) for n in range(16) if n != 8}
    for first in range(16): ok(d.cuFuncSetAttribute(f, d.CUfunction_attribute(8), 2000 + first)); attribute(f, first); assert said == {n: attribute(f, n) for n in said} and attribute(f, 8) == 2000 + first
    print(said[0])
for n in (16, 99): print(d.cuFuncGetAttribute(WRONG(n), f)[0].name)
"""
    )
    says(code, ["32", "96", "1024", "CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_INVALID_VALUE"])


def test_what_comes_with_a_block_s_occupancy_is_what_one_question_each_says() -> None:
    code = (
        FRESH
        + """
for shared in (0, 100, 20 << 10, 48 << 10):
    up, down, odd = fresh(1024), fresh(1024), fresh(1024)
    each = {n: blocks(up, n, shared) for n in reversed(DOWN)}
    print(shared, len(each), each == {n: blocks(down, n, shared) for n in DOWN}, [blocks(odd, n, shared) for n in (1000, 999, 96, 64, 1)] == [blocks(up, n, shared) for n in (1000, 999, 96, 64, 1)])
print(each[1024], [blocks(up, n) for n in (1056, 1024, 0, -32)])
"""
    )
    says(
        code,
        [
            "0 32 True True",
            "100 32 True True",
            "20480 32 True True",
            "49152 32 True True",
            "2 ['CUDA_ERROR_INVALID_VALUE', 2, 'CUDA_ERROR_INVALID_VALUE', 'CUDA_ERROR_INVALID_VALUE']",
        ],
    )


def test_an_answer_that_is_late_is_not_kept_where_the_kernel_has_changed_meanwhile() -> None:
    code = """
import threading, time
DYNAMIC = d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES; context = ok(d.cuCtxGetCurrent())
def dynamic(): ok(d.cuCtxSetCurrent(context)); return ok(d.cuFuncGetAttribute(DYNAMIC, kernel))
ok(d.cuFuncSetAttribute(kernel, DYNAMIC, 100)); early = threading.Thread(target=dynamic); early.start(); time.sleep(0.1)
ok(d.cuFuncSetAttribute(kernel, DYNAMIC, 90 << 10)); early.join(); assert dynamic() == 90 << 10
"""

    async def story() -> None:
        async with worker() as one:
            await conversation(one, STEP + code, one_way=0.2)

    asyncio.run(story())


def test_what_is_known_of_a_kernel_is_forgotten_when_it_changes() -> None:
    code = """
DYNAMIC = d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES; THREADS = d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
def dynamic(): return ok(d.cuFuncGetAttribute(DYNAMIC, kernel))
def occupancy(shared): return d.cuOccupancyMaxActiveBlocksPerMultiprocessor(kernel, 64, shared)[1]
print(dynamic(), occupancy(40 << 10)); ok(d.cuFuncSetAttribute(kernel, DYNAMIC, 90 << 10)); print(dynamic() >> 10, occupancy(80 << 10)); ok(d.cuFuncSetAttribute(kernel, DYNAMIC, 1024)); print(dynamic())
for bytes in (90 << 10, 90 << 10, 1024, 1 << 30, 1024): print(name(d.cuFuncSetAttribute(kernel, DYNAMIC, bytes)), dynamic())
seen = set()
for bound in (64, 128, 256, 64):
    module = ok(d.cuModuleLoadData(SOURCE.replace(b".visible .entry add(.param .u64 to, .param .u32 n) {", b".visible .entry add(.param .u64 to, .param .u32 n) .maxntid %d { " % bound) + b"\\0")); f = ok(d.cuModuleGetFunction(module, b"add"))
    print(ok(d.cuFuncGetAttribute(THREADS, f)), ok(d.cuFuncGetAttribute(THREADS, f)), int(ok(d.cuFuncGetModule(f))) == int(module)); ok(d.cuModuleUnload(module)); print(name(d.cuFuncGetAttribute(THREADS, f)))
"""
    lines = [
        "49152 2",
        "90 1",
        "1024",
        "SUCCESS 92160",
        "SUCCESS 92160",
        "SUCCESS 1024",
        "INVALID_VALUE 1024",
        "SUCCESS 1024",
    ]
    for bound in (64, 128, 256, 64):
        lines += [f"{bound} {bound} True", "INVALID_HANDLE"]
    says(code, lines)


def test_a_strict_check_finds_kernels_that_use_freed_memory() -> None:
    code = "r = int(ok(d.cuMemAlloc(4096))); ok(d.cuMemFree(r)); add(1, r); print(name(d.cuCtxSynchronize()))"

    async def story() -> list[str]:
        async with worker() as one:
            done = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-u", "-c", PRELUDE + STEP + SPARES + code],
                env=one.environment() | {"GPUKERNEL_MEMCHECK": "strict"},
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            return done.stdout.splitlines()[-1:]

    assert asyncio.run(story()) == ["ILLEGAL_ADDRESS"]


LATE = r'''
import threading, time
SLOW = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry slow(.param .u64 to, .param .u32 n, .param .u32 v) { .reg .b64 %a; .reg .b32 %r<3>; .reg .pred %p; ld.param.u64 %a, [to]; ld.param.u32 %r1, [n]; ld.param.u32 %r2, [v];
again: sub.u32 %r1, %r1, 1; setp.ne.u32 %p, %r1, 0; @%p bra again; st.global.u32 [%a], %r2; ret; }
"""
slow = load(SLOW, b"slow"); context = ok(d.cuCtxGetCurrent())
def late(to, value, n, stream=s):
    v = ctypes.c_uint64(to), ctypes.c_uint32(n), ctypes.c_uint32(value); a = (ctypes.c_void_p * 3)(*map(ctypes.addressof, v)); ok(d.cuLaunchKernel(slow, 1,1,1, 1,1,1, 0, stream, ctypes.addressof(a), 0))
def second(after=0): ok(d.cuCtxSetCurrent(context)); time.sleep(after); ok(d.cuMemGetInfo())
'''


def test_with_several_threads_no_read_is_served_before_the_wait_that_it_comes_with() -> None:
    code = """
t = threading.Thread(target=second); t.start(); t.join(); seen = []
for i in range(5): late(p, i + 1, 2_000_000); wait(); seen.append(read())
print(seen)
"""
    says(LATE + code, ["[1, 2, 3, 4, 5]"])


def test_a_thread_that_begins_meanwhile_lets_nobody_use_memory_that_kernels_still_write() -> None:
    code = """
other = ok(d.cuStreamCreate(1)); r = int(ok(d.cuMemAlloc(512))); t = threading.Thread(target=second, args=(0.1,))
late(r, 99, 20_000_000); t.start(); ok(d.cuMemFree(r)); again = int(ok(d.cuMemAlloc(512))); ok(d.cuMemsetD32Async(again, 7, 4, other)); ok(d.cuMemcpyDtoHAsync(h, again, 4, other)); t.join(); wait(); print(again == r, read(again))
"""
    says(LATE + code, ["True 7"])


def test_memory_that_is_freed_in_stream_order_is_not_kept_when_it_comes_back_as_another_kind() -> None:
    code = """
r = int(ok(d.cuMemAlloc(4096))); ok(d.cuMemFreeAsync(r, s)); t = int(ok(d.cuMemAllocAsync(4096, s))); print(t == r); ok(d.cuMemFree(t))
u = int(ok(d.cuMemAlloc(4096))); ok(d.cuMemsetD32(u, 6, 4)); print(read(u), name(d.cuMemFree(u)), name(d.cuCtxSynchronize()))
"""
    says(code, ["True", "6 SUCCESS SUCCESS"])


LAYER = f"""
n = ctypes.CDLL({str(native.libraries_dir() / "libcudnn.so.9")!r}); cudnn, x, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
assert not n.cudnnCreate(ctypes.byref(cudnn)) and not n.cudnnCreateTensorDescriptor(ctypes.byref(x))
def reserve(channels):
    assert not n.cudnnSetTensor4dDescriptor(x, 0, 0, 8, channels, 4, 4)
    assert not n.cudnnGetBatchNormalizationTrainingExReserveSpaceSize(cudnn, 2, 0, None, x, ctypes.byref(size))
"""


@pytest.mark.parametrize(("channels", "trips"), [("16", 0), ("1 + i", 1)])
def test_the_size_of_a_workspace_is_asked_once(channels: str, trips: float) -> None:
    assert waits(f"add(1); reserve({channels})", begin=STEP + LAYER) == trips
