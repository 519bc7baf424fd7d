"""Cases of cuSPARSE with more elements than one piece of work has, against NumPy and SciPy."""

from __future__ import annotations

import ctypes

import numpy as np
from scipy import sparse

from tests.native.libraries.cusparse_cases import dense, library, on_device, random, room, sparse_numbers
from tests.native.libraries.device import Array, Cases, scalar

__all__ = ["CASES"]

CASES = Cases()
case = CASES.add


@case
def long_arrays_in_plain_forms() -> str:
    """Sort and convert more elements than one piece of work has, with doubles among them and numbers below 0."""
    s = library()
    n, m = 200_003, 300
    rows, columns = (random.integers(-5, m - 5, n).astype(np.int32) for _ in range(2))
    for by_row in (True, False):
        on = [Array(one.copy()) for one in (rows, columns, np.arange(n, dtype=np.int32))]
        name = f"cusparseXcoosortBy{'Row' if by_row else 'Column'}"
        work = room(s, "cusparseXcoosort_bufferSizeExt", m, m, n, *(one.pointer for one in on[:2]))
        s.done(name, m, m, n, *(one.pointer for one in on), work)
        order = np.lexsort((columns, rows) if by_row else (rows, columns))  # which is stable
        for one, expected in zip(on, (rows[order], columns[order], order), strict=True):
            if not np.array_equal(one.get(), expected):
                return name
    order = np.lexsort((columns, rows))
    rows, columns = rows[order] + 5, columns[order] + 5
    counted = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=m))]).astype(np.int32)
    offsets, expanded = Array(np.zeros(m + 1, np.int32)), Array(np.zeros(n, np.int32))
    s.done("cusparseXcoo2csr", on_device(rows), n, m, offsets.pointer, 0)
    s.done("cusparseXcsr2coo", offsets.pointer, n, m, expanded.pointer, 0)
    if not (np.array_equal(offsets.get(), counted) and np.array_equal(expanded.get(), rows)):
        return "offsets or rows"
    values = random.random(n)
    to = [Array(np.zeros(k, kind)) for k, kind in ((n, np.float64), (m + 1, np.int32), (n, np.int32))]
    given = (on_device(values), on_device(counted), on_device(columns))
    head = (m, m, n, *given, *(one.pointer for one in to), 1, 1, 0, 1)
    s.done("cusparseCsr2cscEx2", *head, room(s, "cusparseCsr2cscEx2_bufferSize", *head))
    order = np.argsort(columns, kind="stable")
    by_column = np.concatenate([[0], np.cumsum(np.bincount(columns, minlength=m))])
    expected = (values[order], by_column, rows[order])
    return "" if all(np.array_equal(a.get(), b) for a, b in zip(to, expected, strict=True)) else "csr2csc"


@case
def a_large_dense_matrix_and_its_elements() -> str:
    s = library()
    a = sparse_numbers(310, 457, np.float32, 0.3)
    matrix = dense(s, Array(a), 310, 457, 310)
    for form in ("Csr", "Csc", "Coo"):
        csr = getattr(sparse, f"{form.lower()}_array")(a)
        lines = {"Csr": 311, "Csc": 458, "Coo": csr.nnz}[form]
        to = [
            Array(np.zeros(k, kind))
            for k, kind in ((lines, np.int32), (csr.nnz, np.int32), (csr.nnz, np.float32))
        ]
        handle, found = ctypes.c_void_p(), [ctypes.c_int64() for _ in range(3)]
        types = (2,) if form == "Coo" else (2, 2)
        create = getattr(s.library, f"cusparseCreate{form}")
        count = ctypes.c_int64(csr.nnz)
        assert (
            create(
                ctypes.byref(handle),
                ctypes.c_int64(310),
                ctypes.c_int64(457),
                count,
                *(one.pointer for one in to),
                *types,
                0,
                0,
            )
            == 0
        )
        work = room(s, "cusparseDenseToSparse_bufferSize", matrix, handle, 0)
        s.done("cusparseDenseToSparse_analysis", matrix, handle, 0, work)
        assert s.library.cusparseSpMatGetSize(handle, *map(ctypes.byref, found)) == 0
        s.done("cusparseDenseToSparse_convert", matrix, handle, 0, work)
        if form == "Coo":
            csr = sparse.csr_array(a).tocoo()
        arrays = (csr.row, csr.col) if form == "Coo" else (csr.indptr, csr.indices)
        got = [one.get() for one in to]
        if found[2].value != csr.nnz or not all(
            np.array_equal(x, y) for x, y in zip(got, (*arrays, csr.data), strict=True)
        ):
            return form
        back = Array(np.full_like(a, 7))
        target = dense(s, back, 310, 457, 310)
        work = room(s, "cusparseSparseToDense_bufferSize", handle, target, 0)
        s.done("cusparseSparseToDense", handle, target, 0, work)
        if not np.array_equal(back.get(), a):
            return f"{form} and back"
    return ""


@case
def a_long_sum_of_sparse_matrices() -> str:
    s = library()
    a, b = (sparse.csr_array(sparse_numbers(5000, 90, np.float64, 0.2)) for _ in range(2))
    expected = sparse.csr_array(2 * a + 3 * b)
    expected.sort_indices()
    form = ctypes.c_void_p()
    assert s.library.cusparseCreateMatDescr(ctypes.byref(form)) == 0
    parts = [
        (on_device(m.data), on_device(m.indptr.astype(np.int32)), on_device(m.indices.astype(np.int32)))
        for m in (a, b)
    ]
    offsets, count, none = Array(np.zeros(5001, np.int32)), ctypes.c_int(), ctypes.c_void_p()
    two, three = scalar(2, np.float64), scalar(3, np.float64)
    head = (5000, 90, two, form, a.nnz, *parts[0], three, form, b.nnz, *parts[1], form)
    work = room(s, "cusparseDcsrgeam2_bufferSizeExt", *head, none, offsets.pointer, none)
    s.done(
        "cusparseXcsrgeam2Nnz",
        5000,
        90,
        form,
        a.nnz,
        *parts[0][1:],
        form,
        b.nnz,
        *parts[1][1:],
        form,
        offsets.pointer,
        ctypes.byref(count),
        work,
    )
    values, columns = Array(np.zeros(count.value)), Array(np.zeros(count.value, np.int32))
    s.done("cusparseDcsrgeam2", *head, values.pointer, offsets.pointer, columns.pointer, work)
    got = sparse.csr_array((values.get(), columns.get(), offsets.get()), shape=a.shape)
    same = np.array_equal(offsets.get(), np.concatenate([[0], np.cumsum(np.diff(expected.indptr))]))
    return "" if same and abs(got - expected).max() < 1e-12 else f"{count.value} {expected.nnz}"


if __name__ == "__main__":
    CASES.main()
