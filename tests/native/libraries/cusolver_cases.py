"""Cases of cuSOLVER against NumPy and SciPy."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from cuda.bindings import driver
from scipy import linalg

from tests.native.libraries.cublas_cases import DATA, TYPES, first, numbers
from tests.native.libraries.device import Array, Cases, Library, close, forwarded, ok
from tests.real_gpu import REAL as REAL_GPU

__all__ = ["CASES"]

CASES = Cases()
case = CASES.add
Matrix = np.ndarray[Any, Any]
REAL = {"S": np.float32, "D": np.float64, "C": np.float32, "Z": np.float64}


def solver() -> Library:
    return Library("libcusolver.so.11", "cusolverDnCreate")


def for_each_type(function: Callable[[Library, str], str]) -> str:
    s = solver()
    return first((wrong and f"{letter}: {wrong}") for letter in TYPES if (wrong := function(s, letter)))


def inner(letter: str, names: str) -> str:
    """Return the name of a function that real and complex types call differently: "or/un", "sy/he"."""
    return names.split("/")[letter in "CZ"]


def positive(n: int, kind: Any) -> Matrix:
    a = numbers((n, n), kind)
    return (a @ a.conj().T + n * np.eye(n)).astype(kind)


def hermitian(n: int, kind: Any) -> Matrix:
    a = numbers((n, n), kind)
    return ((a + a.conj().T) / 2).astype(kind)


def inside(a: Matrix, ld: int) -> Array:
    """A matrix in columns with leading dimension `ld`."""
    whole = np.full((ld, a.shape[1]), 9, a.dtype)
    whole[: a.shape[0]] = a
    return Array(whole)


def integers(count: int = 1) -> Array:
    return Array(np.full(count, 77, np.int32))


def room(s: Library, name: str, *arguments: Any) -> tuple[Array, int]:
    """A workspace of the size that the library asks for, and its size in elements."""
    size = ctypes.c_int(-1)
    s.done(f"{name}_bufferSize", *(ctypes.byref(size) if a is ... else a for a in arguments))
    assert size.value > 0
    return Array(np.zeros(size.value, np.complex128)), size.value


def rooms(s: Library, name: str, *arguments: Any) -> tuple[Any, ...]:
    """Workspaces of the 64-bit functions as they take them: device, bytes, host, bytes."""
    device, host = ctypes.c_size_t(99), ctypes.c_size_t(99)
    s.done(f"{name}_bufferSize", *arguments, ctypes.byref(device), ctypes.byref(host))
    place = Array(np.zeros(max(device.value, 1), np.int8))
    memory = ctypes.create_string_buffer(max(host.value, 1))
    rooms.kept = (place, memory)  # type: ignore[attr-defined]
    return place.pointer, device, ctypes.cast(memory, ctypes.c_void_p), host


def long(value: int) -> ctypes.c_int64:
    return ctypes.c_int64(value)


def data(letter: str, real: bool = False) -> int:
    return DATA[REAL[letter] if real else TYPES[letter]]


def unit(q: Matrix, kind: Any) -> str:
    """Return what is wrong with the columns of `q` as an orthonormal basis."""
    wrong = close(q.conj().T @ q, np.eye(q.shape[1], dtype=q.dtype), kind, 10 * len(q))
    return wrong and f"not orthonormal: {wrong}"


@case
def cholesky_and_what_is_solved_with_it() -> str:
    def one(s: Library, letter: str) -> str:
        kind, n = TYPES[letter], 37
        a = positive(n, kind)
        for uplo, lower in ((0, True), (1, False)):
            there, info = inside(a, n + 3), integers()
            work, size = room(s, f"cusolverDn{letter}potrf", uplo, n, there.pointer, n + 3, ...)
            s.done(
                f"cusolverDn{letter}potrf", uplo, n, there.pointer, n + 3, work.pointer, size, info.pointer
            )
            factor, half = there.get(), np.tril if lower else np.triu
            wrong = close(half(factor[:n]), linalg.cholesky(a, lower=lower), kind, n)
            rest = np.triu(factor[:n], 1) if lower else np.tril(factor[:n], -1)
            wanted = np.triu(a, 1) if lower else np.tril(a, -1)
            if wrong or int(info.get()[0]) or not np.array_equal(rest, wanted) or not (factor[n:] == 9).all():
                return f"potrf {uplo}: {wrong} {info.get()}"
            b = numbers((n, 4), kind)
            x = inside(b, n + 1)
            s.done(
                f"cusolverDn{letter}potrs", uplo, n, 4, there.pointer, n + 3, x.pointer, n + 1, info.pointer
            )
            if wrong := close(a @ x.get()[:n], b, kind, 20 * n):
                return f"potrs {uplo}: {wrong}"
            s.done(
                f"cusolverDn{letter}potri", uplo, n, there.pointer, n + 3, work.pointer, size, info.pointer
            )
            if wrong := close(half(there.get()[:n]), half(linalg.inv(a)), kind, 20 * n):
                return f"potri {uplo}: {wrong}"
        return ""

    return for_each_type(one)


@case
def a_matrix_that_is_not_positive_says_where() -> str:
    s = solver()
    a = np.diag([2.0, 1.0, -1.0, 3.0])
    there, info = Array(a), integers()
    work, size = room(s, "cusolverDnDpotrf", 0, 4, there.pointer, 4, ...)
    s.done("cusolverDnDpotrf", 0, 4, there.pointer, 4, work.pointer, size, info.pointer)
    singular, pivots = Array(np.diag([1.0, 0.0, 2.0])), integers(3)
    found = [int(info.get()[0])]
    s.done("cusolverDnDgetrf", 3, 3, singular.pointer, 3, work.pointer, pivots.pointer, info.pointer)
    found.append(int(info.get()[0]))
    return "" if found == [3, 2] else f"{found}"


@case
def many_small_cholesky_factors() -> str:
    def one(s: Library, letter: str) -> str:
        kind, n, count = TYPES[letter], 8, 5
        matrices = [positive(n, kind) for _ in range(count)]
        matrices[3] = -matrices[3]
        there, info = [Array(m) for m in matrices], integers(count)
        b = [numbers((n, 1), kind) for _ in range(count)]
        x = [Array(one) for one in b]
        at, xs = (Array(np.array([t.address for t in many], np.uint64)) for many in (there, x))
        s.done(f"cusolverDn{letter}potrfBatched", 0, n, at.pointer, n, info.pointer, count)
        if list(info.get()) != [0, 0, 0, 1, 0]:
            return f"{info.get()}"
        s.done(f"cusolverDn{letter}potrsBatched", 0, n, 1, at.pointer, n, xs.pointer, n, info.pointer, count)
        return first(close(matrices[i] @ x[i].get(), b[i], kind, 20 * n) for i in (0, 1, 2, 4))

    return for_each_type(one)


@case
def lu_and_what_is_solved_with_it() -> str:
    def one(s: Library, letter: str) -> str:
        kind = TYPES[letter]
        for m, n in ((23, 23), (30, 12), (12, 30)):
            a = numbers((m, n), kind)
            there, pivots, info = inside(a, m + 2), integers(min(m, n)), integers()
            work, _ = room(s, f"cusolverDn{letter}getrf", m, n, there.pointer, m + 2, ...)
            s.done(
                f"cusolverDn{letter}getrf",
                m,
                n,
                there.pointer,
                m + 2,
                work.pointer,
                pivots.pointer,
                info.pointer,
            )
            lu, exchanged = linalg.lapack.get_lapack_funcs("getrf", (a,))(a)[:2]
            wrong = close(there.get()[:m], lu, kind, 20 * m)
            if wrong or not np.array_equal(pivots.get() - 1, exchanged):
                return f"getrf {m} {n}: {wrong} {pivots.get()}"
            if m != n:
                continue
            for trans, turned in ((0, a), (1, a.T), (2, a.conj().T)):
                b = numbers((n, 3), kind)
                x = Array(b)
                s.done(f"cusolverDn{letter}getrs", trans, n, 3, there.pointer, m + 2, pivots.pointer, x.pointer, n, info.pointer)  # fmt: skip
                if wrong := close(turned @ x.get(), b, kind, 500 * n):
                    return f"getrs {trans}: {wrong}"
        # Without exchanges, of a matrix that needs none.
        a = positive(9, kind)
        there = Array(a)
        s.done(f"cusolverDn{letter}getrf", 9, 9, there.pointer, 9, work.pointer, None, info.pointer)
        f = there.get()
        return close((np.tril(f, -1) + np.eye(9)) @ np.triu(f), a, kind, 30)

    return for_each_type(one)


@case
def qr_and_its_orthogonal_factor() -> str:
    def one(s: Library, letter: str) -> str:
        kind = TYPES[letter]
        for m, n in ((20, 20), (31, 13), (13, 31)):
            a, least = numbers((m, n), kind), min(m, n)
            there, tau, info = inside(a, m + 1), Array(np.zeros(least, kind)), integers()
            work, size = room(s, f"cusolverDn{letter}geqrf", m, n, there.pointer, m + 1, ...)
            s.done(
                f"cusolverDn{letter}geqrf",
                m,
                n,
                there.pointer,
                m + 1,
                tau.pointer,
                work.pointer,
                size,
                info.pointer,
            )
            r = np.triu(there.get()[:m])[:least]
            c = numbers((m, 5), kind)
            product = Array(c)
            mqr = f"cusolverDn{letter}{inner(letter, 'or/un')}mqr"
            trans = 2 if letter in "CZ" else 1
            arguments = (0, trans, m, 5, least, there.pointer, m + 1, tau.pointer, product.pointer, m)
            work, size = room(s, mqr, *arguments, ...)
            s.done(mqr, *arguments, work.pointer, size, info.pointer)
            gqr = f"cusolverDn{letter}{inner(letter, 'or/un')}gqr"
            work, size = room(s, gqr, m, least, least, there.pointer, m + 1, tau.pointer, ...)
            s.done(gqr, m, least, least, there.pointer, m + 1, tau.pointer, work.pointer, size, info.pointer)
            q = there.get()[:m, :least]
            wrong = close(q @ r, a, kind, 30 * m) or unit(q, kind)
            wrong = wrong or close(product.get()[:least], q.conj().T @ c, kind, 30 * m)
            if wrong or info.get()[0]:
                return f"{m} {n}: {wrong} {info.get()}"
        return ""

    return for_each_type(one)


@case
def eigenvalues_of_hermitian_matrices() -> str:
    def one(s: Library, letter: str) -> str:
        kind, n = TYPES[letter], 26
        a = hermitian(n, kind)
        params = ctypes.c_void_p()
        assert s.library.cusolverDnCreateSyevjInfo(ctypes.byref(params)) == 0
        wanted = linalg.eigvalsh(a)
        for method, more in (("evd", ()), ("evj", (params,))):
            for uplo, job in ((0, 0), (1, 1), (0, 1)):
                unread = np.tril(np.full((n, n), np.nan), -1)  # the other half
                half = (np.triu(a) + unread if uplo else np.tril(a) + unread.T).astype(kind)
                there, values, info = inside(half, n + 2), Array(np.zeros(n, REAL[letter])), integers()
                name = f"cusolverDn{letter}{inner(letter, 'sy/he')}{method}"
                head = (job, uplo, n, there.pointer, n + 2, values.pointer)
                work, size = room(s, name, *head, ..., *more)
                s.done(name, *head, work.pointer, size, info.pointer, *more)
                wrong = close(values.get(), wanted, kind, 10 * n)
                if job and not wrong:
                    v = there.get()[:n]
                    wrong = close(a @ v, v * values.get(), kind, 30 * n) or unit(v, kind)
                if wrong or info.get()[0]:
                    return f"{method} {uplo} {job}: {wrong} {info.get()}"
        assert s.library.cusolverDnDestroySyevjInfo(params) == 0
        return ""

    return for_each_type(one)


@case
def eigenvalues_of_many_matrices_and_of_pairs() -> str:
    def one(s: Library, letter: str) -> str:
        kind, n, count = TYPES[letter], 6, 4
        many = np.stack([hermitian(n, kind) for _ in range(count)], 2)
        there, values, info = Array(many), Array(np.zeros((n, count), REAL[letter])), integers(count)
        params = ctypes.c_void_p()
        assert s.library.cusolverDnCreateSyevjInfo(ctypes.byref(params)) == 0
        name = f"cusolverDn{letter}{inner(letter, 'sy/he')}evjBatched"
        head = (1, 0, n, there.pointer, n, values.pointer)
        work, size = room(s, name, *head, ..., params, count)
        s.done(name, *head, work.pointer, size, info.pointer, params, count)
        v, w = there.get(), values.get()
        wrong = first(
            close(many[:, :, i] @ v[:, :, i], v[:, :, i] * w[:, i], kind, 100) for i in range(count)
        )
        a, b = hermitian(n, kind), positive(n, kind)
        first_of, second, values = Array(a), Array(b), Array(np.zeros(n, REAL[letter]))
        name = f"cusolverDn{letter}{inner(letter, 'sy/he')}gvd"
        head = (1, 1, 0, n, first_of.pointer, n, second.pointer, n, values.pointer)
        work, size = room(s, name, *head, ...)
        s.done(name, *head, work.pointer, size, info.pointer)
        return wrong or close(values.get(), linalg.eigvalsh(a, b), kind, 100)

    return for_each_type(one)


@case
def a_tridiagonal_form() -> str:
    def one(s: Library, letter: str) -> str:
        kind, n = TYPES[letter], 15
        a = hermitian(n, kind)
        there, info = Array(a), integers()
        d, e = Array(np.zeros(n, REAL[letter])), Array(np.zeros(n - 1, REAL[letter]))
        tau = Array(np.zeros(n - 1, kind))
        name = f"cusolverDn{letter}{inner(letter, 'sy/he')}trd"
        head = (0, n, there.pointer, n, d.pointer, e.pointer, tau.pointer)
        work, size = room(s, name, *head, ...)
        s.done(name, *head, work.pointer, size, info.pointer)
        values = linalg.eigvalsh_tridiagonal(d.get().astype(np.float64), e.get().astype(np.float64))
        return close(values, linalg.eigvalsh(a), kind, 20 * n)

    return for_each_type(one)


@case
def singular_values() -> str:
    def one(s: Library, letter: str) -> str:
        kind, m, n = TYPES[letter], 21, 13
        a = numbers((m, n), kind)
        wanted = linalg.svdvals(a)
        for ju, jv in ("AA", "SS", "NN", "OS"):
            there, info, values = inside(a, m + 2), integers(), Array(np.zeros(n, REAL[letter]))
            u, vt = inside(np.zeros((m, m), kind), m + 1), inside(np.zeros((n, n), kind), n + 1)
            work, size = room(s, f"cusolverDn{letter}gesvd", m, n, ...)
            s.done(f"cusolverDn{letter}gesvd", ctypes.c_byte(ord(ju)), ctypes.c_byte(ord(jv)), m, n, there.pointer, m + 2,
                   values.pointer, u.pointer, m + 1, vt.pointer, n + 1, work.pointer, size, None, info.pointer)  # fmt: skip
            wrong = close(values.get(), wanted, kind, 30 * m)
            if not wrong and ju != "N":
                left = there.get()[:m] if ju == "O" else u.get()[:m, :n]
                wrong = close(left * values.get() @ vt.get()[:n], a, kind, 30 * m)
                wrong = wrong or (unit(u.get()[:m], kind) if ju == "A" else "")
            if wrong or info.get()[0]:
                return f"gesvd {ju}{jv}: {wrong} {info.get()}"
        return ""

    return for_each_type(one)


@case
def singular_values_by_jacobis_names() -> str:
    def one(s: Library, letter: str) -> str:
        kind = TYPES[letter]
        params = ctypes.c_void_p()
        assert s.library.cusolverDnCreateGesvdjInfo(ctypes.byref(params)) == 0
        assert s.library.cusolverDnXgesvdjSetMaxSweeps(params, 50) == 0
        for m, n in ((17, 9), (9, 17)):
            a, least = numbers((m, n), kind), min(m, n)
            for econ in (0, 1):
                there, info, values = Array(a), integers(), Array(np.zeros(least, REAL[letter]))
                u, v = Array(np.zeros((m, m), kind)), Array(np.zeros((n, n), kind))
                head = (1, econ, m, n, there.pointer, m, values.pointer, u.pointer, m, v.pointer, n)
                work, size = room(s, f"cusolverDn{letter}gesvdj", *head, ..., params)
                s.done(f"cusolverDn{letter}gesvdj", *head, work.pointer, size, info.pointer, params)
                left, right = u.get()[:, :least], v.get()[:, :least]
                wrong = close(left * values.get() @ right.conj().T, a, kind, 30 * m)
                if not econ:
                    wrong = wrong or unit(u.get(), kind) or unit(v.get(), kind)
                if wrong or info.get()[0]:
                    return f"gesvdj {m} {n} {econ}: {wrong} {info.get()}"
        count, m, n = 3, 7, 5
        many = numbers((m, n, count), kind)
        there, info, values = Array(many), integers(count), Array(np.zeros((n, count), REAL[letter]))
        u, v = Array(np.zeros((m, m, count), kind)), Array(np.zeros((n, n, count), kind))
        head = (1, m, n, there.pointer, m, values.pointer, u.pointer, m, v.pointer, n)
        work, size = room(s, f"cusolverDn{letter}gesvdjBatched", *head, ..., params, count)
        s.done(f"cusolverDn{letter}gesvdjBatched", *head, work.pointer, size, info.pointer, params, count)
        return first(
            close(
                u.get()[:, :n, i] * values.get()[:, i] @ v.get()[:, :, i].conj().T, many[:, :, i], kind, 200
            )
            for i in range(count)
        )

    return for_each_type(one)


def is_estimate(value: float) -> bool:
    """Whether an error that the library estimates is one: 0 of a simulated device, and not known on a slice of a real one."""
    if not REAL_GPU:
        return value == 0
    return bool(np.isnan(value)) if forwarded() else value >= 0


@case
def singular_values_of_many_tall_matrices() -> str:
    def one(s: Library, letter: str) -> str:
        kind, count, m, n, rank = TYPES[letter], 3, 9, 5, 3
        many = numbers((m, n, count), kind)
        there, info, values = Array(many), integers(count), Array(np.zeros((rank, count), REAL[letter]))
        u, v = Array(np.zeros((m, rank, count), kind)), Array(np.zeros((n, rank, count), kind))
        step = ctypes.c_longlong
        head = (1, rank, m, n, there.pointer, m, step(m * n), values.pointer, step(rank), u.pointer, m, step(m * rank), v.pointer, n, step(n * rank))  # fmt: skip
        work, size = room(s, f"cusolverDn{letter}gesvdaStridedBatched", *head, ..., count)
        rest = (ctypes.c_double * count)(7, 7, 7)
        s.done(
            f"cusolverDn{letter}gesvdaStridedBatched", *head, work.pointer, size, info.pointer, rest, count
        )
        wrong = first(
            close(values.get()[:, i], linalg.svdvals(many[:, :, i])[:rank], kind, 200)
            or close(many[:, :, i] @ v.get()[:, :, i], u.get()[:, :, i] * values.get()[:, i], kind, 200)
            for i in range(count)
        )
        return wrong or ("" if all(is_estimate(one) for one in rest) else f"{list(rest)}")

    return for_each_type(one)


@case
def the_functions_of_64_bits() -> str:
    def one(s: Library, letter: str) -> str:
        kind, n, t, r = TYPES[letter], 18, data(letter), data(letter, True)
        ln, info = long(n), integers()
        a = positive(n, kind)
        there = Array(a)
        work = rooms(s, "cusolverDnXpotrf", None, 0, ln, t, there.pointer, ln, t)
        s.done("cusolverDnXpotrf", None, 0, ln, t, there.pointer, ln, t, *work, info.pointer)
        if wrong := close(np.tril(there.get()), linalg.cholesky(a, lower=True), kind, n):
            return f"Xpotrf: {wrong}"
        b = numbers((n, 2), kind)
        x = Array(b)
        s.done("cusolverDnXpotrs", None, 0, ln, long(2), t, there.pointer, ln, t, x.pointer, ln, info.pointer)
        if wrong := close(a @ x.get(), b, kind, 30 * n):
            return f"Xpotrs: {wrong}"
        g = numbers((n, n), kind)
        there, pivots, x = Array(g), Array(np.zeros(n, np.int64)), Array(b)
        work = rooms(s, "cusolverDnXgetrf", None, ln, ln, t, there.pointer, ln, t)
        s.done("cusolverDnXgetrf", None, ln, ln, t, there.pointer, ln, pivots.pointer, t, *work, info.pointer)
        s.done("cusolverDnXgetrs", None, 0, ln, long(2), t, there.pointer, ln, pivots.pointer, t, x.pointer, ln, info.pointer)  # fmt: skip
        if wrong := close(g @ x.get(), b, kind, 500 * n):
            return f"Xgetrs: {wrong}"
        there, tau = Array(g), Array(np.zeros(n, kind))
        work = rooms(s, "cusolverDnXgeqrf", None, ln, ln, t, there.pointer, ln, t, tau.pointer, t)
        s.done("cusolverDnXgeqrf", None, ln, ln, t, there.pointer, ln, t, tau.pointer, t, *work, info.pointer)
        upper = np.triu(there.get())
        if wrong := close(upper.conj().T @ upper, g.conj().T @ g, kind, 30 * n):
            return f"Xgeqrf: {wrong}"
        h = hermitian(n, kind)
        there, values = Array(h), Array(np.zeros(n, REAL[letter]))
        head = (None, 1, 0, ln, t, there.pointer, ln, r, values.pointer, t)
        s.done("cusolverDnXsyevd", *head, *rooms(s, "cusolverDnXsyevd", *head), info.pointer)
        if wrong := close(h @ there.get(), there.get() * values.get(), kind, 50 * n):
            return f"Xsyevd: {wrong}"
        there, values = Array(g), Array(np.zeros(n, REAL[letter]))
        u, v = Array(np.zeros((n, n), kind)), Array(np.zeros((n, n), kind))
        job = ctypes.c_byte(ord("S"))
        head = (
            None,
            job,
            job,
            ln,
            ln,
            t,
            there.pointer,
            ln,
            r,
            values.pointer,
            t,
            u.pointer,
            ln,
            t,
            v.pointer,
            ln,
            t,
        )
        s.done("cusolverDnXgesvd", *head, *rooms(s, "cusolverDnXgesvd", *head), info.pointer)
        if wrong := close(u.get() * values.get() @ v.get(), g, kind, 50 * n):
            return f"Xgesvd: {wrong}"
        there, error = Array(g), ctypes.c_double(7)
        head = (
            None,
            1,
            1,
            ln,
            ln,
            t,
            there.pointer,
            ln,
            r,
            values.pointer,
            t,
            u.pointer,
            ln,
            t,
            v.pointer,
            ln,
            t,
        )
        s.done(
            "cusolverDnXgesvdp",
            *head,
            *rooms(s, "cusolverDnXgesvdp", *head),
            info.pointer,
            ctypes.byref(error),
        )
        wrong = close(u.get() * values.get() @ v.get().conj().T, g, kind, 50 * n)
        if wrong or not is_estimate(error.value):
            return f"Xgesvdp: {wrong} {error}"
        return ""

    return for_each_type(one)


@case
def many_matrices_of_64_bits() -> str:
    def one(s: Library, letter: str) -> str:
        kind, n, t, count = TYPES[letter], 7, data(letter), 6
        many = np.stack([hermitian(n, kind) for _ in range(count)], 2)
        there, values, info = Array(many), Array(np.zeros((n, count), REAL[letter])), integers(count)
        head = (None, 1, 0, long(n), t, there.pointer, long(n), data(letter, True), values.pointer, t)
        device, host = ctypes.c_size_t(), ctypes.c_size_t()
        s.done(
            "cusolverDnXsyevBatched_bufferSize", *head, ctypes.byref(device), ctypes.byref(host), long(count)
        )
        work = Array(np.zeros(device.value, np.int8))
        s.done("cusolverDnXsyevBatched", *head, work.pointer, device, None, host, info.pointer, long(count))
        v, w = there.get(), values.get()
        return first(close(many[:, :, i] @ v[:, :, i], v[:, :, i] * w[:, i], kind, 100) for i in range(count))

    return for_each_type(one)


@case
def eigenvalues_of_any_matrix() -> str:
    def one(s: Library, letter: str) -> str:
        kind, n, t = TYPES[letter], 12, data(letter)
        a = numbers((n, n), kind)
        wide = np.complex64 if letter in "SC" else np.complex128
        there, values, vectors = Array(a), Array(np.zeros(n, wide)), Array(np.zeros((n, n), kind))
        info, ln, none = integers(), long(n), ctypes.c_void_p()
        head = (
            None,
            0,
            1,
            ln,
            t,
            there.pointer,
            ln,
            DATA[wide],
            values.pointer,
            t,
            none,
            ln,
            t,
            vectors.pointer,
            ln,
            t,
        )
        s.done("cusolverDnXgeev", *head, *rooms(s, "cusolverDnXgeev", *head), info.pointer)
        w, v = values.get(), vectors.get().astype(wide)
        if letter in "SD":  # pairs of columns are real and imaginary parts
            for i in np.flatnonzero(w.imag > 0):
                real, imaginary = v[:, i].copy(), v[:, i + 1].copy()
                v[:, i], v[:, i + 1] = real + 1j * imaginary, real - 1j * imaginary
        return close(a @ v, v * w, kind, 200 * n) or close(
            np.append(w, w.sum()), np.append(w, np.trace(a)), kind, 200
        )

    return for_each_type(one)


@CASES.simulated_only("NVIDIA promises nothing of matrices that are not finite")
def what_is_not_finite_ends_as_nan() -> str:
    def one(s: Library, letter: str) -> str:
        kind, n, count = TYPES[letter], 8, 3
        params = ctypes.c_void_p()
        assert s.library.cusolverDnCreateGesvdjInfo(ctypes.byref(params)) == 0
        for bits in (np.nan, np.inf):
            many = numbers((n, n, count), kind)
            many[2, 3, 1] = bits
            there, info, values = Array(many), integers(count), Array(np.zeros((n, count), REAL[letter]))
            u, v = Array(np.zeros((n, n, count), kind)), Array(np.zeros((n, n, count), kind))
            head = (1, n, n, there.pointer, n, values.pointer, u.pointer, n, v.pointer, n)
            s.done(f"cusolverDn{letter}gesvdjBatched", *head, there.pointer, 16, info.pointer, params, count)
            nan = np.isnan(values.get()).all(0)
            if list(info.get() > 0) != [False, True, False] or list(nan) != [False, True, False]:
                return f"gesvdj {bits}: {info.get()} {nan}"
            a, w = Array(many[:, :, 1]), Array(np.zeros(n, REAL[letter]))
            name = f"cusolverDn{letter}{inner(letter, 'sy/he')}evd"
            s.done(name, 1, 1, n, a.pointer, n, w.pointer, a.pointer, 16, info.pointer)
            if info.get()[0] <= 0 or not np.isnan(w.get()).all():
                return f"syevd {bits}: {info.get()}"
        return ""

    return for_each_type(one)


@CASES.not_native
def what_does_not_fit_is_refused() -> str:
    s = solver()
    a, info, size = Array(np.eye(8)), integers(), ctypes.c_int()
    found = [
        s("cusolverDnDpotrf", 2, 8, a.pointer, 8, a.pointer, 1, info.pointer),
        s("cusolverDnDpotrf", 0, -1, a.pointer, 8, a.pointer, 1, info.pointer),
        s("cusolverDnDpotrf", 0, 8, a.pointer, 7, a.pointer, 1, info.pointer),
        s("cusolverDnDgetrf_bufferSize", 8, 8, a.pointer, 8, None),
        s("cusolverDnDgesvd_bufferSize", 3, 8, ctypes.byref(size)),  # m < n, which cuSOLVER does not take
        s(
            "cusolverDnXpotrf_bufferSize",
            None,
            0,
            long(8),
            2,
            a.pointer,
            long(8),
            2,
            ctypes.byref(size),
            None,
        ),
        s("cusolverDnDgebrd"),
        int(s.library.cusolverRfCreate(None)),
        int(s.library.cusolverDnDestroy(ctypes.c_void_p(4096))),
        int(s.library.cusolverDnDestroyParams(ctypes.c_void_p(4096))),
    ]
    return "" if found == [3, 3, 3, 3, 3, 3, 9, 9, 1, 3] else f"{found}"


@case
def nothing_waits_and_nothing_is_nothing() -> str:
    s = solver()
    stream = ok(driver.cuStreamCreate(1))
    s.done("cusolverDnSetStream", ctypes.c_void_p(int(stream)))
    a, info = Array(np.zeros((0, 0))), integers()
    s.done("cusolverDnDpotrf", 0, 0, a.pointer, 1, a.pointer, 1, info.pointer)
    s.done("cusolverDnDgetrf", 0, 0, a.pointer, 1, a.pointer, a.pointer, info.pointer)
    if not REAL_GPU:  # NVIDIA's fails, with CUSOLVER_STATUS_EXECUTION_FAILED
        s.done("cusolverDnDsyevd", 1, 0, 0, a.pointer, 1, a.pointer, a.pointer, 1, info.pointer)
    ok(driver.cuStreamSynchronize(stream))
    return "" if info.get()[0] == 0 else f"{info.get()}"


if __name__ == "__main__":
    CASES.main()
