"""Cases of cuSOLVER's sparse part against SciPy."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import linalg

from tests.native.libraries.cublas_cases import TYPES, numbers
from tests.native.libraries.device import Array, Cases, Library, soname

__all__ = ["CASES"]

CASES = Cases()
case = CASES.add
random = np.random.default_rng(5)
REAL = {"S": ctypes.c_float, "D": ctypes.c_double, "C": ctypes.c_float, "Z": ctypes.c_double}


def matrix_form(base: int) -> ctypes.c_void_p:
    """Return cuSPARSE's descriptor of a general matrix."""
    s = ctypes.CDLL(soname("libcusparse.so.12"))
    handle = ctypes.c_void_p()
    assert s.cusparseCreateMatDescr(ctypes.byref(handle)) == 0
    assert s.cusparseSetMatIndexBase(handle, base) == 0
    return handle


def solved(letter: str, a: Any, b: Any, base: int = 0, tolerance: float = 1e-6) -> tuple[int, int, Any]:
    """Return the status, what the call says of a singular matrix, and the solution."""
    s = Library("libcusolver.so.11", "cusolverSpCreate")
    m = sparse.csr_array(a)
    on = [
        Array(m.data),
        Array((m.indptr + base).astype(np.int32)),
        Array((m.indices + base).astype(np.int32)),
    ]
    x, right, singular = Array(np.zeros_like(b)), Array(b), ctypes.c_int(77)
    status = s(
        f"cusolverSp{letter}csrlsvqr",
        m.shape[0],
        m.nnz,
        matrix_form(base),
        *(one.pointer for one in on),
        right.pointer,
        REAL[letter](tolerance),
        0,
        x.pointer,
        ctypes.byref(singular),
    )
    return status, singular.value, x.get()


def wrong(letter: str, a: Any, base: int = 0) -> str:
    kind = TYPES[letter]
    b = numbers((a.shape[0], 1), kind)[:, 0]
    status, singular, x = solved(letter, sparse.csr_array(a).astype(kind), b, base)
    if (status, singular) != (0, -1):
        return f"status {status}, singular {singular}"
    wide = np.complex128 if letter in "CZ" else np.float64
    expected = linalg.spsolve(sparse.csc_array(a).astype(wide), b.astype(wide))
    tolerance = 2e-4 if letter in "SC" else 1e-9
    scale = np.abs(expected).max()
    return (
        "" if np.allclose(x, expected, rtol=tolerance, atol=tolerance * scale) else f"{x[:4]} {expected[:4]}"
    )


@case
def systems_without_an_order() -> str:
    for letter, kind in ((letter, TYPES[letter]) for letter in "SDCZ"):
        for base in (0, 1):
            a = np.where(random.random((60, 60)) < 0.1, numbers((60, 60), kind), 0) + np.diag(
                numbers((60, 1), kind)[:, 0] + 3
            )
            if found := wrong(letter, a[random.permutation(60)], base):
                return f"{letter}, {base}: {found}"
    return ""


@case
def long_bands() -> str:
    n = 20000
    return wrong(
        "D",
        sparse.diags_array([np.full(n - 1, -1.0), np.full(n, 2.5), np.full(n - 1, -1.2)], offsets=[-1, 0, 1]),
    )


@case
def a_grid_of_points() -> str:
    n = 40
    line = sparse.diags_array([-np.ones(n - 1), np.full(n, 2.1), -np.ones(n - 1)], offsets=[-1, 0, 1])
    return wrong("D", sparse.kron(line, sparse.eye_array(n)) + sparse.kron(sparse.eye_array(n), line))


@case
def elements_that_stand_there_twice_add_up() -> str:
    a = sparse.csr_array(
        (np.array([1.0, 2, 4, 3]), np.array([1, 0, 1, 0]), np.array([0, 2, 4])), shape=(2, 2)
    )
    a.data, a.indices = np.array([1.0, 1, 4, 3]), np.array([0, 0, 1, 0])
    _, singular, x = solved("D", a, np.array([2.0, 11.0]))
    return "" if singular == -1 and np.allclose(x, [1, 2]) else f"{singular} {x}"


@case
def a_singular_matrix_is_told() -> str:
    a = np.diag([1.0, 2, 0, 4])
    a[3, 2] = a[2, 3] = 0
    zero = solved("D", a, np.ones(4))[:2]
    near = solved("D", np.diag([1.0, 1e-9, 1.0, 1e-9]), np.ones(4))[:2]
    fine = solved("D", np.diag([1.0, 1e-9, 1.0, 1e-9]), np.ones(4), tolerance=1e-12)[:2]
    return "" if (zero, near, fine) == ((0, 2), (0, 1), (0, -1)) else f"{zero} {near} {fine}"


@case
def what_makes_no_sense_is_refused() -> str:
    s = Library("libcusolver.so.11", "cusolverSpCreate")
    none, told = ctypes.c_void_p(), ctypes.c_int()
    tail = (none, none, none, none, ctypes.c_double(0), 0, none)
    form = matrix_form(0)
    got = [
        s("cusolverSpDcsrlsvqr", -1, 0, form, *tail, ctypes.byref(told)),
        s("cusolverSpDcsrlsvqr", 0, 0, none, *tail, ctypes.byref(told)),
        s("cusolverSpDcsrlsvqr", 0, 0, form, *tail, None),
    ]
    return "" if got == [3, 3, 3] else str(got)


if __name__ == "__main__":
    CASES.main()
