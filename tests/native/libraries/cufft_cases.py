"""Cases of cuFFT against NumPy."""

from __future__ import annotations

import ctypes
import itertools
import math
from typing import Any

import ml_dtypes
import numpy as np
from cuda.bindings import driver

from tests.native.libraries.device import Array, Cases, close, ok, soname

__all__ = ["CASES"]

CASES = Cases()
case = CASES.add

R2C, C2R, C2C, D2Z, Z2D, Z2Z = 0x2A, 0x2C, 0x29, 0x6A, 0x6C, 0x69
FORWARD, INVERSE = -1, 1
random = np.random.default_rng(11)


class Loaded:
    """The library's functions; it is there where the cases run, and not where they are collected."""

    def __getattr__(self, name: str) -> Any:
        return getattr(ctypes.CDLL(soname("libcufft.so.11")), name)


library = Loaded()


def numbers(shape: Any, kind: Any) -> np.ndarray[Any, Any]:
    values = random.standard_normal(shape)
    if np.iscomplexobj(np.empty(0, kind)):
        values = values + 1j * random.standard_normal(shape)
    return values.astype(kind)


def placed(host: np.ndarray[Any, Any]) -> Array:
    """An array in rows on the device: `get` returns it flat."""
    return Array(np.ascontiguousarray(host).reshape(-1))


def plan(name: str, *arguments: Any) -> int:
    handle = ctypes.c_int()
    status = getattr(library, name)(ctypes.byref(handle), *arguments)
    assert status == 0, f"{name}: {status}"
    return handle.value


def ints(*values: int) -> Any:
    return (ctypes.c_int * len(values))(*values)


def longs(*values: int) -> Any:
    return (ctypes.c_longlong * len(values))(*values)


def done(status: int) -> None:
    assert status == 0, status


def first(findings: Any) -> str:
    return next((finding for finding in findings if finding), "")


def pointer(array: Array, elements: int = 0) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.address + elements * array.host.itemsize)


@case
def lines_of_every_kind_of_length() -> str:
    def one(n: int, kind: Any, batch: int) -> str:
        name, code = ("cufftExecC2C", C2C) if kind is np.complex64 else ("cufftExecZ2Z", Z2Z)
        x = numbers((batch, n), kind)
        a, b = placed(x), placed(np.zeros_like(x))
        handle = plan("cufftPlan1d", n, code, batch)
        run = getattr(library, name)
        done(run(handle, pointer(a), pointer(b), FORWARD))
        wrong = close(
            b.get().reshape(batch, n), np.fft.fft(x.astype(np.complex128)), kind, int(math.log2(n) + 1)
        )
        done(run(handle, pointer(b), pointer(b), INVERSE))  # in place
        wrong = wrong or close(b.get().reshape(batch, n), x * n, kind, int(math.log2(n) + 1))
        done(library.cufftDestroy(handle))
        return wrong and f"{n} {kind.__name__} {batch}: {wrong}"

    lengths = [
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        11,
        12,
        13,
        15,
        16,
        17,
        30,
        64,
        97,
        100,
        169,
        221,
        360,
        1001,
        1024,
        2310,
        4099,
        65536,
    ]
    return first(
        one(n, kind, batch)
        for n, (kind, batch) in itertools.product(lengths, ((np.complex64, 1), (np.complex128, 3)))
    )


@case
def real_transforms_of_one_two_and_three_dimensions() -> str:
    def one(shape: tuple[int, ...], wide: bool) -> str:
        real, whole = (np.float64, np.complex128) if wide else (np.float32, np.complex64)
        there, back = (D2Z, Z2D) if wide else (R2C, C2R)
        x = numbers(shape, real)
        wanted = np.fft.rfftn(x.astype(np.float64))
        a, b = placed(x), placed(np.zeros(wanted.shape, whole))
        name = f"cufftPlan{len(shape)}d"
        more = (1,) if len(shape) == 1 else ()
        forward, inverse = (plan(name, *shape, kind, *more) for kind in (there, back))
        execute = {R2C: "R2C", C2R: "C2R", D2Z: "D2Z", Z2D: "Z2D"}
        done(getattr(library, f"cufftExec{execute[there]}")(forward, pointer(a), pointer(b)))
        wrong = close(b.get().reshape(wanted.shape), wanted, real, 20)
        out = placed(np.zeros(shape, real))
        done(getattr(library, f"cufftExec{execute[back]}")(inverse, pointer(b), pointer(out)))
        return wrong or close(out.get().reshape(shape), x * x.size, real, 20)

    shapes = [(16,), (15,), (1,), (34,), (6, 10), (7, 9), (1, 8), (4, 6, 10), (3, 5, 7), (2, 17, 1)]
    return first(
        (wrong and f"{shape} {wide}: {wrong}")
        for shape, wide in itertools.product(shapes, (False, True))
        if (wrong := one(shape, wide))
    )


@case
def a_packed_real_side_in_place_has_padded_rows() -> str:
    shape, padded = (3, 4, 6), (3, 4, 8)
    x = numbers((2, *shape), np.float32)
    room = np.zeros((2, *padded), np.float32)
    room[..., :6] = x
    a = placed(room)
    forward, inverse = (
        plan("cufftPlanMany", 3, ints(*shape), None, 1, 0, None, 1, 0, kind, 2) for kind in (R2C, C2R)
    )
    done(library.cufftExecR2C(forward, pointer(a), pointer(a)))
    wrong = close(
        a.get().view(np.complex64).reshape(2, 3, 4, 4), np.fft.rfftn(x, axes=(1, 2, 3)), np.float32, 20
    )
    done(library.cufftExecC2R(inverse, pointer(a), pointer(a)))
    return wrong or close(a.get().reshape(2, *padded)[..., :6], x * 72, np.float32, 20)


@case
def strides_embeddings_and_distances() -> str:
    n, batch = (4, 6), 3
    inembed, istride, idist = (5, 8), 2, 90
    onembed, ostride, odist = (4, 7), 3, 100
    x = numbers(400, np.complex128)
    a, b = placed(x), placed(np.full(400, 7 + 1j))
    created = ctypes.c_int()
    done(library.cufftCreate(ctypes.byref(created)))
    handle, size = created.value, ctypes.c_size_t(99)
    done(library.cufftSetAutoAllocation(handle, 0))
    done(
        library.cufftMakePlanMany64(
            handle, 2, longs(*n), longs(*inembed), ctypes.c_longlong(istride), ctypes.c_longlong(idist),
            longs(*onembed), ctypes.c_longlong(ostride), ctypes.c_longlong(odist), Z2Z,
            ctypes.c_longlong(batch), ctypes.byref(size),
        )
    )  # fmt: skip
    done(library.cufftSetWorkArea(handle, None))
    done(library.cufftExecZ2Z(handle, pointer(a), pointer(b), FORWARD))
    wanted = np.full(400, 7 + 1j)
    for one in range(batch):
        i, j = np.indices(n)
        values = x[one * idist + (i * inembed[1] + j) * istride]
        wanted[one * odist + (i * onembed[1] + j) * ostride] = np.fft.fft2(values)
    return close(b.get(), wanted, np.complex128, 20)


@case
def real_transforms_with_strides() -> str:
    n, batch = 10, 4
    x = numbers(batch * 30, np.float32)
    a, b = placed(x), placed(np.zeros(batch * 8, np.complex64))
    handle = plan("cufftPlanMany", 1, ints(n), ints(n), 3, 30, ints(n), 1, 8, R2C, batch)
    done(library.cufftExecR2C(handle, pointer(a), pointer(b)))
    got = b.get().reshape(batch, 8)
    wrong = close(got[:, :6], np.fft.rfft(x.reshape(batch, 10, 3)[..., 0]), np.float32, 20)
    return wrong or ("" if not got[:, 6:].any() else "what lies between was written")


@case
def types_by_their_numbers() -> str:
    def one(input_type: int, output_type: int, execution: int, kind: Any, parts: int) -> str:
        n = 32
        x = numbers(n * parts, np.float32).astype(kind)
        complex_in = parts == 2
        value = x.astype(np.float64)
        value = value[0::2] + 1j * value[1::2] if complex_in else value
        wanted = np.fft.fft(value) if complex_in else np.fft.rfft(value)
        a, b = placed(x), placed(np.zeros(2 * wanted.size, kind))
        created, size = ctypes.c_int(), ctypes.c_size_t()
        done(library.cufftCreate(ctypes.byref(created)))
        one_long = ctypes.c_longlong(1)
        done(
            library.cufftXtMakePlanMany(
                created.value, 1, longs(n), None, one_long, one_long, input_type, None, one_long, one_long,
                output_type, one_long, ctypes.byref(size), execution,
            )
        )  # fmt: skip
        done(library.cufftXtExec(created.value, pointer(a), pointer(b), FORWARD))
        got = b.get().astype(np.float64)
        return close(got[0::2] + 1j * got[1::2], wanted, kind, 4)

    return first(
        one(*arguments)
        for arguments in (
            (6, 6, 6, np.float16, 2),
            (2, 6, 6, np.float16, 1),
            (15, 15, 15, ml_dtypes.bfloat16, 2),
            (4, 4, 4, np.float32, 2),
            (1, 5, 5, np.float64, 1),
        )
    )


@case
def a_stream_keeps_its_order() -> str:
    x = numbers(4096, np.complex64)
    a = placed(x)
    stream = ok(driver.cuStreamCreate(1))
    handle = plan("cufftPlan1d", 4096, C2C, 1)
    done(library.cufftSetStream(handle, ctypes.c_void_p(int(stream))))
    for _ in range(10):  # there and back, with nothing waited for
        done(library.cufftExecC2C(handle, pointer(a), pointer(a), FORWARD))
        done(library.cufftExecC2C(handle, pointer(a), pointer(a), INVERSE))
    ok(driver.cuStreamSynchronize(stream))
    done(library.cufftDestroy(handle))
    return close(a.get() / 4096.0**10, x, np.complex64, 400)


@CASES.not_native
def what_is_no_plan_is_refused() -> str:
    created = ctypes.c_int()
    a = placed(np.zeros(64, np.complex64))
    found = [
        library.cufftPlan1d(ctypes.byref(created), 0, C2C, 1),
        library.cufftPlan1d(ctypes.byref(created), 8, 77, 1),
        library.cufftPlan1d(None, 8, C2C, 1),
        library.cufftPlan1d(ctypes.byref(created), 8, C2C, 0),
        library.cufftPlanMany(ctypes.byref(created), 4, ints(2, 2, 2, 2), None, 1, 1, None, 1, 1, C2C, 1),
        library.cufftExecC2C(4711, pointer(a), pointer(a), FORWARD),
        library.cufftDestroy(4711),
    ]
    handle = plan("cufftPlan1d", 8, C2C, 1)
    found += [
        library.cufftExecC2C(handle, pointer(a), pointer(a), 3),
        library.cufftExecC2C(handle, None, pointer(a), FORWARD),
        library.cufftExecZ2Z(handle, pointer(a), pointer(a), FORWARD),
        library.cufftMakePlan1d(handle, 8, C2C, 1, None),
        library.cufftXtSetCallback(handle),
    ]
    wanted = [8, 4, 4, 4, 4, 1, 1, 4, 4, 4, 1, 16]
    return "" if found == wanted else f"{found}, not {wanted}"


if __name__ == "__main__":
    CASES.main()
