"""The cost of single driver calls and of a training step, through whichever ``libcuda.so.1`` this process finds.

A subject of `benchmarks.interleaving`: on the simulated GPU in process, and through the shim over shared memory, a unix
socket and TCP.  Speaks the driver API through ctypes, so that no framework's own cost is in the figures.
Seconds per call or step, bytes per second for the copies.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

from benchmarks.interleaving import answer
from benchmarks.subjects.driver import open_driver
from benchmarks.subjects.training_step import training_step

EMPTY_KERNEL = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry empty(.param .u64 pointer, .param .u32 number) { ret; }
"""
COPY_BYTES = 256 << 20
WARP_SIZE_ATTRIBUTE = 10


def main() -> None:
    cuda, call, function = open_driver(EMPTY_KERNEL, b"empty")
    memory = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(COPY_BYTES))
    host = ctypes.create_string_buffer(COPY_BYTES)
    ctypes.memset(host, 1, COPY_BYTES)  # touched: no page fault is measured

    number = ctypes.c_uint32(1)
    parameters = (ctypes.c_void_p * 2)(ctypes.addressof(memory), ctypes.addressof(number))
    attribute = ctypes.c_int()
    launch, synchronize, get_attribute = (
        cuda.cuLaunchKernel,
        cuda.cuCtxSynchronize,
        cuda.cuDeviceGetAttribute,
    )
    attribute_pointer = ctypes.byref(attribute)
    word = ctypes.create_string_buffer(4)
    size = ctypes.c_size_t(COPY_BYTES)

    def per_call(function_: Callable[[], object], count: int) -> Callable[[], float]:
        def measure() -> float:
            synchronize()
            start = time.perf_counter()
            for _ in range(count):
                function_()
            seconds = (time.perf_counter() - start) / count
            synchronize()
            return seconds

        return measure

    def bandwidth(copy: Callable[[], object]) -> Callable[[], float]:
        def measure() -> float:
            start = time.perf_counter()
            copy(), synchronize()
            return COPY_BYTES / (time.perf_counter() - start)

        return measure

    answer(
        {
            "launch": per_call(lambda: launch(function, 1, 1, 1, 1, 1, 1, 0, None, parameters, None), 500),
            "launch_of_many": per_call(
                lambda: launch(function, 1, 1, 1, 1, 1, 1, 0, None, parameters, None), 5000
            ),
            "launch_and_synchronize": per_call(
                lambda: (launch(function, 1, 1, 1, 1, 1, 1, 0, None, parameters, None), synchronize()), 300
            ),
            "synchronous_call": per_call(
                lambda: cuda.cuMemcpyDtoH_v2(word, memory, ctypes.c_size_t(4)), 2000
            ),
            "attribute": per_call(lambda: get_attribute(attribute_pointer, WARP_SIZE_ATTRIBUTE, 0), 20000),
            "empty_ctypes_call": per_call(lambda: cuda.cuDriverGetVersion(attribute_pointer), 20000),
            "host_to_device": bandwidth(lambda: cuda.cuMemcpyHtoD_v2(memory, host, size)),
            "device_to_host": bandwidth(lambda: cuda.cuMemcpyDtoH_v2(host, memory, size)),
            "training_step": training_step(),
        }
    )


if __name__ == "__main__":
    main()
