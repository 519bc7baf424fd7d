"""Cases of cuBLASLt against NumPy."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np

from tests.native.libraries.cublas_cases import (
    BFLOAT,
    COMPUTE_32F,
    COMPUTE_32I,
    COMPUTE_64F,
    DATA,
    FP8,
    HALF,
    numbers,
)
from tests.native.libraries.device import Array, Cases, Library, close, of_each, scalar
from tests.real_gpu import REAL

__all__ = ["CASES"]

CASES = Cases()
case = CASES.add

COLUMNS, ROWS = 0, 1
POINTER_MODE, TRANSA, TRANSB, EPILOGUE, BIAS_POINTER, AUX_POINTER, AUX_LD = 2, 3, 4, 7, 8, 11, 12
A_SCALE, B_SCALE, D_SCALE, BIAS_TYPE = 17, 18, 20, 26
RELU, BIAS, DRELU, GELU, DGELU, AUX = 2, 4, 8, 32, 64, 128


class Lt(Library):
    """cuBLASLt: descriptors by their attributes, and products."""

    def __init__(self) -> None:
        super().__init__("libcublasLt.so.12", "cublasLtCreate")

    def layout(
        self,
        kind: Any,
        rows: int,
        columns: int,
        ld: int,
        order: int = COLUMNS,
        batches: int = 1,
        step: int = 0,
    ) -> Any:
        """Return a layout."""
        made = ctypes.c_void_p()
        create = self.library.cublasLtMatrixLayoutCreate
        assert (
            create(
                ctypes.byref(made),
                DATA[kind],
                ctypes.c_uint64(rows),
                ctypes.c_uint64(columns),
                ctypes.c_int64(ld),
            )
            == 0
        )
        for number, value in (
            (1, ctypes.c_int32(order)),
            (5, ctypes.c_int32(batches)),
            (6, ctypes.c_int64(step)),
        ):
            assert (
                self.library.cublasLtMatrixLayoutSetAttribute(
                    made, number, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value))
                )
                == 0
            )
        return made

    def operation(self, compute: int, scale: Any, attributes: Iterable[tuple[int, Any]] = ()) -> Any:
        """Return an operation; integers among the attributes are of 32 bits, arrays their addresses."""
        made = ctypes.c_void_p()
        assert self.library.cublasLtMatmulDescCreate(ctypes.byref(made), compute, DATA[scale]) == 0
        for number, given in attributes:
            value = (
                ctypes.c_uint64(given.address)
                if isinstance(given, Array)
                else given
                if isinstance(given, ctypes._SimpleCData)
                else ctypes.c_int32(given)
            )
            assert (
                self.library.cublasLtMatmulDescSetAttribute(
                    made, number, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value))
                )
                == 0
            )
        return made

    def multiply(
        self,
        operation: Any,
        a: tuple[Array, Any],
        b: tuple[Array, Any],
        c: tuple[Array, Any],
        d: tuple[Array, Any],
        alpha: Any,
        beta: Any,
        algorithm: Any = None,
    ) -> int:
        """Return the status of cublasLtMatmul."""
        return self(
            "cublasLtMatmul", operation, alpha, a[0].pointer, a[1], b[0].pointer, b[1], beta, c[0].pointer, c[1],
            d[0].pointer, d[1], algorithm, None, ctypes.c_size_t(0), None,
        )  # fmt: skip


def first(findings: Any) -> str:
    return next((finding for finding in findings if finding), "")


@case
def products_in_columns_and_in_rows() -> str:
    lt = Lt()

    def one(kind: Any, compute: int, scale: Any, orders: tuple[int, ...], ta: int, tb: int) -> str:
        m, n, k = 40, 70, 50

        def matrix(
            rows: int, columns: int, order: int, batches: int = 1
        ) -> tuple[np.ndarray[Any, Any], Array, Any]:
            ld = (columns if order == ROWS else rows) + 3
            whole = numbers((rows, ld) if order == ROWS else (ld, columns), kind)
            flat = Array(whole.reshape(-1, order="C" if order == ROWS else "F"))
            seen = whole[:, :columns] if order == ROWS else whole[:rows]
            return seen, flat, lt.layout(kind, rows, columns, ld, order)

        a = matrix(*((k, m) if ta else (m, k)), orders[0])
        b = matrix(*((n, k) if tb else (k, n)), orders[1])
        c, d = matrix(m, n, orders[2]), matrix(m, n, orders[3])
        operation = lt.operation(compute, scale, [(TRANSA, ta), (TRANSB, tb)])
        status = lt.multiply(operation, a[1:], b[1:], c[1:], d[1:], scalar(1.5, scale), scalar(-0.5, scale))
        if status:
            return f"status {status}"
        wide = np.complex128 if np.iscomplexobj(c[0]) else np.float64
        op_a, op_b = (x[0].astype(wide).T if t else x[0].astype(wide) for x, t in ((a, ta), (b, tb)))
        wanted = 1.5 * op_a @ op_b - 0.5 * c[0].astype(wide)
        ld = (n if orders[3] == ROWS else m) + 3
        got = (
            d[1]
            .get()
            .reshape((m, ld) if orders[3] == ROWS else (ld, n), order="C" if orders[3] == ROWS else "F")
        )
        rest = got[:, n:] if orders[3] == ROWS else got[m:]
        before = d[1].host.reshape(got.shape, order="C" if orders[3] == ROWS else "F")
        untouched = np.array_equal(rest, before[:, n:] if orders[3] == ROWS else before[m:])
        wrong = close(got[:, :n] if orders[3] == ROWS else got[:m], wanted, kind, k)
        return (
            wrong or ("" if untouched else "it wrote beside the matrix")
        ) and f"{np.dtype(kind)} {orders} {ta} {tb}: {wrong}"

    kinds = [
        (np.float32, COMPUTE_32F, np.float32),
        (np.float64, COMPUTE_64F, np.float64),
        (HALF, COMPUTE_32F, np.float32),
        (np.complex64, COMPUTE_32F, np.complex64),
    ]
    orders = [(0, 0, 0, 0), (1, 1, 1, 1), (0, 1, 0, 1), (1, 0, 1, 0), (0, 0, 1, 1), (1, 1, 0, 0)]
    if REAL:  # C and D have one order there
        orders = [order for order in orders if order[2] == order[3]]
    combinations = itertools.product(kinds, orders, (0, 1), (0, 1))
    return of_each(one, ((*kind, order, ta, tb) for kind, order, ta, tb in combinations))


def gelu(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@case
def epilogues() -> str:
    lt = Lt()
    m, n, k, ld = 200, 300, 24, 256
    findings = []
    for kind in (np.float32, BFLOAT):
        a, b, bias = numbers((m, k), kind), numbers((k, n), kind), numbers(m, kind)
        arrays = Array(a), Array(b), Array(bias)
        layouts = lt.layout(kind, m, k, m), lt.layout(kind, k, n, k), lt.layout(kind, m, n, m)
        product = a.astype(float) @ b.astype(float)
        one, zero = scalar(1, np.float32), scalar(0, np.float32)

        def run(
            kind: Any = kind,
            arrays: Any = arrays,
            layouts: Any = layouts,
            one: Any = one,
            zero: Any = zero,
            **attributes: Any,
        ) -> np.ndarray[Any, Any]:
            names = {"epilogue": EPILOGUE, "bias": BIAS_POINTER, "aux": AUX_POINTER, "ld": AUX_LD}
            d = Array(np.full((m, n), np.nan, kind))
            operation = lt.operation(
                COMPUTE_32F, np.float32, [(names[name], value) for name, value in attributes.items()]
            )
            status = lt.multiply(
                operation,
                (arrays[0], layouts[0]),
                (arrays[1], layouts[1]),
                (d, layouts[2]),
                (d, layouts[2]),
                one,
                zero,
            )
            assert status == 0, f"{attributes}: {status}"
            return d.get()

        with_bias = product + bias.astype(float)[:, None]
        findings.append(close(run(epilogue=BIAS, bias=arrays[2]), with_bias, kind, k))
        findings.append(close(run(epilogue=RELU), np.maximum(product, 0), kind, k))
        findings.append(close(run(epilogue=RELU | BIAS, bias=arrays[2]), np.maximum(with_bias, 0), kind, k))
        findings.append(close(run(epilogue=GELU | BIAS, bias=arrays[2]), gelu(with_bias), kind, k))
        # What is kept for the way back, and the way back.
        mask, wide = Array(np.zeros(ld * n // 8, np.uint8)), ctypes.c_int64(ld)
        got = run(epilogue=RELU | AUX | BIAS, bias=arrays[2], aux=mask, ld=wide)
        bits = np.unpackbits(mask.get(), bitorder="little").reshape(n, ld)[:, :m].T
        findings.append(
            close(got, np.maximum(with_bias, 0), kind, k)
            or ("" if np.array_equal(bits == 1, got > 0) else "the mask")
        )
        findings.append(
            close(run(epilogue=DRELU | AUX, aux=mask, ld=wide), np.where(bits, product, 0), kind, k)
        )
        before = Array(np.zeros((ld, n), kind))
        got = run(epilogue=GELU | AUX, aux=before, ld=wide)
        findings.append(close(got, gelu(product), kind, k) or close(before.get()[:m], product, kind, k))
        x = before.get()[:m].astype(float)
        slope = (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5
        findings.append(close(run(epilogue=DGELU | AUX, aux=before, ld=wide), product * slope, kind, 50 * k))
    return first(findings)


@case
def scales_of_small_types() -> str:
    lt = Lt()
    m, n, k = 48, 32, 64
    a, b = numbers((k, m), FP8), numbers((k, n), FP8)
    factors = [Array(np.array([x], np.float32)) for x in (0.5, 4.0, 0.25)]
    findings = []
    for into in (np.float32, BFLOAT, FP8):
        d = Array(np.zeros((m, n), into))
        attributes: list[tuple[int, Any]] = [(TRANSA, 1), (A_SCALE, factors[0]), (B_SCALE, factors[1])]
        attributes += [(D_SCALE, factors[2])] if into is FP8 else []
        layouts = lt.layout(FP8, k, m, k), lt.layout(FP8, k, n, k), lt.layout(into, m, n, m)
        # What is added to numbers of 8 bits is bfloat16.
        added = (
            (Array(np.zeros((m, n), BFLOAT)), lt.layout(BFLOAT, m, n, m)) if into is FP8 else (d, layouts[2])
        )
        operation = lt.operation(COMPUTE_32F, np.float32, attributes)
        status = lt.multiply(
            operation,
            (Array(a), layouts[0]),
            (Array(b), layouts[1]),
            added,
            (d, layouts[2]),
            scalar(1, np.float32),
            scalar(0, np.float32),
        )
        wanted = 2 * a.astype(float).T @ b.astype(float) * (0.25 if into is FP8 else 1)
        wrong = f"status {status}" if status else close(d.get(), wanted, into, k)
        findings.append(wrong and f"{np.dtype(into)}: {wrong}")
    a8, b8 = numbers((k, m), np.int8), numbers((k, n), np.int8)
    d = Array(np.zeros((m, n), np.int8))
    layouts = lt.layout(np.int8, k, m, k), lt.layout(np.int8, k, n, k), lt.layout(np.int8, m, n, m)
    operation = lt.operation(COMPUTE_32I, np.float32, [(TRANSA, 1)])
    status = lt.multiply(
        operation,
        (Array(a8), layouts[0]),
        (Array(b8), layouts[1]),
        (d, layouts[2]),
        (d, layouts[2]),
        scalar(2**-9, np.float32),
        scalar(0, np.float32),
    )
    wanted = np.clip(np.rint(a8.astype(np.int64).T @ b8.astype(np.int64) / 2**9), -128, 127)
    findings.append(
        f"status {status}" if status else "" if np.array_equal(d.get(), wanted) else "bytes differ"
    )
    return first(findings)


@case
def batches_and_scalars_on_the_device() -> str:
    lt = Lt()
    m, n, k, batches = 10, 12, 8, 5
    a, b = numbers((batches, k, m), np.float32), numbers((k, n), np.float32)
    d = Array(np.zeros(batches * n * m, np.float32))
    la = lt.layout(np.float32, m, k, m, COLUMNS, batches, m * k)
    lb = lt.layout(np.float32, k, n, k, COLUMNS, batches, 0)  # the same for all
    ld = lt.layout(np.float32, m, n, m, COLUMNS, batches, m * n)
    arrays = Array(a.reshape(-1)), Array(b)
    product = np.einsum("bkm,kn->bnm", a.astype(float), b)
    numbers_there = Array(np.array([3], np.float32)), Array(np.array([0], np.float32))
    on_device = lt.operation(COMPUTE_32F, np.float32, [(POINTER_MODE, 1)])
    status = lt.multiply(
        on_device,
        (arrays[0], la),
        (arrays[1], lb),
        (d, ld),
        (d, ld),
        numbers_there[0].pointer,
        numbers_there[1].pointer,
    )
    wrong = (
        f"status {status}" if status else close(d.get().reshape(product.shape), 3 * product, np.float32, k)
    )
    if REAL:  # a vector of factors is for bytes there
        return wrong
    alphas = Array(np.arange(m, dtype=np.float32))
    by_row = lt.operation(COMPUTE_32F, np.float32, [(POINTER_MODE, 3)])
    status = lt.multiply(by_row, (arrays[0], la), (arrays[1], lb), (d, ld), (d, ld), alphas.pointer, None)
    expected = product * np.arange(m)
    return wrong or (
        f"status {status}" if status else close(d.get().reshape(product.shape), expected, np.float32, k)
    )


@case
def heuristics_and_descriptors_that_are_copied() -> str:
    lt = Lt()
    n = 16
    a = Array(numbers((n, n), np.float32))
    d = Array(np.zeros((n, n), np.float32))
    layout, operation = lt.layout(np.float32, n, n, n), lt.operation(COMPUTE_32F, np.float32, [(TRANSA, 1)])
    copies = [
        (ctypes.c_uint64 * words).from_buffer_copy(ctypes.string_at(it.value, 8 * words))
        for it, words in ((layout, 8), (operation, 32))
    ]
    layout, operation = (ctypes.c_void_p(ctypes.addressof(copy)) for copy in copies)
    preference, results, count = ctypes.c_void_p(), (ctypes.c_uint64 * (12 * 4))(), ctypes.c_int()
    lt.library.cublasLtMatmulPreferenceCreate(ctypes.byref(preference))
    most = ctypes.c_uint64(1 << 20)
    lt.library.cublasLtMatmulPreferenceSetAttribute(preference, 1, ctypes.byref(most), ctypes.c_size_t(8))
    lt.done(
        "cublasLtMatmulAlgoGetHeuristic",
        operation,
        layout,
        layout,
        layout,
        layout,
        preference,
        4,
        ctypes.byref(results),
        ctypes.byref(count),
    )
    if not 1 <= count.value <= 4:
        return f"{count.value} heuristics"
    lt.done(
        "cublasLtMatmulAlgoCheck",
        operation,
        layout,
        layout,
        layout,
        layout,
        ctypes.byref(results),
        ctypes.byref(results),
    )
    status = lt.multiply(
        operation,
        (a, layout),
        (a, layout),
        (d, layout),
        (d, layout),
        scalar(1, np.float32),
        scalar(0, np.float32),
        ctypes.byref(results),
    )
    if status:
        return f"status {status}"
    # PyTorch hands over a handle of cuBLAS.
    blas = Library("libcublas.so.12", "cublasCreate_v2")
    lt.handle = blas.handle
    again = lt.multiply(
        operation,
        (a, layout),
        (a, layout),
        (d, layout),
        (d, layout),
        scalar(1, np.float32),
        scalar(0, np.float32),
    )
    return f"status {again}" if again else close(d.get(), a.host.T @ a.host, np.float32, n)


@case
def transformations() -> str:
    lt = Lt()
    rows, columns = 30, 44
    kind = np.float32 if REAL else HALF  # NVIDIA's adds matrices of one type
    x, y = numbers((rows, columns), kind), numbers((columns, rows), np.float32)
    out = Array(np.zeros(rows * columns, np.float32))
    transformation = ctypes.c_void_p()
    lt.library.cublasLtMatrixTransformDescCreate(ctypes.byref(transformation), DATA[np.float32])
    turned = ctypes.c_int32(1)
    lt.library.cublasLtMatrixTransformDescSetAttribute(
        transformation, 3, ctypes.byref(turned), ctypes.c_size_t(4)
    )
    lt.done(
        "cublasLtMatrixTransform", transformation, scalar(2, np.float32), Array(x).pointer, lt.layout(kind, rows, columns, rows),
        scalar(-1, np.float32), Array(y).pointer, lt.layout(np.float32, columns, rows, columns),
        out.pointer, lt.layout(np.float32, rows, columns, columns, ROWS), None,
    )  # fmt: skip
    return close(out.get().reshape(rows, columns), 2 * x.astype(float) - y.T, np.float32)


@case
def what_is_not_understood_is_refused() -> str:
    lt = Lt()
    n = 32
    a = Array(numbers((n, n), np.float32))
    layout = lt.layout(np.float32, n, n, n)
    one = scalar(1, np.float32)

    def status(*attributes: tuple[int, Any], order: int = COLUMNS, columns: int = n) -> int:
        c = lt.layout(np.float32, n, columns, n, order)
        operation = lt.operation(COMPUTE_32F, np.float32, attributes)
        answer = lt.multiply(operation, (a, layout), (a, layout), (a, c), (a, c), one, one)
        # From a slice the library is asked by the heuristic: the product itself is queued.
        preference, results, count = ctypes.c_void_p(), (ctypes.c_uint64 * 12)(), ctypes.c_int()
        lt.library.cublasLtMatmulPreferenceCreate(ctypes.byref(preference))
        return answer or lt(
            "cublasLtMatmulAlgoGetHeuristic",
            operation,
            layout,
            layout,
            c,
            c,
            preference,
            1,
            ctypes.byref(results),
            ctypes.byref(count),
        )

    refused = {
        "col32": status(order=2),
        "bgrad": status((EPILOGUE, 512)),
        "amax": status((21, a)),
        "shape": status(columns=n - 1),
    }
    value = ctypes.c_int32(1)
    operation = lt.operation(COMPUTE_32F, np.float32)
    set_attribute = lt.library.cublasLtMatmulDescSetAttribute
    refused["unknown"] = set_attribute(operation, 29, ctypes.byref(value), ctypes.c_size_t(8))
    refused["size"] = set_attribute(operation, TRANSA, ctypes.byref(value), ctypes.c_size_t(8))
    refused["lacking"] = lt("cublasLtMatmulAlgoInit")
    return "" if all(refused.values()) else str(refused)


if __name__ == "__main__":
    CASES.main()
