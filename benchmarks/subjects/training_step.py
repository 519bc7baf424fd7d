"""One step of a training as the driver sees it: 300 calls, and 4 places where a number is read back and waited for.

One of the figures of `benchmarks.subjects.driver_calls`.  The step is that of a small network: copies in, launches of a multiply-add
kernel over a few thousand numbers, fills, two allocations and their frees, event records, and at four places a copy to the
host and a wait for the stream.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

from benchmarks.subjects.driver import open_driver

KERNEL = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry saxpy(.param .u64 x, .param .u64 y, .param .f32 a, .param .u32 n) {
    .reg .pred %p; .reg .b32 %r<6>; .reg .b64 %rd<6>; .reg .f32 %f<5>;
    ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y]; ld.param.f32 %f1, [a]; ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p, %r5, %r1; @%p bra done;
    mul.wide.u32 %rd3, %r5, 4; add.s64 %rd4, %rd1, %rd3; add.s64 %rd5, %rd2, %rd3;
    ld.global.f32 %f2, [%rd4]; ld.global.f32 %f3, [%rd5]; fma.rn.f32 %f4, %f1, %f2, %f3; st.global.f32 [%rd5], %f4;
done:
    ret;
}
"""
NUMBERS = 16384
LAUNCHES, COPIES, FILLS, RECORDS, WAITS = (
    240,
    16,
    16,
    16,
    4,
)  # with two allocations, two frees, four copies back: 300


def training_step() -> Callable[[], float]:
    """Return a function that runs one step and returns the seconds that it took."""
    cuda, call, function = open_driver(KERNEL, b"saxpy")
    stream, event = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuStreamCreate", ctypes.byref(stream), 1)
    call("cuEventCreate", ctypes.byref(event), 0)
    size = ctypes.c_size_t(4 * NUMBERS)
    x, y, more = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(x), size)
    call("cuMemAlloc_v2", ctypes.byref(y), size)
    batch, loss = ctypes.create_string_buffer(8192), ctypes.create_string_buffer(4)
    a, n = ctypes.c_float(0.5), ctypes.c_uint32(NUMBERS)
    parameters = (ctypes.c_void_p * 4)(*(ctypes.addressof(value) for value in (x, y, a, n)))
    blocks = NUMBERS // 256

    def step() -> float:
        start = time.perf_counter()
        for quarter in range(WAITS):
            for _ in range(COPIES // WAITS):
                cuda.cuMemcpyHtoDAsync_v2(x, batch, ctypes.c_size_t(8192), stream)
            for _ in range(FILLS // WAITS):
                cuda.cuMemsetD32Async(y, 0, ctypes.c_size_t(NUMBERS), stream)
            if quarter % 2 == 0:
                cuda.cuMemAllocAsync(ctypes.byref(more), size, stream)
            for number in range(LAUNCHES // WAITS):
                cuda.cuLaunchKernel(function, blocks, 1, 1, 256, 1, 1, 0, stream, parameters, None)
                if number % 13 == 0 and number < 13 * (RECORDS // WAITS):
                    cuda.cuEventRecord(event, stream)
            if quarter % 2 == 0:
                cuda.cuMemFreeAsync(more, stream)
            call("cuMemcpyDtoHAsync_v2", loss, y, ctypes.c_size_t(4), stream)
            call("cuStreamSynchronize", stream)
        return time.perf_counter() - start

    return step
