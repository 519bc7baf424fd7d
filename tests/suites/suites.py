"""The suites, what of them fails, and why."""

from __future__ import annotations

from tests.suites import sources
from tests.suites.runner import Suite

_PROCESSES = "starts processes that import the test by its short name, which the import mode of a wheel's tests forbids"
_OUT_OF_BOUNDS = "reads or writes past its array, which the simulated GPU reports as compute-sanitizer would"

_MANAGED = "managed memory cannot cross a network"
_MAPPED = "host memory mapped into the device cannot cross a network"
_IPC = "IPC handles cannot cross a network"

# Whole classes, or single tests (docs/compatibility.md).
_NUMBA_KNOWN = {
    "TestArrayReductions": _MANAGED,
    "TestCudaArrayInterface.test_produce_managed_no_stream": _MANAGED,
    "TestCudaArrayInterface.test_produce_managed_stream": _MANAGED,
    "TestWarnings.test_nowarn_on_managed_array": _MANAGED,
    "TestCudaArray": _MAPPED,
    "TestCudaArrayInterface.test_produce_no_stream": _MAPPED,
    "TestCudaArrayInterface.test_produce_stream": _MAPPED,
    "TestWarnings.test_nowarn_on_mapped_array": _MAPPED,
    "TestIpcMemory": _IPC,
    "TestIpcStaged": _IPC,
    "TestNumbaInternalOverloads.test_signatures_match_overloaded_api": _IPC,
    "TestLowLevelExtending.test_func1_isolated": _PROCESSES,
    "TestIntrinsic.test_docstring": _PROCESSES,
    "CUDAAndCPUCachingTest": "numba 0.68 and numba-cuda 0.30 stamp the index file that they share differently",
}

_NUMBA_LEFT_OUT = {
    "TestCudaLocalMem.test_struct_model_type_arr": _OUT_OF_BOUNDS,
    "TestDispatcher.test_dispatcher_cpointer_arguments": _OUT_OF_BOUNDS,
    "TestMultiprocessCache.test_multiprocessing": _PROCESSES,
    "TestMultiThreadCompiling.test_spawn_concurrent_compilation": _PROCESSES,
}

NUMBA = Suite("numba-cuda", sources.numba, left_out=_NUMBA_LEFT_OUT, known=_NUMBA_KNOWN)

# A part that takes about a minute and goes through every kind of kernel; `make suites` runs the whole.
NUMBA_PART = Suite(
    "numba-cuda",
    sources.numba,
    modules=(
        "test_array_args",
        "test_blackscholes",
        "test_boolean",
        "test_constmem",
        "test_device_func",
        "test_exception",
        "test_fastmath",
        "test_globals",
        "test_inline",
        "test_laplace",
        "test_lang",
        "test_localmem",
        "test_mandel",
        "test_matmul",
        "test_minmax",
        "test_multigpu",
        "test_powi",
        "test_reduction",
        "test_sm_creation",
        "test_sync",
        "test_warp_ops",
    ),
    left_out=_NUMBA_LEFT_OUT,
)

CUDA_PYTHON = Suite("cuda-python", sources.cuda_python)
PYCUDA = Suite("pycuda", sources.pycuda)
