"""Cases of cuSPARSE's sums of two matrices (csrgeam2) against SciPy."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from cuda.bindings import driver
from scipy import sparse

from tests.native.libraries.cublas_cases import TYPES
from tests.native.libraries.cusparse_cases import Matrix, library, on_device, room, sparse_numbers
from tests.native.libraries.device import Array, Cases, Library, close, of_each, ok, scalar

__all__ = ["CASES"]

CASES = Cases()
case = CASES.add
random = np.random.default_rng(7)
SAME, MIXED = ((0, 0, 0), (1, 1, 1)), ((1, 0, 1), (0, 1, 0), (0, 0, 1), (1, 1, 0))


@dataclass
class Parts:
    """A matrix in the arrays of a program: its descriptor, offsets, columns and values on the device."""

    kind: ctypes.c_void_p
    count: int
    values: Array
    offsets: Array
    columns: Array

    def first(self) -> tuple[Any, ...]:
        """Return the arguments of a matrix with its values."""
        return self.kind, self.count, self.values.pointer, self.offsets.pointer, self.columns.pointer

    def pattern(self) -> tuple[Any, ...]:
        return self.kind, self.count, self.offsets.pointer, self.columns.pointer


def kind_of(s: Library, base: int) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    assert s.library.cusparseCreateMatDescr(ctypes.byref(made)) == 0
    assert s.library.cusparseSetMatIndexBase(made, base) == 0
    assert s.library.cusparseGetMatIndexBase(made) == base
    return made


def parts_of(s: Library, matrix: Any, base: int) -> Parts:
    offsets, columns = (Array((one + base).astype(np.int32)) for one in (matrix.indptr, matrix.indices))
    return Parts(kind_of(s, base), matrix.nnz, Array(matrix.data), offsets, columns)


def summed(
    s: Library, shape: tuple[int, int], a: Parts, b: Parts, base: int, factors: Any, at_home: bool = True
) -> tuple[Any, int]:
    """Make the sum in its three steps; return it, and the number of elements that the second step told.

    With `at_home` the factors and the number lie in memory of the program, else on the device.
    """
    kind = a.values.host.dtype.type
    letter = next(one for one, its in TYPES.items() if its is kind)
    x, y = (scalar(one, kind) if at_home else on_device(np.array([one], kind)) for one in factors)
    s.done("cusparseSetPointerMode", 0 if at_home else 1)
    c, none = kind_of(s, base), ctypes.c_void_p()
    offsets, told, count = (
        Array(np.full(shape[0] + 1, -7, np.int32)),
        Array(np.full(1, -7, np.int32)),
        ctypes.c_int(),
    )
    head = (*shape, x, *a.first(), y, *b.first(), c)
    name = f"cusparse{letter}csrgeam2"
    work = room(s, f"{name}_bufferSizeExt", *head, none, offsets.pointer, none)
    place = ctypes.byref(count) if at_home else told.pointer
    s.done("cusparseXcsrgeam2Nnz", *shape, *a.pattern(), *b.pattern(), c, offsets.pointer, place, work)
    ok(driver.cuCtxSynchronize())  # the stream may be one for which copies do not wait
    number = count.value if at_home else int(told.get()[0])
    columns, values = Array(np.zeros(number, np.int32)), Array(np.zeros(number, kind))
    s.done(name, *head, values.pointer, offsets.pointer, columns.pointer, work)
    ok(driver.cuCtxSynchronize())
    got = offsets.get() - base
    assert (got[0], got[-1]) == (0, number)
    return sparse.csr_array((values.get(), columns.get() - base, got), shape=shape), number


def wrong_with(
    s: Library, a: Any, b: Any, bases: tuple[int, int, int], factors: Any, at_home: bool = True
) -> str:
    got, number = summed(
        s, a.shape, parts_of(s, a, bases[0]), parts_of(s, b, bases[1]), bases[2], factors, at_home
    )
    ones = [sparse.csr_array((np.ones(m.nnz), m.indices, m.indptr), shape=m.shape) for m in (a, b)]
    together = (ones[0] + ones[1]).nnz  # what stands in one of them is an element, whatever its value
    for row in range(a.shape[0]):
        here = got.indices[got.indptr[row] : got.indptr[row + 1]]
        if np.any(np.diff(here) <= 0):
            return f"row {row} has the columns {here}"
    expected = factors[0] * a.toarray() + factors[1] * b.toarray()
    wrong = close(got.toarray(), expected.astype(a.dtype), a.dtype.type, 4)
    return wrong or ("" if number == together else f"{number} elements, not {together}")


def factors_of(letter: str) -> tuple[complex, complex]:
    return (0.5 + 1j, 2j) if letter in "CZ" else (0.5, 2.0)


def with_empty_rows(rows: int, columns: int, kind: Any) -> Matrix:
    """Return numbers of which about a third of the rows has none, the first and the last among them."""
    found = sparse_numbers(rows, columns, kind, random.choice([0.05, 0.3, 0.9]))
    found[random.random(rows) < 1 / 3] = 0
    found[[0, -1]] = 0
    return found


@case
def sums_of_sparse_matrices() -> str:
    s = library()

    def one(letter: str, bases: tuple[int, int, int]) -> str:
        a, b = (sparse.csr_array(sparse_numbers(13, 17, TYPES[letter], density)) for density in (0.2, 0.3))
        return wrong_with(s, a, b, bases, factors_of(letter))

    return of_each(one, itertools.product("SDCZ", SAME + MIXED))


@case
def factors_and_the_number_of_elements_on_the_device() -> str:
    s = library()
    s.done("cusparseSetStream", ctypes.c_void_p(int(ok(driver.cuStreamCreate(1)))))

    def one(letter: str, bases: tuple[int, int, int]) -> str:
        a, b = (sparse.csr_array(sparse_numbers(9, 21, TYPES[letter], density)) for density in (0.4, 0.1))
        return wrong_with(s, a, b, bases, factors_of(letter), at_home=False)

    return of_each(one, itertools.product("SDCZ", SAME + MIXED[:1]))


@case
def rows_without_elements() -> str:
    s = library()

    def one(letter: str, number: int, at_home: bool) -> str:
        rows, columns = (int(one) for one in random.integers(2, 70, 2))
        a, b = (sparse.csr_array(with_empty_rows(rows, columns, TYPES[letter])) for _ in range(2))
        return wrong_with(s, a, b, (number % 2, 0, 1), factors_of(letter), at_home)

    return of_each(one, itertools.product("SDCZ", range(6), (True, False)))


@case
def matrices_without_elements() -> str:
    s = library()
    none = sparse.csr_array((5, 6), dtype=np.float32)
    some = sparse.csr_array(sparse_numbers(5, 6, np.float32, 0.5))

    def one(a: Any, b: Any, bases: tuple[int, int, int]) -> str:
        return wrong_with(s, a, b, bases, (2.0, -1.0))

    return of_each(one, itertools.product((none, some), (none, some), SAME))


@case
def factors_of_zero_and_values_that_cancel() -> str:
    """An element of one of the matrices is one of the sum, whatever its value is."""
    s = library()
    a, b = (sparse.csr_array(sparse_numbers(11, 12, np.float64, 0.4)) for _ in range(2))
    opposite = sparse.csr_array((-a.data, a.indices, a.indptr), shape=a.shape)

    def one(first: Any, second: Any, x: float, y: float, at_home: bool) -> str:
        return wrong_with(s, first, second, (0, 0, 0), (x, y), at_home)

    cases = ((a, b, 0.0, 3.0), (a, b, 3.0, 0.0), (a, b, 0.0, 0.0), (a, opposite, 1.0, 1.0))
    return of_each(one, ((*each, at_home) for each in cases for at_home in (True, False)))


@case
def a_matrix_and_itself() -> str:
    """Both operands are the same arrays; so are, in place, the result's, whose pattern is the first one's."""
    s = library()

    def one(letter: str, base: int) -> str:
        kind, (x, y) = TYPES[letter], factors_of(letter)
        m = sparse.csr_array(sparse_numbers(19, 14, kind, 0.3))
        own = parts_of(s, m, base)
        got, number = summed(s, m.shape, own, own, base, (x, y))
        wrong = close(got.toarray(), ((x + y) * m.toarray()).astype(kind), kind, 4)
        if wrong or number != m.nnz:
            return wrong or f"{number} elements, not {m.nnz}"
        some = sparse.csr_array((m.data, m.indices, m.indptr), shape=m.shape).toarray()
        some[random.random(some.shape) < 0.5] = 0  # a part of the pattern
        other = parts_of(s, sparse.csr_array(some), base)
        head = (*m.shape, scalar(x, kind), *own.first(), scalar(y, kind), *other.first(), own.kind)
        c = (own.values.pointer, own.offsets.pointer, own.columns.pointer)
        s.done("cusparseSetPointerMode", 0)
        work = room(s, f"cusparse{letter}csrgeam2_bufferSizeExt", *head, *c)
        s.done(f"cusparse{letter}csrgeam2", *head, *c, work)
        got = sparse.csr_array(
            (own.values.get(), own.columns.get() - base, own.offsets.get() - base), shape=m.shape
        )
        return close(got.toarray(), (x * m.toarray() + y * some).astype(kind), kind, 4)

    return of_each(one, itertools.product("SDCZ", (0, 1)))


@case
def a_sum_that_does_not_fit_is_refused() -> str:
    s = library()
    m = sparse.csr_array(sparse_numbers(4, 5, np.float32, 0.5))
    own, c = parts_of(s, m, 0), Array(np.zeros(5, np.int32))
    count, none = ctypes.c_int(), ctypes.c_void_p()
    counted = [
        s(
            "cusparseXcsrgeam2Nnz",
            *shape,
            *each.pattern(),
            *own.pattern(),
            own.kind,
            c.pointer,
            ctypes.byref(count),
            none,
        )
        for shape, each in (((-1, 5), own), ((4, -1), own), ((4, 5), replace(own, count=-1)))
    ]
    return "" if all(counted) else f"statuses {counted}"


if __name__ == "__main__":
    CASES.main()
