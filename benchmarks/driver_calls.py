"""The cost of single driver calls, through whichever ``libcuda.so.1`` this process finds.

Run by ``benchmarks.data_path`` three times: on the simulated GPU in process, and through the shim over a
unix socket and over TCP.  Speaks the driver API through ctypes, so that no framework's own cost is in the figures.
Prints one JSON object: seconds per call, bytes per second for the copies.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import time
from collections.abc import Callable

from benchmarks.driver import open_driver

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

    def per_call(function_: Callable[[], object], count: int, repeats: int = 9) -> float:
        figures = []
        for _ in range(repeats):
            start = time.perf_counter()
            for _ in range(count):
                function_()
            figures.append((time.perf_counter() - start) / count)
            synchronize()
        return statistics.median(figures)

    word = ctypes.create_string_buffer(4)
    size = ctypes.c_size_t(COPY_BYTES)
    results = {
        "launch": per_call(lambda: launch(function, 1, 1, 1, 1, 1, 1, 0, None, parameters, None), 500),
        "launch_and_synchronize": per_call(
            lambda: (launch(function, 1, 1, 1, 1, 1, 1, 0, None, parameters, None), synchronize()), 300
        ),
        "synchronous_call": per_call(lambda: cuda.cuMemcpyDtoH_v2(word, memory, ctypes.c_size_t(4)), 1000),
        "attribute": per_call(lambda: get_attribute(attribute_pointer, WARP_SIZE_ATTRIBUTE, 0), 20000),
        "empty_ctypes_call": per_call(lambda: cuda.cuDriverGetVersion(attribute_pointer), 20000),
    }

    def bandwidth(copy: Callable[[], object]) -> float:
        copy(), synchronize()
        figures = []
        for _ in range(7):
            start = time.perf_counter()
            copy(), synchronize()
            figures.append(COPY_BYTES / (time.perf_counter() - start))
        return statistics.median(figures)

    results["host_to_device"] = bandwidth(lambda: cuda.cuMemcpyHtoD_v2(memory, host, size))
    results["device_to_host"] = bandwidth(lambda: cuda.cuMemcpyDtoH_v2(host, memory, size))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
