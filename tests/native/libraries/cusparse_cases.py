"""Cases of cuSPARSE against SciPy."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np
from cuda.bindings import driver
from scipy import linalg, sparse

from tests.native.libraries.cublas_cases import DATA, TYPES, first, numbers, op
from tests.native.libraries.device import Array, Cases, Library, close, of_each, ok, scalar
from tests.real_gpu import REAL

__all__ = ["CASES"]

CASES = Cases()
case = CASES.add
Matrix = np.ndarray[Any, Any]
INDICES = {np.int32: 2, np.int64: 3}
BY_COLUMNS, BY_ROWS = 1, 2
CONJUGATED = 2
random = np.random.default_rng(5)
kept: list[Array] = []


def library() -> Library:
    return Library("libcusparse.so.12", "cusparseCreate")


def long(value: int) -> ctypes.c_int64:
    return ctypes.c_int64(value)


def on_device(values: Matrix) -> ctypes.c_void_p:
    kept.append(Array(values))
    return kept[-1].pointer


def sparse_numbers(rows: int, columns: int, kind: Any, density: float = 0.2) -> Matrix:
    return np.where(random.random((rows, columns)) < density, numbers((rows, columns), kind), 0).astype(kind)


def described(s: Library, a: Matrix, form: str, index: Any = np.int32, base: int = 0) -> ctypes.c_void_p:
    """A descriptor of `a` in one of the forms Csr, Csc, Coo."""
    handle = ctypes.c_void_p()
    m = getattr(sparse, f"{form.lower()}_array")(a)
    arrays = (m.row, m.col) if form == "Coo" else (m.indptr, m.indices)
    at = [on_device((one + base).astype(index)) for one in arrays] + [on_device(m.data)]
    types = (INDICES[index],) if form == "Coo" else (INDICES[index], INDICES[index])
    status = getattr(s.library, f"cusparseCreate{form}")(
        ctypes.byref(handle),
        long(a.shape[0]),
        long(a.shape[1]),
        long(m.nnz),
        *at,
        *types,
        base,
        DATA[a.dtype.type],
    )
    assert status == 0, status
    return handle


def dense(
    s: Library, values: Array, rows: int, columns: int, ld: int, order: int = BY_COLUMNS
) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    status = s.library.cusparseCreateDnMat(
        ctypes.byref(handle),
        long(rows),
        long(columns),
        long(ld),
        values.pointer,
        DATA[values.host.dtype.type],
        order,
    )
    assert status == 0, status
    return handle


def vector(s: Library, values: Array) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    status = s.library.cusparseCreateDnVec(
        ctypes.byref(handle), long(values.host.size), values.pointer, DATA[values.host.dtype.type]
    )
    assert status == 0, status
    return handle


def room(s: Library, name: str, *arguments: Any) -> ctypes.c_void_p:
    size = ctypes.c_size_t(0)
    s.done(name, *arguments, ctypes.byref(size))
    return on_device(np.zeros(max(size.value, 1), np.int8))


def conjugates(letter: str, *operations: int) -> bool:
    """Whether cuSPARSE knows the operations upon numbers of this type: the conjugate transpose of real ones it refuses."""
    return not REAL or letter in "CZ" or CONJUGATED not in operations


@case
def a_sparse_matrix_times_a_vector() -> str:
    s = library()

    def one(letter: str, form: str, operation: int, index: Any, base: int) -> str:
        kind = TYPES[letter]
        a = sparse_numbers(23, 17, kind)
        wide = op(a, operation)
        x, y = Array(numbers(wide.shape[1], kind)), Array(numbers(wide.shape[0], kind))
        matrix, before = described(s, a, form, index, base), y.host.copy()
        alpha, beta = (1.5 - 0.5j, 0.75j) if letter in "CZ" else (1.5, -0.75)
        arguments = (
            operation,
            scalar(alpha, kind),
            matrix,
            vector(s, x),
            scalar(beta, kind),
            vector(s, y),
            DATA[kind],
            0,
        )
        work = room(s, "cusparseSpMV_bufferSize", *arguments)
        s.done("cusparseSpMV_preprocess", *arguments, work)
        s.done("cusparseSpMV", *arguments, work)
        return close(y.get(), alpha * (wide @ x.host) + beta * before, kind, 20)

    combinations = itertools.product("SDCZ", ("Csr", "Csc", "Coo"), (0, 1, 2), (np.int32, np.int64), (0, 1))
    return of_each(one, (words for words in combinations if conjugates(words[0], words[2])))


@case
def a_sparse_matrix_times_a_matrix() -> str:
    s = library()

    def one(letter: str, form: str, op_a: int, op_b: int, order: int, wide: int) -> str:
        kind = TYPES[letter]
        a = sparse_numbers(14, 9, kind)
        turned = op(a, op_a)
        b = numbers((turned.shape[1], wide), kind)
        stored = b.conj().T if op_b == 2 else b.T if op_b else b
        before = numbers((turned.shape[0], wide), kind)
        lay = (lambda m: m) if order == BY_COLUMNS else (lambda m: np.ascontiguousarray(m).reshape(-1))
        first_of, result = Array(lay(stored)), Array(lay(before))
        ld = [m.shape[0] if order == BY_COLUMNS else m.shape[1] for m in (stored, before)]
        matrices = (
            dense(s, first_of, *stored.shape, ld[0], order),
            dense(s, result, *before.shape, ld[1], order),
        )
        alpha, beta = (0.5 + 1j, 2j) if letter in "CZ" else (0.5, 2.0)
        arguments = (
            op_a,
            op_b,
            scalar(alpha, kind),
            described(s, a, form),
            matrices[0],
            scalar(beta, kind),
            matrices[1],
            DATA[kind],
            0,
        )
        work = room(s, "cusparseSpMM_bufferSize", *arguments)
        s.done("cusparseSpMM", *arguments, work)
        return close(result.get().reshape(before.shape), alpha * (turned @ b) + beta * before, kind, 20)

    combinations = itertools.product(
        "SZ", ("Csr", "Coo", "Csc"), (0, 1, 2), (0, 1, 2), (BY_COLUMNS, BY_ROWS), (1, 130)
    )
    return of_each(one, (words for words in combinations if conjugates(words[0], words[2], words[3])))


@case
def many_dense_matrices_times_one() -> str:
    s = library()
    a, b = sparse_numbers(6, 5, np.float32), numbers((5, 4, 3), np.float32)
    given, result = Array(b), Array(np.zeros((6, 4, 3), np.float32))
    first_of, second = dense(s, given, 5, 4, 5), dense(s, result, 6, 4, 6)
    matrix = described(s, a, "Csr")
    assert s.library.cusparseCsrSetStridedBatch(matrix, 3, long(0), long(0)) == 0
    assert s.library.cusparseDnMatSetStridedBatch(first_of, 3, long(20)) == 0
    assert s.library.cusparseDnMatSetStridedBatch(second, 3, long(24)) == 0
    one, zero = scalar(1, np.float32), scalar(0, np.float32)
    arguments = (0, 0, one, matrix, first_of, zero, second, 0, 0)
    s.done("cusparseSpMM", *arguments, room(s, "cusparseSpMM_bufferSize", *arguments))
    return close(result.get(), np.einsum("ij,jkb->ikb", a, b), np.float32, 20)


@case
def a_product_where_the_result_has_elements() -> str:
    s = library()

    def one(letter: str, form: str, op_a: int, op_b: int) -> str:
        kind = TYPES[letter]
        c = sparse_numbers(11, 13, kind)
        a, b = numbers((11, 7), kind), numbers((7, 13), kind)
        stored = (a.T if op_a else a, b.T if op_b else b)
        m = getattr(sparse, f"{form.lower()}_array")(c)
        descriptor = described(s, c, form)
        values = kept[-1]
        first_of, second = (dense(s, Array(one), *one.shape, one.shape[0]) for one in stored)
        arguments = (
            op_a,
            op_b,
            scalar(2, kind),
            first_of,
            second,
            scalar(0.5, kind),
            descriptor,
            DATA[kind],
            0,
        )
        s.done("cusparseSDDMM", *arguments, room(s, "cusparseSDDMM_bufferSize", *arguments))
        pattern = getattr(sparse, f"{form.lower()}_array")(
            (np.ones(m.nnz), *((m.row, m.col),)) if form == "Coo" else (np.ones(m.nnz), m.indices, m.indptr),
            shape=c.shape,
        ).toarray()
        m.data = values.get()
        return close(m.toarray(), pattern * (2 * (a @ b)) + 0.5 * c, kind, 20)

    return of_each(one, itertools.product("SDCZ", ("Csr",) if REAL else ("Csr", "Coo"), (0, 1), (0, 1)))


@case
def dense_from_sparse_and_back() -> str:
    s = library()

    def one(form: str, index: Any, order: int, kind: Any, base: int) -> str:
        a = sparse_numbers(12, 19, kind)
        lay = a if order == BY_COLUMNS else np.ascontiguousarray(a).reshape(-1)
        ld = 12 if order == BY_COLUMNS else 19
        there = Array(np.full_like(lay, 5))
        to = dense(s, there, 12, 19, ld, order)
        work = room(s, "cusparseSparseToDense_bufferSize", described(s, a, form, index, base), to, 0)
        s.done("cusparseSparseToDense", described(s, a, form, index, base), to, 0, work)
        if not np.array_equal(there.get(), lay):
            return "to dense"
        count, lines = np.count_nonzero(a), {"Csr": 13, "Csc": 20}.get(form, 0)
        target = ctypes.c_void_p()
        offsets = Array(np.zeros(max(lines, 1), index))
        types = (INDICES[index],) if form == "Coo" else (INDICES[index], INDICES[index])
        none = ctypes.c_void_p()
        assert (
            getattr(s.library, f"cusparseCreate{form}")(
                ctypes.byref(target),
                long(12),
                long(19),
                long(0),
                none if form == "Coo" else offsets.pointer,
                none,
                none,
                *types,
                base,
                DATA[kind],
            )
            == 0
        )
        work = room(s, "cusparseDenseToSparse_bufferSize", to, target, 0)
        s.done("cusparseDenseToSparse_analysis", to, target, 0, work)
        size = [ctypes.c_int64() for _ in range(3)]
        assert s.library.cusparseSpMatGetSize(target, *(ctypes.byref(n) for n in size)) == 0
        if [n.value for n in size] != [12, 19, count]:
            return f"sizes {size}, not {count}"
        major = Array(np.zeros(count, index)) if form == "Coo" else offsets
        minor, values = Array(np.zeros(count, index)), Array(np.zeros(count, kind))
        assert (
            getattr(s.library, f"cusparse{form}SetPointers")(
                target, major.pointer, minor.pointer, values.pointer
            )
            == 0
        )
        s.done("cusparseDenseToSparse_convert", to, target, 0, work)
        pair = (major.get() - base, minor.get() - base)
        if form == "Coo":
            back = sparse.coo_array((values.get(), pair), shape=(12, 19))
        else:
            back = getattr(sparse, f"{form.lower()}_array")((values.get(), pair[1], pair[0]), shape=(12, 19))
        return "" if np.array_equal(back.toarray(), a) else "from dense"

    forms, orders, kinds = ("Csr", "Csc", "Coo"), (BY_COLUMNS, BY_ROWS), (np.float32, np.complex128)
    return of_each(one, itertools.product(forms, (np.int32, np.int64), orders, kinds, (0, 1)))


@case
def tridiagonal_systems() -> str:
    s = library()

    def one(letter: str, m: int, n: int, pivoting: str) -> str:
        kind = TYPES[letter]
        low, diagonal, high = (numbers(m, kind) * kind(0.25) for _ in range(3))
        diagonal = (diagonal + 6).astype(kind)
        b = numbers((m + 2, n), kind)
        x = Array(b)
        head = (m, n, on_device(low), on_device(diagonal), on_device(high), x.pointer, m + 2)
        name = f"cusparse{letter}gtsv2{pivoting}"
        s.done(name, *head, room(s, f"{name}_bufferSizeExt", *head))
        got = x.get()[:m]
        product = diagonal[:, None] * got
        product[1:] += low[1:, None] * got[:-1]
        product[:-1] += high[:-1, None] * got[1:]
        return close(product, b[:m], kind, 40) or (
            "" if np.array_equal(x.get()[m:], b[m:]) else "what lies below was written"
        )

    def many(letter: str) -> str:
        kind, m, count, step = TYPES[letter], 9, 4, 12
        parts = [numbers((step, count), kind) for _ in range(3)]
        parts[1] = (parts[1] / 4 + 10).astype(kind)
        b = numbers((step, count), kind)
        x = Array(b)
        head = (m, *(on_device(one) for one in parts), x.pointer, count, step)
        name = f"cusparse{letter}gtsv2StridedBatch"
        s.done(name, *head, room(s, f"{name}_bufferSizeExt", *head))
        return first(
            close(
                linalg.solve_banded(
                    (1, 1),
                    np.stack([np.r_[0, parts[2][: m - 1, i]], parts[1][:m, i], np.r_[parts[0][1:m, i], 0]]),
                    b[:m, i],
                ),
                x.get()[:m, i],
                kind,
                40,
            )
            for i in range(count)
        )

    return first(
        one(letter, m, n, pivoting)
        for letter, (m, n), pivoting in itertools.product(
            "SDCZ", ((3, 1), (50, 7), (40000, 2)), ("", "_nopivot")
        )
    ) or first(map(many, "SDCZ"))


@case
def forms_in_plain_arrays() -> str:
    s = library()
    a = sparse_numbers(9, 14, np.float64)
    csr, csc, coo = sparse.csr_array(a), sparse.csc_array(a), sparse.coo_array(a)
    order = random.permutation(csr.nnz)
    rows, columns = (Array(one[order].astype(np.int32)) for one in (coo.row, coo.col))
    p, offsets, expanded = (Array(np.zeros(n, np.int32)) for n in (csr.nnz, 10, csr.nnz))
    s.done("cusparseCreateIdentityPermutation", csr.nnz, p.pointer)
    work = room(s, "cusparseXcoosort_bufferSizeExt", 9, 14, csr.nnz, rows.pointer, columns.pointer)
    s.done("cusparseXcoosortByRow", 9, 14, csr.nnz, rows.pointer, columns.pointer, p.pointer, work)
    s.done("cusparseXcoo2csr", rows.pointer, csr.nnz, 9, offsets.pointer, 0)
    s.done("cusparseXcsr2coo", offsets.pointer, csr.nnz, 9, expanded.pointer, 0)
    row_of = np.repeat(np.arange(9), np.diff(csr.indptr))
    if not (
        np.array_equal(offsets.get(), csr.indptr)
        and np.array_equal(columns.get(), csr.indices)
        and np.array_equal(expanded.get(), row_of)
        and np.array_equal(a[coo.row, coo.col][order][p.get()], csr.data)
    ):
        return "sorting, offsets or rows"
    s.done("cusparseXcoosortByColumn", 9, 14, csr.nnz, rows.pointer, columns.pointer, p.pointer, work)
    if not np.array_equal(rows.get(), csc.indices):
        return "sorting by columns"
    for base in (0, 1):
        to = [Array(np.zeros(n, k)) for n, k in ((csr.nnz, np.float64), (15, np.int32), (csr.nnz, np.int32))]
        given = [
            on_device(csr.data),
            on_device((csr.indptr + base).astype(np.int32)),
            on_device((csr.indices + base).astype(np.int32)),
        ]
        head = (9, 14, csr.nnz, *given, *(one.pointer for one in to), 1, 1, base, 1)
        s.done("cusparseCsr2cscEx2", *head, room(s, "cusparseCsr2cscEx2_bufferSize", *head))
        if not (
            np.array_equal(to[0].get(), csc.data)
            and np.array_equal(to[1].get() - base, csc.indptr)
            and np.array_equal(to[2].get() - base, csc.indices)
        ):
            return f"csr2csc of base {base}"
    return ""


@case
def products_of_two_sparse_matrices() -> str:
    s = library()

    def one(letter: str, index: Any, base: int) -> str:
        kind = TYPES[letter]
        a, b = sparse_numbers(31, 18, kind), sparse_numbers(18, 40, kind)
        alpha = 0.5 + 1j if letter in "CZ" else 0.5
        offsets, target, descriptor, none = (
            Array(np.zeros(32, index)),
            ctypes.c_void_p(),
            ctypes.c_void_p(),
            ctypes.c_void_p(),
        )
        assert s.library.cusparseSpGEMM_createDescr(ctypes.byref(descriptor)) == 0
        status = s.library.cusparseCreateCsr(
            ctypes.byref(target),
            long(31),
            long(40),
            long(0),
            offsets.pointer,
            none,
            none,
            INDICES[index],
            INDICES[index],
            base,
            DATA[kind],
        )
        assert status == 0, status
        head = (0, 0, scalar(alpha, kind), described(s, a, "Csr", index, base), described(s, b, "Csr", index, base), scalar(0, kind), target, DATA[kind], 0, descriptor)  # fmt: skip
        for step in ("workEstimation", "compute"):
            size = ctypes.c_size_t()
            s.done(f"cusparseSpGEMM_{step}", *head, ctypes.byref(size), None)
            s.done(
                f"cusparseSpGEMM_{step}", *head, ctypes.byref(size), on_device(np.zeros(size.value, np.int8))
            )
        sizes = [ctypes.c_int64() for _ in range(3)]
        assert s.library.cusparseSpMatGetSize(target, *(ctypes.byref(n) for n in sizes)) == 0
        pattern = sparse.csr_array(abs(np.sign(abs(a))) @ abs(np.sign(abs(b))))
        if sizes[2].value != pattern.nnz:
            return f"{sizes[2].value} elements, not {pattern.nnz}"
        columns, values = Array(np.zeros(pattern.nnz, index)), Array(np.zeros(pattern.nnz, kind))
        assert s.library.cusparseCsrSetPointers(target, offsets.pointer, columns.pointer, values.pointer) == 0
        s.done("cusparseSpGEMM_copy", *head)
        got = sparse.csr_array((values.get(), columns.get() - base, offsets.get() - base), shape=(31, 40))
        assert s.library.cusparseSpGEMM_destroyDescr(descriptor) == 0
        return close(got.toarray(), alpha * (a @ b), kind, 20)

    return of_each(one, itertools.product("SDCZ", (np.int32, np.int64), (0, 1)))


@CASES.not_native
def descriptors_say_what_they_were_given() -> str:
    s = library()
    a = sparse_numbers(5, 6, np.float32)
    matrix = described(s, a, "Csr", np.int64, 1)
    sizes, places, types = (
        [ctypes.c_int64() for _ in "rcn"],
        [ctypes.c_void_p() for _ in "oiv"],
        [ctypes.c_int() for _ in "oibt"],
    )
    status = s.library.cusparseCsrGet(matrix, *(ctypes.byref(one) for one in (*sizes, *places, *types)))
    found = [status, *(one.value for one in sizes), *(one.value for one in types)]
    wrong = "" if found == [0, 5, 6, np.count_nonzero(a), 3, 3, 1, 0] else f"{found}"
    kind = ctypes.c_int()
    status = s.library.cusparseSpMatGetFormat(matrix, ctypes.byref(kind))
    wrong = wrong or ("" if (status, kind.value) == (0, 1) else f"format {kind}")
    ended = [int(s.library.cusparseDestroySpMat(matrix)) for _ in range(2)]
    return wrong or ("" if ended == [0, 3] else f"ended {ended}")


@CASES.not_native
def what_does_not_fit_is_refused() -> str:
    s = library()
    a = sparse_numbers(5, 6, np.float32)
    matrix, x, y = (
        described(s, a, "Csr"),
        vector(s, Array(np.zeros(6, np.float32))),
        vector(s, Array(np.zeros(5, np.float32))),
    )
    one, other, handle = scalar(1, np.float32), ctypes.c_void_p(4096), ctypes.c_void_p()
    found = [
        s("cusparseSpMV", 0, one, matrix, y, one, x, 0, 0, None),
        s("cusparseSpMV", 3, one, matrix, x, one, y, 0, 0, None),
        s("cusparseSpMV", 0, None, matrix, x, one, y, 0, 0, None),
        s("cusparseSpMV", 0, one, other, x, one, y, 0, 0, None),
        s("cusparseSgtsv2", 2, 1, other, other, other, other, 2, None),
        int(
            s.library.cusparseCreateDnMat(
                ctypes.byref(handle), long(5), long(5), long(4), None, 0, BY_COLUMNS
            )
        ),
        int(s.library.cusparseSpMV(other, 0, one, matrix, x, one, y, 0, 0, None)),
        s("cusparseSpSV_solve"),
    ]
    return "" if found == [3, 3, 3, 3, 3, 3, 1, 10] else f"{found}"


@case
def scalars_on_the_device() -> str:
    s = library()
    a = sparse_numbers(8, 8, np.float32)
    x, y = Array(numbers(8, np.float32)), Array(np.zeros(8, np.float32))
    s.done("cusparseSetPointerMode", 1)
    one, zero = on_device(np.ones(1, np.float32)), on_device(np.zeros(1, np.float32))
    stream = ok(driver.cuStreamCreate(1))
    s.done("cusparseSetStream", ctypes.c_void_p(int(stream)))
    arguments = (0, one, described(s, a, "Csr"), vector(s, x), zero, vector(s, y), 0, 0)
    s.done("cusparseSpMV", *arguments, room(s, "cusparseSpMV_bufferSize", *arguments))
    ok(driver.cuStreamSynchronize(stream))
    return close(y.get(), a @ x.host, np.float32, 20)


if __name__ == "__main__":
    CASES.main()
