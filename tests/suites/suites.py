"""The suites, what of them fails, and why."""

from __future__ import annotations

from tests.suites.runner import Suite

_PROCESSES = "starts processes that import the test by its short name, which the import mode of a wheel's tests forbids"
_OUT_OF_BOUNDS = (
    "writes ten elements to an array of one, which the simulated GPU reports as compute-sanitizer would"
)

_NUMBA_KNOWN: dict[str, str] = {}

_NUMBA_LEFT_OUT = {
    "TestCudaLocalMem.test_struct_model_type_arr": _OUT_OF_BOUNDS,
    "TestMultiprocessCache.test_multiprocessing": _PROCESSES,
    "TestMultiThreadCompiling.test_spawn_concurrent_compilation": _PROCESSES,
}

_NUMBA = "numba.cuda.tests.cudapy"

NUMBA = Suite("numba-cuda", _NUMBA, left_out=_NUMBA_LEFT_OUT, known=_NUMBA_KNOWN)

# A part that takes about a minute and goes through every kind of kernel; `make suites` runs the whole.
NUMBA_PART = Suite(
    "numba-cuda",
    _NUMBA,
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
