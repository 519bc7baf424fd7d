"""Cases of cuBLAS against NumPy and SciPy."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import ml_dtypes
import numpy as np
from cuda.bindings import driver
from scipy import linalg

from tests.native.libraries.device import Array, Cases, Library, close, of_each, ok, scalar

__all__ = ["CASES"]

CASES = Cases()
case = CASES.add

TYPES = {"S": np.float32, "D": np.float64, "C": np.complex64, "Z": np.complex128}
HALF, BFLOAT, FP8, FP8_WIDE = np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
DATA = {
    np.float32: 0,
    np.float64: 1,
    HALF: 2,
    np.int8: 3,
    np.complex64: 4,
    np.complex128: 5,
    np.int32: 10,
    BFLOAT: 14,
    FP8: 28,
    FP8_WIDE: 29,
}
COMPUTE_16F, COMPUTE_32F, COMPUTE_64F, COMPUTE_32I = 64, 68, 70, 72
POINTER_HOST, POINTER_DEVICE = 0, 1
random = np.random.default_rng(7)


def blas() -> Library:
    return Library("libcublas.so.12", "cublasCreate_v2")


def numbers(shape: Any, kind: Any) -> np.ndarray[Any, Any]:
    values = random.standard_normal(shape)
    if np.iscomplexobj(np.empty(0, kind)):
        values = values + 1j * random.standard_normal(shape)
    if np.dtype(kind).kind == "i":
        return random.integers(-100, 100, shape).astype(kind)
    return values.astype(kind)


def op(matrix: np.ndarray[Any, Any], operation: int) -> np.ndarray[Any, Any]:
    return (matrix, matrix.T, matrix.conj().T)[operation]


def stored(
    rows: int, columns: int, operation: int, ld: int, kind: Any
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A matrix in columns with leading dimension `ld`, and op() of it: rows × columns."""
    if operation:
        rows, columns = columns, rows
    whole = numbers((ld, columns), kind)
    return whole, op(whole[:rows], operation)


def first(findings: Any) -> str:
    return next((finding for finding in findings if finding), "")


@case
def gemm_of_every_type_and_transpose() -> str:
    b = blas()

    def one(letter: str, ta: int, tb: int, sizes: tuple[int, int, int], device: bool) -> str:
        kind, (m, n, k) = TYPES[letter], sizes
        (a, a_op), (c, _) = stored(m, k, ta, max(m, k) + 3, kind), stored(m, n, 0, m + 2, kind)
        bb, b_op = stored(k, n, tb, max(n, k) + 1, kind)
        alpha, beta = (1.5 + 0.5j, -0.75 + 2j) if letter in "CZ" else (1.5, -0.75)
        on_device = Array(a), Array(bb), Array(c)
        scalars = [Array(np.array([x], kind)) for x in (alpha, beta)]
        b.done("cublasSetPointerMode_v2", int(device))
        x, y = (s.pointer for s in scalars) if device else (scalar(alpha, kind), scalar(beta, kind))
        b.done(
            f"cublas{letter}gemm_v2",
            ta,
            tb,
            m,
            n,
            k,
            x,
            on_device[0].pointer,
            a.shape[0],
            on_device[1].pointer,
            bb.shape[0],
            y,
            on_device[2].pointer,
            c.shape[0],
        )
        wanted = c.copy()
        wanted[:m] = alpha * (a_op @ b_op) + beta * c[:m]
        wrong = close(on_device[2].get(), wanted, kind, k)
        return wrong and f"{letter} {ta} {tb} {sizes} device={device}: {wrong}"

    operations = itertools.product("SDCZ", (0, 1, 2), (0, 1, 2))
    return first(
        one(letter, ta, tb, ((5, 7, 9), (70, 130, 33))[(ta + tb) % 2], device=bool((ta + tb) // 2 % 2))
        for letter, ta, tb in operations
    )


@case
def gemm_larger_than_a_tile() -> str:
    b = blas()
    m, n, k = 700, 900, 260
    a, bb = numbers((m, k), np.float32), numbers((k, n), np.float32)
    on_device = Array(a), Array(bb), Array(np.zeros((m, n), np.float32))
    b.done(
        "cublasSgemm_v2",
        0,
        0,
        m,
        n,
        k,
        scalar(1, np.float32),
        on_device[0].pointer,
        m,
        on_device[1].pointer,
        k,
        scalar(0, np.float32),
        on_device[2].pointer,
        m,
    )
    return close(on_device[2].get(), a.astype(float) @ bb, np.float32, k)


@case
def beta_zero_reads_nothing() -> str:
    b = blas()
    findings = []
    for letter, kind in TYPES.items():
        a, bb = numbers((4, 3), kind), numbers((3, 5), kind)
        c = Array(np.full((4, 5), np.nan, kind))
        b.done(
            f"cublas{letter}gemm_v2",
            0,
            0,
            4,
            5,
            3,
            scalar(1, kind),
            Array(a).pointer,
            4,
            Array(bb).pointer,
            3,
            scalar(0, kind),
            c.pointer,
            4,
        )
        findings.append(close(c.get(), a @ bb, kind, 3))
        y = Array(np.full(4, np.nan, kind))
        b.done(
            f"cublas{letter}gemv_v2",
            0,
            4,
            3,
            scalar(1, kind),
            Array(a).pointer,
            4,
            Array(bb[:, 0]).pointer,
            1,
            scalar(0, kind),
            y.pointer,
            1,
        )
        findings.append(close(y.get(), a @ bb[:, 0], kind, 3))
        b.done(
            f"cublas{letter}geam",
            0,
            0,
            4,
            3,
            scalar(2, kind),
            Array(a).pointer,
            4,
            scalar(0, kind),
            Array(np.full((4, 3), np.nan, kind)).pointer,
            4,
            c.pointer,
            4,
        )
        findings.append(close(c.get()[:, :3], 2 * a, kind))
    return first(findings)


@case
def sizes_of_zero_do_nothing() -> str:
    b = blas()
    nothing = ctypes.c_void_p(0)
    c = Array(numbers((4, 5), np.float32))
    one, half = scalar(1, np.float32), scalar(0.5, np.float32)
    b.done("cublasSgemm_v2", 0, 0, 0, 5, 3, one, nothing, 1, nothing, 3, one, c.pointer, 4)
    b.done("cublasSaxpy_v2", 0, one, nothing, 1, nothing, 1)
    if wrong := close(c.get(), c.host, np.float32):
        return wrong
    b.done(
        "cublasSgemm_v2", 0, 0, 4, 5, 0, one, nothing, 4, nothing, 1, half, c.pointer, 4
    )  # only beta is left
    result = ctypes.c_float(5)
    b.done("cublasSdot_v2", 0, nothing, 1, nothing, 1, ctypes.byref(result))
    return close(c.get(), 0.5 * c.host, np.float32) or ("" if result.value == 0 else f"dot {result.value}")


@case
def products_of_small_types() -> str:
    b = blas()

    def one(kind: Any, into: Any, compute: int, scale: Any) -> str:
        # cuBLAS multiplies bytes where leading dimensions are multiples of 4.
        m, n, k = 36 if kind is np.int8 else 33, 20, 1100
        a, bb = numbers((m, k), kind), numbers((k, n), kind)
        c = Array(numbers((m, n), into))
        alpha, beta = (3, -2) if scale is np.int32 else (0.25, 0.5)
        b.done(
            "cublasGemmEx",
            0,
            0,
            m,
            n,
            k,
            scalar(alpha, scale),
            Array(a).pointer,
            DATA[kind],
            m,
            Array(bb).pointer,
            DATA[kind],
            k,
            scalar(beta, scale),
            c.pointer,
            DATA[into],
            m,
            compute,
            -1,
        )
        wide = np.int64 if scale is np.int32 else np.float64
        wanted = alpha * (a.astype(wide) @ bb.astype(wide)) + beta * c.host.astype(wide)
        if scale is np.int32:
            return "" if np.array_equal(c.get(), wanted) else f"{kind}: the integers differ"
        wrong = close(c.get(), wanted, into if np.dtype(into).itemsize < 4 else np.float32, k)
        return wrong and f"{np.dtype(kind)} into {np.dtype(into)}: {wrong}"

    return of_each(
        one,
        (
            (HALF, HALF, COMPUTE_32F, np.float32),
            (HALF, np.float32, COMPUTE_32F, np.float32),
            (HALF, HALF, COMPUTE_16F, np.float16),
            (BFLOAT, BFLOAT, COMPUTE_32F, np.float32),
            (BFLOAT, np.float32, COMPUTE_32F, np.float32),
            (np.float32, np.float32, 77, np.float32),
            (np.float64, np.float64, COMPUTE_64F, np.float64),
            (np.int8, np.int32, COMPUTE_32I, np.int32),
            (np.int8, np.float32, COMPUTE_32F, np.float32),
        ),
    )


@case
def types_that_are_not_multiplied_are_refused_at_once() -> str:
    b, there = blas(), Array(np.zeros((8, 8), np.complex128))

    def status(kind: Any, into: Any, compute: int, scale: Any, ld: int = 8) -> int:
        a, c = (there.pointer, DATA[kind], ld), (there.pointer, DATA[into], 8)
        return b(
            "cublasGemmEx", 0, 0, 4, 4, 4, scalar(1, scale), *a, *a, scalar(0, scale), *c, compute, -1
        )  # fmt: skip

    found = [
        status(np.float32, HALF, COMPUTE_32F, np.float32),
        status(np.float64, np.float64, COMPUTE_32F, np.float32),
        status(HALF, np.float32, COMPUTE_16F, np.float16),
        status(HALF, BFLOAT, COMPUTE_32F, np.float32),
        status(np.int8, np.int32, COMPUTE_32I, np.int32, 6),
        status(np.int8, np.int32, COMPUTE_32I, np.int32),
        status(np.complex64, np.complex64, COMPUTE_32F, np.complex64),
    ]
    return "" if found == [15, 15, 15, 15, 15, 0, 0] else f"{found}"


@case
def every_half_is_rounded_as_numpy_does() -> str:
    b = blas()
    ends = [0.0, -0.0, 1, 255.875, 2**-12, 2**-13, 1e-5, np.inf, -np.inf]
    findings = []
    for kind in (HALF, BFLOAT):
        # Products of two such numbers are exact in single precision, and rounded once.
        left, right = (
            np.concatenate([random.standard_normal(n) * 10.0 ** random.integers(-5, 3, n), ends])
            .astype(np.float32)
            .astype(kind)
            for n in (55, 3000)
        )
        with np.errstate(invalid="ignore", over="ignore"):
            a = np.outer(left.astype(np.float32), right.astype(np.float32))
        out = Array(np.zeros(a.shape, kind))
        b.done(
            "cublasGemmEx",
            0,
            0,
            left.size,
            right.size,
            1,
            scalar(1, np.float32),
            Array(left).pointer,
            DATA[kind],
            left.size,
            Array(right).pointer,
            DATA[kind],
            1,
            scalar(0, np.float32),
            out.pointer,
            DATA[kind],
            left.size,
            COMPUTE_32F,
            -1,
        )
        with np.errstate(over="ignore"):
            got, wanted = out.get(), a.astype(kind)
        same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
        findings.append("" if same.all() else f"{np.dtype(kind)}: {a[~same][:3]} became {got[~same][:3]}")
    return first(findings)


@case
def batches_by_stride_and_by_addresses() -> str:
    b = blas()
    findings = []
    for letter, kind in {**TYPES, "H": HALF}.items():
        m, n, k, batches = 6, 5, 4, 7
        a, bb, c = (numbers(shape, kind) for shape in ((batches, k, m), (batches, n, k), (batches, n, m)))
        # A batch of matrices in columns is an array in rows with its last two sides exchanged.
        flat = [Array(x.reshape(-1)) for x in (a, bb, c)]
        wide = np.complex128 if letter in "CZ" else np.float64
        product = np.einsum("bkm,bnk->bnm", a.astype(wide), bb.astype(wide))
        b.done(
            f"cublas{letter}gemmStridedBatched",
            0,
            0,
            m,
            n,
            k,
            scalar(2, kind),
            flat[0].pointer,
            m,
            ctypes.c_longlong(m * k),
            flat[1].pointer,
            k,
            ctypes.c_longlong(k * n),
            scalar(1, kind),
            flat[2].pointer,
            m,
            ctypes.c_longlong(m * n),
            batches,
        )
        findings.append(close(flat[2].get().reshape(c.shape), 2 * product + c.astype(wide), kind, k))
        size = np.dtype(kind).itemsize
        addresses = [
            Array(np.array([x.address + i * step * size for i in reversed(range(batches))], np.uint64))
            for x, step in zip(flat, (m * k, k * n, m * n), strict=True)
        ]
        b.done(
            f"cublas{letter}gemmBatched",
            0,
            0,
            m,
            n,
            k,
            scalar(1, kind),
            addresses[0].pointer,
            m,
            addresses[1].pointer,
            k,
            scalar(0, kind),
            addresses[2].pointer,
            m,
            batches,
        )
        findings.append(close(flat[2].get().reshape(c.shape), product, kind, k))
    return first(findings)


@case
def vectors() -> str:
    b = blas()
    findings = []
    for letter, kind in TYPES.items():
        norm, real = {
            "S": ("S", np.float32),
            "D": ("D", np.float64),
            "C": ("Sc", np.float32),
            "Z": ("Dz", np.float64),
        }[letter]
        for n, incx, incy in ((5, 1, 1), (300, 2, 3), (140000, 1, 2), (9, -2, 1)):
            x, y = numbers(n * abs(incx), kind), numbers(n * abs(incy), kind)
            seen = x[:: abs(incx)][::-1] if incx < 0 else x[::incx]
            dx, dy = Array(x), Array(y)
            b.done(f"cublas{letter}axpy_v2", n, scalar(3, kind), dx.pointer, incx, dy.pointer, incy)
            wanted = y.copy()
            wanted[::incy] += 3 * seen
            findings.append(close(dy.get(), wanted, kind))
            for name, expected in {
                "dot": None,
                "dotu": seen @ wanted[::incy],
                "dotc": seen.conj() @ wanted[::incy],
            }.items():
                if (name == "dot") != (letter in "SD"):
                    continue
                expected = seen @ wanted[::incy] if expected is None else expected
                result = np.zeros(1, kind)
                b.done(
                    f"cublas{letter}{name}_v2",
                    n,
                    dx.pointer,
                    incx,
                    dy.pointer,
                    incy,
                    ctypes.c_void_p(result.ctypes.data),
                )
                scale = np.abs(seen) @ np.abs(wanted[::incy])
                findings.append(
                    close(result[0] / scale, expected / scale + 0 * expected, kind, n)
                    if abs(result[0] - expected) > 1e-5 * scale
                    else ""
                )
            if incx > 0:
                for name, expected in {
                    "nrm2": np.linalg.norm(seen),
                    "asum": np.abs(seen.real).sum() + (np.abs(seen.imag).sum() if letter in "CZ" else 0),
                }.items():
                    result = np.zeros(1, real)
                    b.done(f"cublas{norm}{name}_v2", n, dx.pointer, incx, ctypes.c_void_p(result.ctypes.data))
                    findings.append(close(result[0], expected, real, n))
                size = np.abs(seen.real) + np.abs(seen.imag)
                for name, expected in {"amax": np.argmax(size), "amin": np.argmin(size)}.items():
                    index = ctypes.c_int()
                    b.done(f"cublasI{letter.lower()}{name}_v2", n, dx.pointer, incx, ctypes.byref(index))
                    findings.append(
                        "" if index.value == expected + 1 else f"{name}: {index.value}, not {expected + 1}"
                    )
                b.done(f"cublas{letter}scal_v2", n, scalar(-2, kind), dx.pointer, incx)
                findings.append(close(dx.get()[::incx], -2 * seen, kind))
            b.done(f"cublas{letter}copy_v2", n, dx.pointer, incx, dy.pointer, incy)
            b.done(f"cublas{letter}swap_v2", n, dx.pointer, incx, dy.pointer, incy)
            findings.append(
                close(
                    dy.get()[::incy], (dx.get()[:: abs(incx)][::-1] if incx < 0 else dx.get()[::incx]), kind
                )
            )
    return first(findings)


@case
def rotations() -> str:
    b = blas()
    findings = []
    for letter, kind in TYPES.items():
        real = np.float32 if letter in "SC" else np.float64
        x, y = numbers(50, kind), numbers(50, kind)
        dx, dy = Array(x), Array(y)
        c, s = 0.6, 0.8 * (1j if letter in "CZ" else 1)
        b.done(f"cublas{letter}rot_v2", 50, dx.pointer, 1, dy.pointer, 1, scalar(c, real), scalar(s, kind))
        findings += [close(dx.get(), c * x + s * y, kind), close(dy.get(), c * y - np.conj(s) * x, kind)]
    x, y = numbers(20, np.float64), numbers(20, np.float64)
    dx, dy = Array(x), Array(y)
    h = np.array([-1, 0.5, -0.25, 2, 3], np.float64)  # flag h11 h21 h12 h22
    b.done("cublasDrotm_v2", 20, dx.pointer, 1, dy.pointer, 1, ctypes.c_void_p(h.ctypes.data))
    findings += [close(dx.get(), 0.5 * x + 2 * y, np.float64), close(dy.get(), -0.25 * x + 3 * y, np.float64)]
    return first(findings)


@case
def a_matrix_and_vectors() -> str:
    b = blas()
    findings = []
    for letter, kind in TYPES.items():
        m, n = 40, 1500
        a = numbers((m + 1, n), kind)
        for operation in (0, 1, 2):
            whole = op(a[:m], operation)
            x, y = numbers(2 * whole.shape[1], kind), numbers(whole.shape[0], kind)
            dy = Array(y)
            b.done(
                f"cublas{letter}gemv_v2",
                operation,
                m,
                n,
                scalar(2, kind),
                Array(a).pointer,
                m + 1,
                Array(x).pointer,
                2,
                scalar(-1, kind),
                dy.pointer,
                -1,
            )
            wanted = 2 * whole @ x[::2] - y[::-1]
            findings.append(close(dy.get()[::-1], wanted, kind, n))
        x, y = numbers(m, kind), numbers(n, kind)
        for name in ("geru", "gerc") if letter in "CZ" else ("ger",):
            da = Array(a)
            b.done(
                f"cublas{letter}{name}_v2",
                m,
                n,
                scalar(0.5, kind),
                Array(x).pointer,
                1,
                Array(y).pointer,
                1,
                da.pointer,
                m + 1,
            )
            findings.append(
                close(da.get()[:m], a[:m] + 0.5 * np.outer(x, y.conj() if name == "gerc" else y), kind)
            )
            findings.append(close(da.get()[m], a[m], kind))  # outside the matrix
    return first(findings)


def triangle(matrix: np.ndarray[Any, Any], upper: int, unit: int = 0) -> np.ndarray[Any, Any]:
    half = np.triu(matrix) if upper else np.tril(matrix)
    if unit:
        np.fill_diagonal(half, 1)
    return half


@case
def triangular_systems_and_products() -> str:
    b = blas()

    def one(letter: str, side: int, upper: int, operation: int, unit: int) -> str:
        kind, m, n = TYPES[letter], 37, 300
        order = n if side else m
        a = numbers((order, order), kind) / order + 2 * np.eye(order, dtype=kind)
        bb = numbers((m, n), kind)
        half = op(triangle(a, upper, unit), operation)
        a = np.where(triangle(np.ones_like(a, dtype=bool), upper), a, np.nan).astype(
            kind
        )  # the other half is not read
        da, solved, multiplied = Array(a), Array(bb), Array(np.full((m, n), np.nan, kind))
        b.done(
            f"cublas{letter}trmm_v2",
            side,
            upper,
            operation,
            unit,
            m,
            n,
            scalar(2, kind),
            da.pointer,
            order,
            solved.pointer,
            m,
            multiplied.pointer,
            m,
        )
        wrong = close(multiplied.get(), 2 * (bb @ half if side else half @ bb), kind, order)
        b.done(
            f"cublas{letter}trsm_v2",
            side,
            upper,
            operation,
            unit,
            m,
            n,
            scalar(2, kind),
            da.pointer,
            order,
            solved.pointer,
            m,
        )
        x = solved.get()
        return wrong or close(x @ half if side else half @ x, 2 * bb, kind, 30 * order)

    return first(one(*each) for each in itertools.product("SZ", (0, 1), (0, 1), (0, 1, 2), (0, 1)))


@case
def symmetric_matrices() -> str:
    b = blas()

    def one(letter: str, hermitian: bool, upper: int, operation: int) -> str:
        kind, n, k = TYPES[letter], 150, 40
        real = {"C": np.float32, "Z": np.float64}.get(letter, kind)
        turned = (lambda x: x.conj().T) if hermitian else (lambda x: x.T)
        a, bb = (numbers((k, n) if operation else (n, k), kind) for _ in "ab")
        left, right = (turned(x) if operation else x for x in (a, bb))
        c = numbers((n, n), kind)
        if hermitian:
            np.fill_diagonal(c, c.diagonal().real)
        names = ("herk", "her2k", "hemm") if hermitian else ("syrk", "syr2k", "symm")
        half = triangle(np.ones((n, n), bool), upper)
        factor = real if hermitian else kind
        dc = Array(c)
        b.done(
            f"cublas{letter}{names[0]}_v2",
            upper,
            operation,
            n,
            k,
            scalar(1.5, factor),
            Array(a).pointer,
            a.shape[0],
            scalar(0.5, factor),
            dc.pointer,
            n,
        )
        wrong = close(dc.get(), np.where(half, 1.5 * left @ turned(left) + 0.5 * c, c), kind, k)
        dc = Array(c)
        alpha = 1 + 2j if letter in "CZ" else 1.5
        b.done(
            f"cublas{letter}{names[1]}_v2",
            upper,
            operation,
            n,
            k,
            scalar(alpha, kind),
            Array(a).pointer,
            a.shape[0],
            Array(bb).pointer,
            a.shape[0],
            scalar(0.5, factor),
            dc.pointer,
            n,
        )
        second = np.conj(alpha) if hermitian else alpha
        wanted = alpha * left @ turned(right) + second * right @ turned(left) + 0.5 * c
        wrong = wrong or close(dc.get(), np.where(half, wanted, c), kind, 2 * k)
        whole = np.where(half, c, turned(c))
        x = numbers((n, 60), kind)
        out = Array(numbers((n, 60), kind))
        b.done(
            f"cublas{letter}{names[2]}_v2",
            0,
            upper,
            n,
            60,
            scalar(1, kind),
            Array(np.where(half, c, np.nan)).pointer,
            n,
            Array(x).pointer,
            n,
            scalar(2, kind),
            out.pointer,
            n,
        )
        wrong = wrong or close(out.get(), whole @ x + 2 * out.host, kind, n)
        return wrong and f"{letter} {names} upper={upper} {operation}: {wrong}"

    kinds = [("S", False), ("D", False), ("C", False), ("Z", False), ("C", True), ("Z", True)]
    return first(
        one(letter, hermitian, upper, (2 if hermitian else 1) if turned else 0)
        for (letter, hermitian), upper, turned in itertools.product(kinds, (0, 1), (0, 1))
    )


@case
def sums_and_scalings_of_matrices() -> str:
    b = blas()
    findings = []
    for letter, kind in TYPES.items():
        for ta, tb in itertools.product((0, 1, 2), repeat=2):
            (a, a_op), (bb, b_op) = stored(30, 20, ta, 31, kind), stored(30, 20, tb, 32, kind)
            c = Array(np.zeros((30, 20), kind))
            b.done(
                f"cublas{letter}geam",
                ta,
                tb,
                30,
                20,
                scalar(2, kind),
                Array(a).pointer,
                a.shape[0],
                scalar(-1, kind),
                Array(bb).pointer,
                bb.shape[0],
                c.pointer,
                30,
            )
            findings.append(close(c.get(), 2 * a_op - b_op, kind))
        a, x = numbers((30, 20), kind), numbers(60, kind)
        for mode in (0, 1):
            c = Array(np.zeros((30, 20), kind))
            b.done(
                f"cublas{letter}dgmm", mode, 30, 20, Array(a).pointer, 30, Array(x).pointer, 2, c.pointer, 30
            )
            findings.append(close(c.get(), a * x[:40:2] if mode else a * x[:60:2, None], kind))
    return first(findings)


@case
def many_small_systems() -> str:
    b = blas()
    findings = []
    for letter, kind in TYPES.items():
        n, batches, columns = 8, 5, 3
        a, rhs = numbers((batches, n, n), kind), numbers((batches, columns, n), kind)
        data, right, inverse = (
            Array(a.reshape(-1)),
            Array(rhs.reshape(-1)),
            Array(np.zeros(batches * n * n, kind)),
        )
        size = np.dtype(kind).itemsize
        lists = [
            Array(np.array([x.address + i * step * size for i in range(batches)], np.uint64))
            for x, step in ((data, n * n), (right, n * columns), (inverse, n * n))
        ]
        pivots, info = Array(np.zeros(batches * n, np.int32)), Array(np.full(batches, 9, np.int32))
        b.done(
            f"cublas{letter}matinvBatched", n, lists[0].pointer, n, lists[2].pointer, n, info.pointer, batches
        )
        wanted = np.linalg.inv(a)
        findings.append(close(inverse.get().reshape(a.shape), wanted, kind, 3000))
        b.done(f"cublas{letter}getrfBatched", n, lists[0].pointer, n, pivots.pointer, info.pointer, batches)
        findings.append("" if not info.get().any() else f"info {info.get()}")
        status = ctypes.c_int(5)
        b.done(
            f"cublas{letter}getrsBatched",
            0,
            n,
            columns,
            lists[0].pointer,
            n,
            pivots.pointer,
            lists[1].pointer,
            n,
            ctypes.byref(status),
            batches,
        )
        x = np.linalg.solve(np.swapaxes(a, 1, 2), np.swapaxes(rhs, 1, 2))
        findings.append(
            close(right.get().reshape(rhs.shape), np.swapaxes(x, 1, 2), kind, 3000)
            or ("" if status.value == 0 else "status")
        )
        b.done(
            f"cublas{letter}getriBatched",
            n,
            lists[0].pointer,
            n,
            pivots.pointer,
            lists[2].pointer,
            n,
            info.pointer,
            batches,
        )
        findings.append(close(inverse.get().reshape(a.shape), wanted, kind, 3000))
        b.done(
            f"cublas{letter}trsmBatched",
            0,
            1,
            0,
            0,
            n,
            columns,
            scalar(1, kind),
            lists[0].pointer,
            n,
            lists[1].pointer,
            n,
            batches,
        )
        upper = [np.triu(data.get().reshape(a.shape)[i].T) for i in range(batches)]
        expected = [linalg.solve_triangular(u, x[i]) for i, u in enumerate(upper)]
        findings.append(
            close(np.swapaxes(right.get().reshape(rhs.shape), 1, 2), np.array(expected), kind, 30000)
        )
        singular = Array(np.zeros((2, 2), kind))
        b.done(
            f"cublas{letter}getrfBatched",
            2,
            Array(np.array([singular.address], np.uint64)).pointer,
            2,
            pivots.pointer,
            info.pointer,
            1,
        )
        findings.append("" if info.get()[0] == 1 else f"a singular matrix: info {info.get()[0]}")
    return first(findings)


@case
def results_go_where_the_pointer_mode_says() -> str:
    b = blas()
    x = numbers(1000, np.float32)
    dx, result = Array(x), Array(np.zeros(1, np.float32))
    b.done("cublasSetPointerMode_v2", POINTER_DEVICE)
    b.done("cublasSnrm2_v2", 1000, dx.pointer, 1, result.pointer)
    b.done("cublasSscal_v2", 1000, result.pointer, dx.pointer, 1)  # with what the call before has left there
    return close(dx.get(), np.linalg.norm(x) * x, np.float32, 1000)


@CASES.not_native
def settings_are_kept() -> str:
    b = blas()
    stream = ok(driver.cuStreamCreate(0))
    for name, value in (("PointerMode_v2", 1), ("AtomicsMode", 1), ("MathMode", 3), ("SmCountTarget", 20)):
        got = ctypes.c_int()
        b.done(f"cublasSet{name}", value)
        b.done(f"cublasGet{name}", ctypes.byref(got))
        if got.value != value:
            return f"{name}: {got.value}"
    handle = ctypes.c_void_p()
    b.done("cublasSetStream_v2", ctypes.c_void_p(int(stream)))
    b.done("cublasGetStream_v2", ctypes.byref(handle))
    wrong = [
        b("cublasSetPointerMode_v2", 7),
        b("cublasSetMathMode", 99),
        int(b.library.cublasSetStream_v2(ctypes.c_void_p(64), None)),
    ]
    b.library.cublasGetStatusName.restype = ctypes.c_char_p
    name = b.library.cublasGetStatusName(15)
    good = handle.value == int(stream) and wrong == [7, 7, 1] and name == b"CUBLAS_STATUS_NOT_SUPPORTED"
    return "" if good else f"{handle.value} {int(stream)} {wrong} {name}"


@case
def copies_of_vectors_and_matrices() -> str:
    library = blas().library
    a = np.asfortranarray(numbers((6, 4), np.float32))
    there = Array(np.zeros((8, 4), np.float32))
    back = np.zeros((6, 4), np.float32, order="F")
    at = ctypes.c_void_p
    assert library.cublasSetMatrix(6, 4, 4, at(a.ctypes.data), 6, there.pointer, 8) == 0
    assert library.cublasGetMatrix(6, 4, 4, there.pointer, 8, at(back.ctypes.data), 6) == 0
    wrong = close(back, a, np.float32) or close(there.get()[6:], np.zeros((2, 4)), np.float32)
    x, y = numbers(10, np.float64), np.zeros(5)
    device = Array(np.zeros(15))
    assert library.cublasSetVector(5, 8, at(x.ctypes.data), 2, device.pointer, 3) == 0
    assert library.cublasGetVector(5, 8, device.pointer, 3, at(y.ctypes.data), 1) == 0
    return wrong or close(y, x[::2], np.float64)


@case
def many_orthogonal_factors() -> str:
    b = blas()

    def one(letter: str, m: int, n: int) -> str:
        kind, count = TYPES[letter], 4
        matrices = [numbers((m, n), kind) for _ in range(count)]
        there = [Array(a) for a in matrices]
        taus = [Array(np.zeros(min(m, n), kind)) for _ in matrices]
        at, tau = (Array(np.array([a.address for a in many], np.uint64)) for many in (there, taus))
        wrong = ctypes.c_int(7)
        b.done(f"cublas{letter}geqrfBatched", m, n, at.pointer, m, tau.pointer, ctypes.byref(wrong), count)
        qr = linalg.lapack.get_lapack_funcs("geqrf", (matrices[0],))
        for a, got, factors in zip(matrices, there, taus, strict=True):
            wanted = qr(a)
            if problem := close(got.get(), wanted[0], kind, 40) or close(factors.get(), wanted[1], kind, 40):
                return f"{letter} {m} {n}: {problem}"
        return "" if wrong.value == 0 else f"info {wrong.value}"

    return first(one(letter, m, n) for letter in TYPES for m, n in ((6, 6), (9, 4), (4, 9)))


@CASES.not_native
def what_does_not_fit_is_refused() -> str:
    b = blas()
    c = Array(numbers((4, 4), np.float32))
    one = scalar(1, np.float32)
    shapes = {
        (3, 0, 4, 4, 4, 4, 4, 4),
        (0, 0, -1, 4, 4, 4, 4, 4),
        (0, 0, 4, 4, 4, 3, 4, 4),
        (0, 1, 4, 5, 4, 4, 4, 4),
        (0, 0, 4, 4, 4, 4, 4, 3),
    }
    statuses = {
        b("cublasSgemm_v2", ta, tb, m, n, k, one, c.pointer, lda, c.pointer, ldb, one, c.pointer, ldc)
        for ta, tb, m, n, k, lda, ldb, ldc in shapes
    }
    null = b("cublasSgemm_v2", 0, 0, 4, 4, 4, None, c.pointer, 4, c.pointer, 4, one, c.pointer, 4)
    lacking = b("cublasCtpttr"), int(b.library.cublasXtCreate(None))
    stray = int(
        b.library.cublasSgemm_v2(
            ctypes.c_void_p(4096), 0, 0, 4, 4, 4, one, c.pointer, 4, c.pointer, 4, one, c.pointer, 4
        )
    )
    good = statuses == {7} and null == 7 and lacking == (15, 15) and stray == 1
    return "" if good else f"{statuses} {null} {lacking} {stray}"


if __name__ == "__main__":
    CASES.main()
