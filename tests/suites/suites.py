"""The suites, what of them fails, and why."""

from __future__ import annotations

from tests.suites import repositories, sources
from tests.suites.runner import Suite

_IPC = "pickles the bytes of an IPC handle, which cuda-bindings 12.9.10 does not show"
_CACHE = "numba 0.68 and numba-cuda 0.30 stamp the index file that they share differently"

# Whole classes, or single tests (docs/compatibility.md).
_NUMBA_KNOWN = {
    "TestIpcMemory": _IPC,
    "TestIpcStaged": _IPC,
    "CUDAAndCPUCachingTest": _CACHE,
}

NUMBA = Suite(
    "numba-cuda",
    repositories.numba_as_its_developers_do,
    known=_NUMBA_KNOWN,
    together=True,
    simulate="h100:1",
)

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
)

_CUDA_PYTHON_KNOWN = {
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
