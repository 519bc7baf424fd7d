"""Calls of libraries that would take the worker, its memory or its processor: refused, or a fault of the program's own."""

from __future__ import annotations

import asyncio

import pytest

from tests.native.libraries.conftest import NEEDS_OPENBLAS
from tests.native.libraries.test_on_a_slice import run_on
from tests.remoting.conftest import WITHOUT_SANITIZER, worker

pytestmark = NEEDS_OPENBLAS

AFTERWARDS = """
b = blas(); a = Array(np.ones(4, np.float32))
b.done('cublasSscal_v2', 4, scalar(2, np.float32), a.pointer, 1)
print((a.get() == 2).all())
"""


def said(code: str, memory_mib: int = 256) -> tuple[str, str]:
    """Run `code` and then another program on the same worker; return what the two printed."""

    async def run() -> tuple[str, str]:
        async with worker(memory_mib=memory_mib) as its:
            first = await run_on(its, code)
            after = await run_on(its, AFTERWARDS)
            return first.stdout + first.stderr, after.stdout.strip() + after.stderr

    return asyncio.run(run())


@pytest.mark.parametrize("epilogue", [8, 64])  # DRELU and DGELU without AUX
def test_an_epilogue_that_reads_a_matrix_it_was_not_given_is_refused(epilogue: int) -> None:
    first, after = said(
        f"""
from tests.native.libraries.cublaslt_cases import Lt, EPILOGUE, COMPUTE_32F
lt = Lt()
a = Array(np.ones((16, 16), np.float32))
layout = lt.layout(np.float32, 16, 16, 16)
operation = lt.operation(COMPUTE_32F, np.float32, [(EPILOGUE, {epilogue})])
one, none = scalar(1, np.float32), ctypes.c_void_p()
print(lt('cublasLtMatmul', operation, one, a.pointer, layout, a.pointer, layout, one, a.pointer, layout, a.pointer, layout, none, none, ctypes.c_size_t(0), none),
      d.cuCtxSynchronize()[0].name)
"""
    )
    assert first.startswith("0 CUDA_ERROR_NOT_SUPPORTED"), first
    assert "cublasLtMatmul was refused" in first
    assert after == "True"


@WITHOUT_SANITIZER
def test_pivots_that_lie_in_the_matrix_lead_nowhere() -> None:
    first, after = said(
        """
b = blas()
n = 1024
for kind, letter in ((np.float32, 'S'), (np.complex128, 'Z')):
    a = Array(numbers((n, n), kind))
    info = Array(np.zeros(1, np.int32))
    one = Array(np.array([a.address], np.uint64))
    for shift in (0, n // 2, n * n // 2, n * n - 2 * n):
        b.done(f'cublas{letter}getrfBatched', n, one.pointer, n, ctypes.c_void_p(a.address + 4 * shift), info.pointer, 1)
        print(d.cuCtxSynchronize()[0].name)
"""
    )
    assert first.split() == ["CUDA_SUCCESS"] * 8
    assert after == "True"


def test_a_sum_over_one_element_again_and_again_costs_no_memory() -> None:
    first, after = said(
        """
b = blas()
x, y = Array(np.ones(1, np.float32)), Array(np.zeros(1, np.float32))
b.done('cublasSetPointerMode_v2', 1)
print(b('cublasSdot_v2_64', ctypes.c_int64(2**50), x.pointer, ctypes.c_int64(0), x.pointer, ctypes.c_int64(0), y.pointer), d.cuCtxSynchronize()[0].name)
print(b('cublasSasum_v2_64', ctypes.c_int64(2**50), x.pointer, ctypes.c_int64(1), y.pointer), d.cuCtxSynchronize()[0].name)
"""
    )
    assert first.count("CUDA_ERROR_NOT_SUPPORTED") == 2, first
    assert "cublasSasum_v2_64 was refused" in first
    assert after == "True"


def test_a_sum_into_one_place_does_not_hold_the_device() -> None:
    first, after = said(
        """
b = blas()
x, y = Array(np.ones(1, np.float32)), Array(np.zeros(1, np.float32))
for n in (1000, 2**60):
    print(b('cublasSaxpy_v2_64', ctypes.c_int64(n), scalar(1, np.float32), x.pointer, ctypes.c_int64(0), y.pointer, ctypes.c_int64(0)), d.cuCtxSynchronize()[0].name)
print(y.get())
"""
    )
    assert first.startswith("0 CUDA_SUCCESS\n0 CUDA_ERROR_NOT_SUPPORTED\n[1000.]"), first
    assert after == "True"


def test_a_factorisation_that_nothing_could_pause_is_refused() -> None:
    first, after = said(
        """
b = blas()
n = 2049
a = Array(np.eye(n, dtype=np.float32))
one = Array(np.array([a.address], np.uint64))
info, pivots = Array(np.ones(1, np.int32)), Array(np.zeros(n, np.int32))
for size in (2048, n):
    b.done('cublasSgetrfBatched', size, one.pointer, n, pivots.pointer, info.pointer, 1)
    print(d.cuCtxSynchronize()[0].name)
b.done('cublasStrsmBatched', 0, 0, 0, 0, 8, n, scalar(1, np.float32), one.pointer, n, one.pointer, n, 1)
print(d.cuCtxSynchronize()[0].name)
"""
    )
    assert first.split()[:3] == ["CUDA_SUCCESS", *["CUDA_ERROR_NOT_SUPPORTED"] * 2], first
    assert after == "True"


def test_a_workspace_that_ends_behind_its_memory_is_refused() -> None:
    first, after = said(
        """
b = blas()
a = Array(np.ones(256, np.float32))
for size in (1024, 1025):
    b.done('cublasSetWorkspace_v2', a.pointer, ctypes.c_size_t(size))
    b.done('cublasSscal_v2', 4, scalar(1, np.float32), a.pointer, 1)
    print(d.cuCtxSynchronize()[0].name)
"""
    )
    assert first.split()[:2] == ["CUDA_SUCCESS", "CUDA_ERROR_INVALID_VALUE"], first
    assert after == "True"
