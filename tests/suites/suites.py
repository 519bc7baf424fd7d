"""The suites, what of them fails, and why."""

from __future__ import annotations

from tests.suites.runner import Suite

_PROCESSES = "starts processes that import the test by its short name, which the import mode of a wheel's tests forbids"
_OUT_OF_BOUNDS = (
    "writes ten elements to an array of one, which the simulated GPU reports as compute-sanitizer would"
)

_NUMBA_KNOWN = {
    "TestCudaLocalMem.test_struct_model_type_arr": _OUT_OF_BOUNDS,
    "TestMultiprocessCache.test_multiprocessing": _PROCESSES,
    "TestMultiThreadCompiling.test_spawn_concurrent_compilation": _PROCESSES,
}

NUMBA = Suite(
    name="numba-cuda",
    version="numba-cuda",
    targets=("--pyargs", "numba.cuda.tests.cudapy"),
    known=_NUMBA_KNOWN,
)

# A part that takes about a minute and goes through every kind of kernel; `make suites` runs the whole.
NUMBA_PART = Suite(
    name="a part of numba-cuda",
    version="numba-cuda",
    targets=(
        "--pyargs",
        *(
            f"numba.cuda.tests.cudapy.test_{name}"
            for name in (
                "array_args",
                "blackscholes",
                "boolean",
                "constmem",
                "device_func",
                "exception",
                "fastmath",
                "globals",
                "inline",
                "laplace",
                "lang",
                "localmem",
                "mandel",
                "matmul",
                "minmax",
                "multigpu",
                "powi",
                "reduction",
                "sm_creation",
                "sync",
                "warp_ops",
            )
        ),
    ),
    known=_NUMBA_KNOWN,
)
