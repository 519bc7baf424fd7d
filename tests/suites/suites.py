"""The suites, what of them fails, and why."""

from __future__ import annotations

from tests.suites import sources
from tests.suites.runner import Suite

_PROCESSES = "starts processes that import the test by its short name, which the import mode of a wheel's tests forbids"
_NAMES = "looks at the names of modules, which that import mode makes short"
_OUT_OF_BOUNDS = "reads or writes past its array, which the simulated GPU reports as compute-sanitizer would"

_IPC = "IPC handles cannot cross a network"

# Whole classes, or single tests (docs/compatibility.md).
_NUMBA_KNOWN = {
    "TestIpcMemory": _IPC,
    "TestIpcStaged": _IPC,
    "TestNumbaInternalOverloads.test_signatures_match_overloaded_api": _NAMES,
    "TestLowLevelExtending.test_func1_isolated": _PROCESSES,
    "TestIntrinsic.test_docstring": _NAMES,
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

_CONDITIONAL = "conditional nodes of graphs"

_CUDA_PYTHON_KNOWN = {
    "test_cuda.test_conditional": _CONDITIONAL,
    "test_cudart.test_cudart_conditional": _CONDITIONAL,
    "test_cuda.test_cuDeviceGetDevResource": "green contexts",
    "test_cuda.test_cuda_coredump_attr": "coredumps",
}

CUDA_PYTHON = Suite("cuda-python", sources.cuda_python, known=_CUDA_PYTHON_KNOWN)
CUDA_PYTHON_PART = Suite(
    "cuda-python", sources.cuda_python, ("test_cuda", "test_interoperability"), known=_CUDA_PYTHON_KNOWN
)

_DEVICE_RUNTIME = "libcudadevrt.a, the device runtime, which no wheel has"
_PYCUDA_KNOWN = {
    "TestDriver.test_jit_link_module": _DEVICE_RUNTIME,
    "TestDriver.test_recursive_launch": _DEVICE_RUNTIME,
}
_PYCUDA_LEFT_OUT = {
    "TestGPUArray.test_big_array_elementwise": "four thousand million elements: minutes on a simulated GPU"
}

PYCUDA = Suite("pycuda", sources.pycuda, left_out=_PYCUDA_LEFT_OUT, known=_PYCUDA_KNOWN)
PYCUDA_PART = Suite("pycuda", sources.pycuda, ("test_driver",), known=_PYCUDA_KNOWN)
